// BLAKE3 (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020): plain, and keyed by a context string.
//
// A message is cut into chunks of 1024 bytes, a chunk into blocks of 64.  Compressing a chunk's
// blocks one after the other gives its value, 8 words; values are joined in pairs up to the root.
#pragma once

#include "law.cuh"

namespace blake3 {

constexpr i64 BLOCK_BYTES = 64, CHUNK_BYTES = 1024, DIGEST_BYTES = 32, DIGEST_WORDS = 8;
constexpr u32 CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8;
constexpr u32 DERIVE_KEY_CONTEXT = 32, DERIVE_KEY_MATERIAL = 64;

__device__ __forceinline__ u32 rotate_right(u32 x, int count) {
    return x >> count | x << (32 - count);
}

__device__ __forceinline__ void mix(u32& a, u32& b, u32& c, u32& d, u32 x, u32 y) {
    a = a + b + x;
    d = rotate_right(d ^ a, 16);
    c = c + d;
    b = rotate_right(b ^ c, 12);
    a = a + b + y;
    d = rotate_right(d ^ a, 8);
    c = c + d;
    b = rotate_right(b ^ c, 7);
}

// The words that every hash but a keyed one starts from.
__device__ __forceinline__ void set_initial(u32* value) {
    const u32 words[8] = {0x6A09E667u, 0xBB67AE85u, 0x3C6EF372u, 0xA54FF53Au,
                          0x510E527Fu, 0x9B05688Cu, 0x1F83D9ABu, 0x5BE0CD19u};
#pragma unroll
    for (int i = 0; i < 8; i++) value[i] = words[i];
}

// value (8 words) becomes the compression of it and a block of 16 words, of which ``length`` bytes
// count.  All loops are unrolled, so that every index is known and the words stay in registers.
__device__ __forceinline__ void compress(u32* value, const u32* block, u64 counter, u32 length,
                                         u32 flags) {
    u32 v[16], m[16];
    set_initial(v + 8);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = value[i];
#pragma unroll
    for (int i = 0; i < 16; i++) m[i] = block[i];
    v[12] = (u32)counter;
    v[13] = (u32)(counter >> 32);
    v[14] = length;
    v[15] = flags;
#pragma unroll
    for (int round = 0; round < 7; round++) {
        mix(v[0], v[4], v[8], v[12], m[0], m[1]);
        mix(v[1], v[5], v[9], v[13], m[2], m[3]);
        mix(v[2], v[6], v[10], v[14], m[4], m[5]);
        mix(v[3], v[7], v[11], v[15], m[6], m[7]);
        mix(v[0], v[5], v[10], v[15], m[8], m[9]);
        mix(v[1], v[6], v[11], v[12], m[10], m[11]);
        mix(v[2], v[7], v[8], v[13], m[12], m[13]);
        mix(v[3], v[4], v[9], v[14], m[14], m[15]);
        const u32 permuted[16] = {m[2],  m[6],  m[3],  m[10], m[7],  m[0],  m[4],  m[13],
                                  m[1],  m[11], m[12], m[5],  m[9],  m[14], m[15], m[8]};
#pragma unroll
        for (int i = 0; i < 16; i++) m[i] = permuted[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) value[i] = v[i] ^ v[i + 8];
}

// The value of a node from those of its two subtrees; ``flags`` has ROOT at the top of the tree.
__device__ __forceinline__ void join(u32* value, const u32* left, const u32* right, const u32* key,
                                     u32 flags) {
    u32 block[16];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        block[i] = left[i];
        block[8 + i] = right[i];
        value[i] = key[i];
    }
    compress(value, block, 0, (u32)BLOCK_BYTES, flags | PARENT);
}

// Both as functions that are called: a hasher needs them in many places, and they are long.
__device__ __noinline__ void compress_called(u32* value, const u32* block, u64 counter, u32 length,
                                             u32 flags) {
    compress(value, block, counter, length, flags);
}

__device__ __noinline__ void join_called(u32* value, const u32* left, const u32* right,
                                         const u32* key, u32 flags) {
    join(value, left, right, key, flags);
}

__device__ __forceinline__ void store_digest(u8* out, const u32* value) {
#pragma unroll
    for (int i = 0; i < DIGEST_BYTES; i++) out[i] = (u8)(value[i / 4] >> (8 * (i % 4)));
}

// Hashes bytes as they come, in one thread: for whatever is short, and as the contract.
struct Hasher {
    u32 key[8];
    u32 flags;          // of the mode
    u32 chunk[8];       // value of the current chunk's blocks so far
    u8 block[64];       // its bytes after them; compressed only when more come
    u32 filled;         // how many
    u32 blocks;         // blocks of this chunk compressed
    u64 chunks;         // whole chunks before this one
    // Values of complete subtrees without a right neighbour, largest first.  A tensor has at most
    // 2^32 elements, 2^25 chunks.
    u32 waiting[26][8];
    int depth;          // how many

    __device__ void start_keyed(const u32* words, u32 mode) {
        for (int i = 0; i < 8; i++) key[i] = chunk[i] = words[i];
        flags = mode;
        chunks = filled = blocks = 0;
        depth = 0;
    }

    __device__ void start() {
        u32 words[8];
        set_initial(words);
        start_keyed(words, 0);
    }

    // The key of a domain, 8 words: the hash of its context string.
    __device__ __noinline__ void derive_key(const u8* context, i64 length, u32* words) {
        set_initial(words);
        start_keyed(words, DERIVE_KEY_CONTEXT);
        add(context, length);
        finish(words);
    }

    // H_domain of what is added from here on.
    __device__ void start_domain(const u8* context, i64 length) {
        u32 words[8];
        derive_key(context, length, words);
        start_keyed(words, DERIVE_KEY_MATERIAL);
    }

    __device__ __noinline__ void compress_block(u32* value, u32 more_flags) {
        u32 words[16];
        for (int i = 0; i < 16; i++) {
            words[i] = 0;
            for (u32 k = 4 * i; k < 4 * i + 4u && k < filled; k++)
                words[i] |= (u32)block[k] << (8 * (k % 4));
        }
        const u32 first = blocks == 0 ? CHUNK_START : 0;
        compress_called(value, words, chunks, filled, flags | first | more_flags);
    }

    // The current chunk is whole and not the last.
    __device__ __noinline__ void end_chunk() {
        compress_block(chunk, CHUNK_END);
        chunks++;
        // As many subtrees are complete now as their number has zeros at its end.
        for (u64 complete = chunks; complete % 2 == 0; complete /= 2)
            join_called(chunk, waiting[--depth], chunk, key, flags);
        for (int i = 0; i < 8; i++) {
            waiting[depth][i] = chunk[i];
            chunk[i] = key[i];
        }
        depth++;
        filled = blocks = 0;
    }

    __device__ void add_byte(u8 byte) {
        if (filled == BLOCK_BYTES) {
            if (blocks == CHUNK_BYTES / BLOCK_BYTES - 1) {
                end_chunk();
            } else {
                compress_block(chunk, 0);
                blocks++;
                filled = 0;
            }
        }
        block[filled++] = byte;
    }

    __device__ void add(const u8* bytes, i64 length) {
        for (i64 i = 0; i < length; i++) add_byte(bytes[i]);
    }

    __device__ __noinline__ void finish(u32* value) {
        for (int i = 0; i < 8; i++) value[i] = chunk[i];
        compress_block(value, depth == 0 ? CHUNK_END | ROOT : CHUNK_END);
        while (depth > 0) {
            depth--;
            join_called(value, waiting[depth], value, key, depth == 0 ? flags | ROOT : flags);
        }
    }

    __device__ void finish_digest(u8* out) {
        u32 value[8];
        finish(value);
        store_digest(out, value);
    }
};

// Where a tensor's bytes are, aligned to 16, and where its digest goes.  Kernels that hash many
// tensors read a table of these.
struct Place {
    const u8* data;
    u8* digest;
};

// The marks before a leaf's data and a node's two hashes in a tree of RFC 9162.
constexpr u8 LEAF_MARK = 0, NODE_MARK = 1;

}  // namespace blake3
