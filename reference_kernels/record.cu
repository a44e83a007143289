// record: leaf hash of a step's record in the run log, H_log(0x00 || canonical CBOR of it).
#include "blake3.cuh"

constexpr u32 CBOR_UNSIGNED = 0, CBOR_NEGATIVE = 1, CBOR_BYTES = 2, CBOR_TEXT = 3, CBOR_MAP = 5;

// The head of an item in its shortest form.
__device__ inline void add_head(blake3::Hasher& hasher, u32 major, u64 argument) {
    int bytes = 0;
    if (argument >= 24) bytes = 1;
    if (argument >> 8 != 0) bytes = 2;
    if (argument >> 16 != 0) bytes = 4;
    if (argument >> 32 != 0) bytes = 8;
    const u32 info = bytes == 0 ? (u32)argument
                     : bytes == 1 ? 24
                     : bytes == 2 ? 25
                     : bytes == 4 ? 26
                                  : 27;
    hasher.add_byte((u8)(major << 5 | info));
    for (int i = bytes - 1; i >= 0; i--) hasher.add_byte((u8)(argument >> (8 * i)));
}

__device__ inline void add_int(blake3::Hasher& hasher, i64 value) {
    // -1 - value of a negative number is all its bits turned.
    add_head(hasher, value < 0 ? CBOR_NEGATIVE : CBOR_UNSIGNED, (u64)(value < 0 ? ~value : value));
}

__device__ inline void add_key(blake3::Hasher& hasher, const char* text) {
    i64 length = 0;
    while (text[length] != 0) length++;
    add_head(hasher, CBOR_TEXT, (u64)length);
    hasher.add((const u8*)text, length);
}

__device__ inline void add_bytes(blake3::Hasher& hasher, const u8* bytes, i64 length) {
    add_head(hasher, CBOR_BYTES, (u64)length);
    hasher.add(bytes, length);
}

// The record has the state root every ``commit_every`` steps, otherwise no bytes.
extern "C" __global__ void record(i64 count, const u8* context, i64 context_bytes, i64 commit_every,
                                  const i64* step, const u8* batch_digest, const i64* loss,
                                  const u8* state_root, u8* out) {
    if (INDEX() >= count) return;
    blake3::Hasher hasher;
    hasher.start_domain(context, context_bytes);
    hasher.add_byte(blake3::LEAF_MARK);
    add_head(hasher, CBOR_MAP, 4);  // keys in the order of their encodings: shorter ones first
    add_key(hasher, "loss");
    add_int(hasher, loss[0]);
    add_key(hasher, "step");
    add_int(hasher, step[0]);
    add_key(hasher, "state_root");
    add_bytes(hasher, state_root, step[0] % commit_every == 0 ? blake3::DIGEST_BYTES : 0);
    add_key(hasher, "batch_digest");
    add_bytes(hasher, batch_digest, blake3::DIGEST_BYTES);
    hasher.finish_digest(out);
}
