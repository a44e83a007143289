// state_leaf: leaf hash of one state tensor, H_state(0x00 || canonical CBOR of its description).
//
// All of the encoding but the digest is known ahead: the bytes before it, with the leaf's mark, and
// those after it.
#include "blake3.cuh"

extern "C" __global__ void state_leaf(i64 count, const u8* context, i64 context_bytes,
                                      const u8* before, i64 before_bytes, const u8* digest,
                                      const u8* after, i64 after_bytes, u8* out) {
    if (INDEX() >= count) return;
    blake3::Hasher hasher;
    hasher.start_domain(context, context_bytes);
    hasher.add(before, before_bytes);
    hasher.add(digest, blake3::DIGEST_BYTES);
    hasher.add(after, after_bytes);
    hasher.finish_digest(out);
}

// --- fast: all leaves of a state in one launch

// Where a leaf's bytes before the digest begin in the texts, where those after it, and their end.
struct LeafText {
    i64 before;
    i64 after;
    i64 end;
};

extern "C" __global__ void state_leaves(i64 count, const u8* context, i64 context_bytes,
                                        const LeafText* rows, const u8* texts,
                                        const blake3::Place* places, u8* leaves) {
    const i64 i = INDEX();
    if (i >= count) return;
    const LeafText row = rows[i];
    blake3::Hasher hasher;
    hasher.start_domain(context, context_bytes);
    hasher.add(texts + row.before, row.after - row.before);
    hasher.add(places[i].data, blake3::DIGEST_BYTES);
    hasher.add(texts + row.after, row.end - row.after);
    hasher.finish_digest(leaves + i * blake3::DIGEST_BYTES);
}
