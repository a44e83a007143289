// batch_digest: H_batch(digest of x || digest of y).
#include "blake3.cuh"

extern "C" __global__ void batch_digest(i64 count, const u8* context, i64 context_bytes,
                                        const u8* x, const u8* y, u8* out) {
    if (INDEX() >= count) return;
    blake3::Hasher hasher;
    hasher.start_domain(context, context_bytes);
    hasher.add(x, blake3::DIGEST_BYTES);
    hasher.add(y, blake3::DIGEST_BYTES);
    hasher.finish_digest(out);
}
