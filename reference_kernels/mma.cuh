// Tensor cores and asynchronous copies: thin names over PTX instructions.
//
// On the host the same names are emulated by host/tensor_core.h, whose code follows the layouts
// that the PTX ISA states, in the sections named here; what copies and multiplies asynchronously is
// done there as late as the waits allow.  Limbs of 8 bits are signed or unsigned as the template
// says; sums are int32 and must not overflow.
#pragma once

#include "law.cuh"

#ifdef CUDA_ON_CPU
#include "host/tensor_core.h"
#else

// Address in the window of shared memory, as instructions take it.
__device__ inline u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// One store of 128 bits to device memory, which the compiler would split where it loses sight of
// the alignment.
__device__ inline void store_16_bytes(void* at, i64 low, i64 high) {
    asm volatile("st.global.v2.b64 [%0], {%1, %2};\n" ::"l"(__cvta_generic_to_global(at)), "l"(low),
                 "l"(high)
                 : "memory");
}

// --- sm_80: "Matrix Fragments for mma.m16n8k32", with .s8 and .u8

// d += a b for a [16, 32] by rows and b [32, 8] by columns.  With group = lane / 4 and t = lane %
// 4: a[r], byte i: row group + 8 (r % 2), k = 4 t + i + 16 (r / 2) b[r], byte i: k = 4 t + i + 16
// r, column group d[r]: row group + 8 (r / 2), column 2 t + r % 2
template <bool A_SIGNED, bool B_SIGNED>
__device__ inline void mma_m16n8k32(i32 (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#define MMA(A, B)                                                                                 \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." A "." B                                 \
                 ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"         \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
    if constexpr (A_SIGNED && B_SIGNED) MMA("s8", "s8");
    else if constexpr (A_SIGNED) MMA("s8", "u8");
    else if constexpr (B_SIGNED) MMA("u8", "s8");
    else MMA("u8", "u8");
#undef MMA
}

// "ldmatrix", .x4 without .trans: lane l names row l % 8 (16 bytes) of matrix l / 8; afterwards
// r[i] has bytes 4 (lane % 4) ... + 3 of row lane / 4 of matrix i.
__device__ inline void ldmatrix_x4(u32& r0, u32& r1, u32& r2, u32& r3, u32 row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                 : "r"(row)
                 : "memory");
}

// "cp.async": 16 bytes into shared memory; groups complete in order.
__device__ inline void copy_async_16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from) : "memory");
}
// The same, or 16 zeros; ``from`` must be a valid address even then.
__device__ inline void copy_async_16_or_zeros(u32 to, const void* from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
                 "r"(real ? 16 : 0)
                 : "memory");
}
__device__ inline void copy_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int PENDING>
__device__ inline void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

// --- sm_90: "mbarrier"; a phase ends when its arrivals and its bytes are complete

__device__ inline void mbarrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}
// Makes initialised barriers visible to the bulk copies.
__device__ inline void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ inline void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
__device__ inline void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}
// What this thread has written to shared memory, and sees there, may be read by bulk copies and
// wgmma of those that it tells so.
__device__ inline void proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
// Waits until the phase of this parity is over; the phase before the first has parity 1.
__device__ inline void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred over;\nAGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@over bra DONE;\nbra AGAIN;\nDONE:\n}\n" ::"r"(barrier), "r"(parity)
        : "memory");
}

// "cp.async.bulk": contiguous bytes into shared memory, counted by the barrier; multiples of 16.
__device__ inline void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1], %2, [%3];\n" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// --- sm_90a: "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"

template <int REGISTERS>
__device__ inline void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(REGISTERS));
}
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int PENDING>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}

#define D4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D32 D16(0), D16(16)
#define D64 D32, D16(32), D16(48)
#define D128 D64, D16(64), D16(80), D16(96), D16(112)
#define P32                                                                                      \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
    "%25,%26,%27,%28,%29,%30,%31"
#define P64                                                                                       \
    P32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%" \
        "53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define P128                                                                                     \
    P64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,"  \
        "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,"  \
        "%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,"  \
        "%122,%123,%124,%125,%126,%127"
// REGISTERS is N / 2; the descriptors follow them among the operands, as AT_A and AT_B.
#define WGMMA(N, A, B, REGISTERS, AT_A, AT_B)                                                    \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, 1, 0;\n"                                \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.s32." A "." B " {" P##REGISTERS     \
                 "}, %" #AT_A ", %" #AT_B ", adds;\n}\n"                                         \
                 : D##REGISTERS                                                                  \
                 : "l"(a), "l"(b))
#define WGMMA_OF_SIGNS(N, REGISTERS, AT_A, AT_B)                                       \
    if constexpr (A_SIGNED && B_SIGNED) WGMMA(N, "s8", "s8", REGISTERS, AT_A, AT_B);   \
    else if constexpr (A_SIGNED) WGMMA(N, "s8", "u8", REGISTERS, AT_A, AT_B);          \
    else if constexpr (B_SIGNED) WGMMA(N, "u8", "s8", REGISTERS, AT_A, AT_B);          \
    else WGMMA(N, "u8", "u8", REGISTERS, AT_A, AT_B)

// d += a b for a [64, 32] by rows and b [32, N] by columns, both in shared memory ("Matrix
// Descriptor"), done by four warps.  d[4 j + r]: row 16 warp + lane / 4 + 8 (r / 2), column
// 8 j + 2 (lane % 4) + r % 2 ("Register Fragments for wgmma.mma_async.m64nNk32", matrix D).
template <int N, bool A_SIGNED, bool B_SIGNED>
__device__ inline void wgmma_m64k32(i32 (&d)[N / 2], u64 a, u64 b) {
    static_assert(N == 64 || N == 128 || N == 256, "instances that are written out");
    if constexpr (N == 64) { WGMMA_OF_SIGNS(64, 32, 32, 33); }
    if constexpr (N == 128) { WGMMA_OF_SIGNS(128, 64, 64, 65); }
    if constexpr (N == 256) { WGMMA_OF_SIGNS(256, 128, 128, 129); }
}
#undef WGMMA_OF_SIGNS
#undef WGMMA
#undef P128
#undef P64
#undef P32
#undef D128
#undef D64
#undef D32
#undef D16
#undef D4

#endif  // sm_90a
#endif  // the GPU

// "Matrix Descriptor": a tile whose rows (of A, columns of B) are 128 bytes, one after the
// other, swizzled by as many bytes: groups of 8 rows lie 1024 bytes apart.  The address is aligned
// to 16, the tile itself to such a group.
__device__ inline u64 describe_tile(u32 address) {
    constexpr u64 STRIDE = 8 * 128, SWIZZLE = 1;
    return (u64)(address >> 4 & 0x3fff) | 1ull << 16 | (STRIDE >> 4) << 32 | SWIZZLE << 62;
}
