// dropout_mask: ``value`` where the draw of an element is below ``keep``, else 0.
#include "philox.cuh"

constexpr i64 LAST_MASKED_STEP = 1ll << 40;

// 16 bits of the block of eight elements, under a counter whose second word no sample order has.
// Steps outside [0, 2^40], which no legal graph has, count as the nearest.
__device__ inline u32 draw(u64 seed, i64 t, u32 site, u64 element) {
    const u64 step = (u64)clamp(t, 0, LAST_MASKED_STEP), block = element / 8;
    const u32 high = (u32)(step >> 32 | block >> 32 << 16);
    const Words4 counter = {{(u32)block, 0x80000000u | site, (u32)step, high}};
    const u32 word = philox(counter, (u32)seed, (u32)(seed >> 32)).word[element % 8 / 2];
    return word >> (16 * (element % 2)) & 0xFFFFu;
}

extern "C" __global__ void dropout_mask(i64 count, const i64* t, i64 seed, i64 site, i64 keep,
                                        i64 value, i16* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    out[i] = draw((u64)seed, t[0], (u32)site, (u64)i) < (u32)keep ? (i16)value : 0;
}
