// CUDA's words as plain C++, so that kernels run, and are tested, where there is no GPU.
//
// Included before a kernel's file.  One launch at a time in a process: the words below are globals.
// Threads are taken one after the other; launcher.h switches between them only at a barrier.
#pragma once

#define CUDA_ON_CPU 1
// The mark by which the builder of the library finds kernels in the preprocessed text.
#define __global__ __attribute__((annotate("kernel")))
#define __device__
#define __host__
#define __constant__ static const
// Blocks run one after the other: what they share may lie still.
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

struct Dim3 {
    unsigned int x, y, z;
};
using dim3 = Dim3;
using uint3 = Dim3;

static Dim3 blockIdx, threadIdx, blockDim, gridDim;
static const int warpSize = 32;

struct __align__(8) int2 { int x, y; };
struct __align__(8) uint2 { unsigned int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(16) uint4 { unsigned int x, y, z, w; };
struct __align__(16) longlong2 { long long x, y; };
struct __align__(16) ulonglong2 { unsigned long long x, y; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) {
    return {x, y, z, w};
}

// Dynamic shared memory; a kernel names it by SHARED_BYTES(name) of law.cuh.
constexpr unsigned long long MAX_SHARED = 227 * 1024;
alignas(1024) static unsigned char dynamic_shared[MAX_SHARED];

// --- barriers: launcher.h has what they do

void wait_for_block();
void wait_for_warp(unsigned int mask);
void* warp_slots();  // 32 slots of 8 bytes, this warp's

inline unsigned int lane_of_thread() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31u;
}

inline void __syncthreads() { wait_for_block(); }
inline void __syncwarp(unsigned int mask = 0xffffffffu) { wait_for_warp(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// What lane ``from`` of the warp gives; every lane of the mask takes part.
template <typename T>
inline T take_from_lane(unsigned int mask, T value, unsigned int from) {
    static_assert(sizeof(T) <= 8, "a lane gives at most 8 bytes");
    struct __align__(8) Slot { T value; };
    Slot* slots = (Slot*)warp_slots();
    slots[lane_of_thread()].value = value;
    wait_for_warp(mask);
    const T taken = slots[from & 31u].value;
    wait_for_warp(mask);
    return taken;
}
template <typename T>
inline T __shfl_sync(unsigned int mask, T value, int from, int width = 32) {
    const unsigned int lane = lane_of_thread(), first = lane & ~(unsigned int)(width - 1);
    return take_from_lane(mask, value, first + ((unsigned int)from & (width - 1)));
}
template <typename T>
inline T __shfl_xor_sync(unsigned int mask, T value, int bits, int width = 32) {
    const unsigned int lane = lane_of_thread(), other = lane ^ (unsigned int)bits;
    const bool inside = (lane & ~(unsigned int)(width - 1)) == (other & ~(unsigned int)(width - 1));
    return take_from_lane(mask, value, inside ? other : lane);
}
template <typename T>
inline T __shfl_down_sync(unsigned int mask, T value, unsigned int by, int width = 32) {
    const unsigned int lane = lane_of_thread(), place = lane & (unsigned int)(width - 1);
    return take_from_lane(mask, value, place + by < (unsigned int)width ? lane + by : lane);
}
template <typename T>
inline T __shfl_up_sync(unsigned int mask, T value, unsigned int by, int width = 32) {
    const unsigned int lane = lane_of_thread(), place = lane & (unsigned int)(width - 1);
    return take_from_lane(mask, value, place >= by ? lane - by : lane);
}
inline unsigned int __ballot_sync(unsigned int mask, int predicate) {
    int* slots = (int*)warp_slots();
    slots[lane_of_thread()] = predicate != 0;
    wait_for_warp(mask);
    unsigned int ballot = 0;
    for (unsigned int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1u) && slots[lane]) ballot |= 1u << lane;
    wait_for_warp(mask);
    return ballot;
}
inline int __any_sync(unsigned int mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned int mask, int predicate) {
    return __ballot_sync(mask, predicate) == mask;
}

// --- atomics: nothing runs at the same time

template <typename T>
inline T atomicAdd(T* address, T value) {
    const T before = *address;
    // Atomics wrap, for signed numbers too.
    if constexpr (sizeof(T) == 8)
        *address = (T)((unsigned long long)before + (unsigned long long)value);
    else
        *address = (T)((unsigned int)before + (unsigned int)value);
    return before;
}
template <typename T>
inline T atomicMax(T* address, T value) {
    const T before = *address;
    *address = before < value ? value : before;
    return before;
}
template <typename T>
inline T atomicMin(T* address, T value) {
    const T before = *address;
    *address = value < before ? value : before;
    return before;
}
template <typename T>
inline T atomicOr(T* address, T value) {
    const T before = *address;
    *address = before | value;
    return before;
}
template <typename T>
inline T atomicExch(T* address, T value) {
    const T before = *address;
    *address = value;
    return before;
}
template <typename T>
inline T atomicCAS(T* address, T expected, T value) {
    const T before = *address;
    if (before == expected) *address = value;
    return before;
}

// --- instructions with names

template <typename T>
inline T __ldg(const T* address) { return *address; }
inline int __popc(unsigned int x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned int)x); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned int __umulhi(unsigned int a, unsigned int b) {
    return (unsigned int)((unsigned long long)a * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned int __funnelshift_r(unsigned int lo, unsigned int hi, unsigned int count) {
    return (unsigned int)((((unsigned long long)hi << 32) | lo) >> (count & 31u));
}
inline unsigned int __funnelshift_l(unsigned int lo, unsigned int hi, unsigned int count) {
    return (unsigned int)((((unsigned long long)hi << 32 | lo) << (count & 31u)) >> 32);
}
// Approximate on a GPU: what is made of them must not show its last bits.
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / __builtin_elementwise_sqrt(x); }
inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int selector) {
    const unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned int result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned int choice = selector >> (4 * i) & 15u;
        unsigned int byte = (unsigned int)(bytes >> (8 * (choice & 7u))) & 255u;
        if (choice & 8u) byte = byte & 128u ? 255u : 0u;
        result |= byte << (8 * i);
    }
    return result;
}
inline int __dp4a(int a, int b, int sum) {
    unsigned int total = (unsigned int)sum;
    for (int i = 0; i < 4; i++) {
        const int x = (signed char)((unsigned int)a >> (8 * i));
        const int y = (signed char)((unsigned int)b >> (8 * i));
        total += (unsigned int)(x * y);
    }
    return (int)total;
}
