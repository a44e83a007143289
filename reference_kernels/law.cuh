// The number format on the device: dtypes, rounding shift, saturation.  Twin of vtrain/spec/number.py.
//
// Compiled by NVRTC, and as plain C++ behind host/cuda_on_cpu.h.  No standard header is needed.
// Arithmetic is modulo 2^64, as in the law: through unsigned, since signed overflow is undefined.
#pragma once

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// Codes of dtypes, the same in vtrain/engines/cuda/launch.py.
constexpr i64 U8 = 0, I8 = 1, I16 = 2, I32 = 3, I64 = 4;

// Names the dynamic shared memory of a launch, as bytes; on the host it is one array of the shim.
#ifdef CUDA_ON_CPU
#define SHARED_BYTES(name) unsigned char* const name = dynamic_shared
#else
#define SHARED_BYTES(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

// This thread's output; kernels return where it is beyond their count.
#define INDEX() ((i64)blockIdx.x * (i64)blockDim.x + (i64)threadIdx.x)

__device__ inline i64 load(const void* data, i64 dtype, i64 index) {
    switch (dtype) {
        case U8: return ((const u8*)data)[index];
        case I8: return ((const i8*)data)[index];
        case I16: return ((const i16*)data)[index];
        case I32: return ((const i32*)data)[index];
        default: return ((const i64*)data)[index];
    }
}

__device__ inline void store(void* data, i64 dtype, i64 index, i64 value) {
    switch (dtype) {
        case U8: ((u8*)data)[index] = (u8)value; break;
        case I8: ((i8*)data)[index] = (i8)value; break;
        case I16: ((i16*)data)[index] = (i16)value; break;
        case I32: ((i32*)data)[index] = (i32)value; break;
        default: ((i64*)data)[index] = value;
    }
}

__device__ inline i64 wrap_add(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
__device__ inline i64 wrap_sub(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
__device__ inline i64 wrap_mul(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }

// x 2^count; 0 from 64 on.
__device__ inline i64 shift_left(i64 x, i64 count) {
    return count >= 64 ? 0 : (i64)((u64)x << count);
}

// The rounding shift floor((x + 2^(s-1)) / 2^s), half up; x 2^-s for s <= 0.  Never forms the sum.
__device__ inline i64 rs(i64 x, i64 shift) {
    if (shift <= 0) return shift_left(x, -shift);
    if (shift >= 64) return 0;
    return (x >> shift) + ((x >> (shift - 1)) & 1);
}

__device__ inline i64 clamp(i64 x, i64 lo, i64 hi) { return x < lo ? lo : x > hi ? hi : x; }

// What narrowing to a dtype clamps to; int64 passes through.
__device__ inline i64 saturate(i64 x, i64 dtype) {
    switch (dtype) {
        case I8: return clamp(x, -127, 127);
        case I16: return clamp(x, -32639, 32639);
        case I32: return clamp(x, -2147483647, 2147483647);
        default: return x;
    }
}

// Stores the saturated value, and counts it if that changed it.
__device__ inline void store_saturated(void* out, i64 dtype, i64 index, i64 value, u64* saturated) {
    const i64 narrow = saturate(value, dtype);
    if (narrow != value) atomicAdd(saturated, 1ull);
    store(out, dtype, index, narrow);
}
