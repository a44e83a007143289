// state_root: root of the RFC 9162 tree over leaf hashes, which come in the order of their names.
#include "blake3.cuh"

// Copies up to eight leaf hashes to their places among all: a graph has any number of them, a
// kernel only so many parameters.  ``count`` is bytes.
extern "C" __global__ void state_root_gather(i64 count, i64 first, const u8* leaf0, const u8* leaf1,
                                             const u8* leaf2, const u8* leaf3, const u8* leaf4,
                                             const u8* leaf5, const u8* leaf6, const u8* leaf7,
                                             u8* leaves) {
    const i64 i = INDEX();
    if (i >= count) return;
    const u8* given[8] = {leaf0, leaf1, leaf2, leaf3, leaf4, leaf5, leaf6, leaf7};
    const i64 length = blake3::DIGEST_BYTES;
    leaves[first * length + i] = given[i / length][i % length];
}

// The tree splits at powers of two, so it is also made by joining neighbours level by level, a last
// one without a neighbour staying as it is.  ``leaves`` is overwritten.
extern "C" __global__ void state_root(i64 count, const u8* context, i64 context_bytes, u8* leaves,
                                      i64 size, u8* out) {
    if (INDEX() >= count) return;
    const i64 length = blake3::DIGEST_BYTES;
    u32 key[8];
    blake3::Hasher hasher;
    hasher.derive_key(context, context_bytes, key);
    for (; size > 1; size = (size + 1) / 2) {
        for (i64 pair = 0; pair < size / 2; pair++) {
            hasher.start_keyed(key, blake3::DERIVE_KEY_MATERIAL);
            hasher.add_byte(blake3::NODE_MARK);
            hasher.add(leaves + 2 * pair * length, 2 * length);
            hasher.finish_digest(leaves + pair * length);
        }
        if (size % 2 == 1)
            for (i64 i = 0; i < length; i++)
                leaves[size / 2 * length + i] = leaves[(size - 1) * length + i];
    }
    if (size == 0) {
        hasher.start_keyed(key, blake3::DERIVE_KEY_MATERIAL);
        hasher.finish_digest(out);
    } else {
        for (i64 i = 0; i < length; i++) out[i] = leaves[i];
    }
}

// --- fast: one block, a thread a node of a level

// The node at ``left`` has the place of the first of its leaves, so that no thread writes what
// another reads, and a last one without a neighbour stays where it is.
extern "C" __global__ void state_root_levels(i64 size, const u8* context, i64 context_bytes,
                                             u8* leaves, u8* out) {
    __shared__ u32 key[8];
    const i64 length = blake3::DIGEST_BYTES;
    blake3::Hasher hasher;
    // The last thread, so that a run of one thread after another shows if the barrier is missing.
    if (threadIdx.x == blockDim.x - 1) hasher.derive_key(context, context_bytes, key);
    __syncthreads();
    for (i64 stride = 1; stride < size; stride *= 2) {
        for (i64 left = 2 * stride * threadIdx.x; left + stride < size;
             left += 2 * stride * blockDim.x) {
            hasher.start_keyed(key, blake3::DERIVE_KEY_MATERIAL);
            hasher.add_byte(blake3::NODE_MARK);
            hasher.add(leaves + left * length, length);
            hasher.add(leaves + (left + stride) * length, length);
            hasher.finish_digest(leaves + left * length);
        }
        __syncthreads();
    }
    if (threadIdx.x != 0) return;
    if (size == 0) {
        hasher.start_keyed(key, blake3::DERIVE_KEY_MATERIAL);
        hasher.finish_digest(out);
    } else {
        for (i64 i = 0; i < length; i++) out[i] = leaves[i];
    }
}
