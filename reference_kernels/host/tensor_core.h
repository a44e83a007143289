// Tensor cores and asynchronous copies on the CPU, by the layouts of the PTX ISA; see mma.cuh.
//
// A lane puts its fragments where the manual says their elements belong, the warp meets, and each
// lane computes its own outputs from the whole matrices.  What is asynchronous on the GPU happens
// here as late as the program's waits allow, and its target holds garbage until then: a wait that
// is missing, or a buffer that is given back too early, shows as wrong bits.
#pragma once

#include "fibers.h"

// Address in the window of shared memory: everything that kernels address so is dynamic_shared.
inline u32 shared_address(const void* at) {
    return (u32)((const unsigned char*)at - dynamic_shared);
}

inline void store_16_bytes(void* at, i64 low, i64 high) { *(longlong2*)at = {low, high}; }

namespace host {

static void report(const char* kind);  // launcher.h: the launch fails, and says so
inline void require(bool holds, const char* kind) {
    if (!holds) report(kind);
}

inline unsigned char* shared_at(u32 address) { return dynamic_shared + address; }

// --- products of bytes, 32 of them at a time: tests of products spend most of their time here

typedef u8 Bytes __attribute__((vector_size(32)));
typedef i8 SignedBytes __attribute__((vector_size(32)));
typedef i32 Numbers __attribute__((vector_size(128)));

#define ALWAYS_INLINE inline __attribute__((always_inline))

template <bool SIGNED>
ALWAYS_INLINE void load_numbers(Numbers& to, const u8* low, const u8* high) {
    Bytes bytes;
    memcpy(&bytes, low, 16);
    memcpy((u8*)&bytes + 16, high, 16);
    if constexpr (SIGNED) to = __builtin_convertvector((SignedBytes)bytes, Numbers);
    else to = __builtin_convertvector(bytes, Numbers);
}
// The sum with 32 products added to it: together these are less than 2^21 in magnitude, and a sum
// that overflows does so in the last addition.
ALWAYS_INLINE i32 add_products(i32 sum, const Numbers& a, const Numbers& b) {
    const Numbers products = a * b;
    return sum + __builtin_reduce_add(products);
}

// --- mma: two sets of matrices a warp, since a lane may begin the next while others read

struct Matrices {
    alignas(4) u8 a[16][32], b[8][32];  // rows of A, columns of B
    u32 rows[32];
};
static Matrices matrices_of_warps[MAX_THREADS / 32][2];
static u8 turn_of_threads[MAX_THREADS];

inline Matrices& next_matrices() {
    return matrices_of_warps[current / 32][turn_of_threads[current]++ & 1];
}

// --- what a thread has in flight: copies of 16 bytes, and products, in groups

alignas(16) static const unsigned char ZEROS[16] = {};
struct Copy {
    void* to;
    const void* from;
};
struct Product {
    void (*multiply)(i32* d, u64 a, u64 b);
    i32* d;
    u64 a, b;
};
template <typename T>
struct Flight {
    T items[256];
    u32 ends[64];  // of groups, in items
    u32 first, groups, count;
    u64 serial;

    void add(T item) {
        refresh();
        require(count < 256, "more in flight than this emulation holds");
        count %= 256;
        items[count++] = item;
    }
    void commit() {
        refresh();
        require(groups < 64, "more groups in flight than this emulation holds");
        groups %= 64;
        ends[groups++] = count;
    }
    // Hands out the items of all groups but the last ``pending``.
    template <typename F>
    void land(u32 pending, F&& finish) {
        refresh();
        if (groups <= pending) return;
        const u32 landing = groups - pending, end = ends[landing - 1];
        for (u32 i = 0; i < end; i++) finish(items[i]);
        for (u32 i = end; i < count; i++) items[i - end] = items[i];
        for (u32 i = landing; i < groups; i++) ends[i - landing] = ends[i] - end;
        count -= end;
        groups -= landing;
    }
    void refresh() {
        if (serial == block_serial) return;
        serial = block_serial;
        count = groups = 0;
    }
};
static Flight<Copy> copies_of_threads[MAX_THREADS];
static Flight<Product> products_of_threads[MAX_THREADS];

// --- mbarriers: 16 bits of arrivals a phase, 16 bits pending, 31 bits of bytes, the phase's parity

struct Barrier {
    u64 arrivals : 16, pending : 16, bytes : 31, parity : 1;
};
static_assert(sizeof(Barrier) == 8, "a barrier is a word");

struct Bulk {
    unsigned char* to;
    const void* from;
    u32 bytes;
    Barrier* barrier;
};
static Bulk bulks[256];
static u32 bulk_count;
static u64 bulk_serial;

inline Barrier* barrier_at(u32 address) { return (Barrier*)shared_at(address); }
inline void end_phase_if_complete(Barrier* barrier) {
    if (barrier->pending != 0 || barrier->bytes != 0) return;
    barrier->pending = barrier->arrivals;
    barrier->parity ^= 1;
}

struct Phase {
    Barrier* barrier;
    u32 parity;
};
inline bool is_over(void* phase) {
    const Phase wanted = *(Phase*)phase;
    Barrier* const barrier = wanted.barrier;
    // Bulk copies land now, at the last moment, and none that the phase does not wait for.
    for (u32 i = 0; i < bulk_count && barrier->parity == wanted.parity;) {
        if (bulks[i].barrier != barrier) {
            i++;
            continue;
        }
        const Bulk bulk = bulks[i];
        for (u32 later = i + 1; later < bulk_count; later++) bulks[later - 1] = bulks[later];
        bulk_count--;
        memcpy(bulk.to, bulk.from, bulk.bytes);
        barrier->bytes -= bulk.bytes;
        end_phase_if_complete(barrier);
    }
    return barrier->parity != wanted.parity;
}

// --- matrix descriptors: "Matrix Descriptor" and "Shared Memory Matrix Layout", K major, 128 bytes

// Where the 16 bytes at place ``piece`` of row ``row`` of the described matrix lie.
ALWAYS_INLINE const u8* described_piece(u64 descriptor, u32 row, u32 piece) {
    const u32 start = (u32)(descriptor & 0x3fff) << 4;
    const u32 stride = (u32)(descriptor >> 32 & 0x3fff) << 4;
    const u32 linear = start + row / 8 * stride + row % 8 * 128 + 16 * piece;
    return shared_at(linear ^ (linear >> 7 & 7) << 4);
}
template <bool SIGNED>
ALWAYS_INLINE void load_described(Numbers& to, u64 descriptor, u32 row) {
    load_numbers<SIGNED>(to, described_piece(descriptor, row, 0),
                         described_piece(descriptor, row, 1));
}
inline void require_known_swizzle(u64 descriptor) {
    require(descriptor >> 62 == 1 && (descriptor >> 49 & 7) == 0,
            "a matrix descriptor with another swizzle than that of 128 bytes");
}

template <int N, bool A_SIGNED, bool B_SIGNED>
inline void multiply_described(i32* d, u64 a, u64 b) {
    require_known_swizzle(a);
    require_known_swizzle(b);
    const u32 warp = current / 32 % 4, lane = current % 32;
    Numbers upper, lower;
    load_described<A_SIGNED>(upper, a, 16 * warp + lane / 4);
    load_described<A_SIGNED>(lower, a, 16 * warp + lane / 4 + 8);
    for (u32 j = 0; j < N / 8; j++)
        for (u32 r = 0; r < 2; r++) {
            Numbers column;
            load_described<B_SIGNED>(column, b, 8 * j + 2 * (lane % 4) + r);
            d[4 * j + r] = add_products(d[4 * j + r], upper, column);
            d[4 * j + 2 + r] = add_products(d[4 * j + 2 + r], lower, column);
        }
}

}  // namespace host

template <bool A_SIGNED, bool B_SIGNED>
inline void mma_m16n8k32(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    host::Matrices& whole = host::next_matrices();
    const u32 group = lane_of_thread() / 4, t = lane_of_thread() % 4;
    // "Matrix Fragments for mma.m16n8k32": the four elements of a register are neighbours.
    for (u32 r = 0; r < 4; r++)
        memcpy(&whole.a[group + 8 * (r % 2)][4 * t + 16 * (r / 2)], &a[r], 4);
    for (u32 r = 0; r < 2; r++) memcpy(&whole.b[group][4 * t + 16 * r], &b[r], 4);
    wait_for_warp(0xffffffffu);
    host::Numbers rows[2], columns[2];
    for (u32 i = 0; i < 2; i++) {
        const u8 *const row = whole.a[group + 8 * i], *const column = whole.b[2 * t + i];
        host::load_numbers<A_SIGNED>(rows[i], row, row + 16);
        host::load_numbers<B_SIGNED>(columns[i], column, column + 16);
    }
    for (u32 i = 0; i < 4; i++) d[i] = host::add_products(d[i], rows[i / 2], columns[i % 2]);
}

inline void ldmatrix_x4(u32& r0, u32& r1, u32& r2, u32& r3, u32 row) {
    host::Matrices& whole = host::next_matrices();
    const u32 lane = lane_of_thread();
    host::require(row % 16 == 0, "a row of ldmatrix that is not aligned to 16 bytes");
    whole.rows[lane] = row;
    wait_for_warp(0xffffffffu);
    u32 banks = 0;
    for (u32 i = 0; i < 8; i++) banks |= 1u << (whole.rows[lane / 8 * 8 + i] / 16 % 8);
    host::require(banks == 255, "rows of ldmatrix in the same banks");
    u32* const results[4] = {&r0, &r1, &r2, &r3};
    for (u32 i = 0; i < 4; i++)
        *results[i] = *(const u32*)host::shared_at(whole.rows[8 * i + lane / 4] + 4 * (lane % 4));
}

inline void copy_async_16(u32 to, const void* from) {
    void* const target = host::shared_at(to);
    memset(target, 0x5a, 16);
    host::copies_of_threads[host::current].add({target, from});
}
inline void copy_async_16_or_zeros(u32 to, const void* from, bool real) {
    copy_async_16(to, real ? from : host::ZEROS);
}
inline void copy_async_commit() { host::copies_of_threads[host::current].commit(); }
template <int PENDING>
inline void copy_async_wait() {
    host::copies_of_threads[host::current].land(
        PENDING, [](host::Copy copy) { memcpy(copy.to, copy.from, 16); });
}

inline void mbarrier_init(u32 barrier, u32 arrivals) {
    if (host::bulk_serial != host::block_serial) host::bulk_count = 0;
    host::bulk_serial = host::block_serial;
    *host::barrier_at(barrier) = {arrivals, arrivals, 0, 0};
}
inline void mbarrier_init_fence() {}
inline void proxy_fence() {}
inline void mbarrier_arrive(u32 barrier) {
    host::Barrier* const at = host::barrier_at(barrier);
    host::require(at->pending > 0, "more arrivals at an mbarrier than it waits for");
    at->pending -= 1;
    host::end_phase_if_complete(at);
}
inline void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
    host::barrier_at(barrier)->bytes += bytes;
    mbarrier_arrive(barrier);
}
inline void mbarrier_wait(u32 barrier, u32 parity) {
    host::Phase phase = {host::barrier_at(barrier), parity};
    host::wait_until(host::is_over, &phase);
}
inline void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    host::require(to % 16 == 0 && bytes % 16 == 0 && (u64)from % 16 == 0,
                  "a bulk copy that is not aligned to 16 bytes");
    host::require(host::bulk_count < 256, "more in flight than this emulation holds");
    host::bulk_count %= 256;
    unsigned char* const target = host::shared_at(to);
    memset(target, 0x5a, bytes);
    host::bulks[host::bulk_count++] = {target, from, bytes, host::barrier_at(barrier)};
}

template <int REGISTERS>
inline void give_registers() {}
template <int REGISTERS>
inline void take_registers() {}
inline void wgmma_fence() {}
inline void wgmma_commit() { host::products_of_threads[host::current].commit(); }
template <int PENDING>
inline void wgmma_wait() {
    host::products_of_threads[host::current].land(
        PENDING, [](host::Product product) { product.multiply(product.d, product.a, product.b); });
}
template <int N, bool A_SIGNED, bool B_SIGNED>
inline void wgmma_m64k32(i32 (&d)[N / 2], u64 a, u64 b) {
    host::products_of_threads[host::current].add(
        {host::multiply_described<N, A_SIGNED, B_SIGNED>, d, a, b});
}
