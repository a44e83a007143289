// tensor_digest: plain BLAKE3 of a tensor's little-endian row-major bytes, what b3sum prints.
//
// The fast kernels hash several tensors at once: digest_chunks gives the value of every chunk, a
// thread a chunk, and digest_trees, launched again for every ten levels, joins them.
//
// What bounds them is instructions.  A block of 64 bytes takes 7 rounds of 8 mixes of 10 of them
// (logical, shifts, sums of three terms; 2 more, sums of two terms, go to the idle multipliers) and
// some 70 to bring, stage and finish it, 630 in all; joining values adds 7 in 100.  An H200 does 64
// a clock on each of 132 multiprocessors, at up to 1.98 GHz: at most
// 64 / (630 * 1.07) * 64 * 132 * 1.98e9 = 1.6e12 bytes a second; its memory would give 4.8e12.
// This is counted from the compiler's output, not measured.
#include "blake3.cuh"
#include "chain.cuh"

extern "C" __global__ void tensor_digest(i64 count, const u8* data, i64 length, u8* out) {
    if (INDEX() >= count) return;
    blake3::Hasher hasher;
    hasher.start();
    hasher.add(data, length);
    hasher.finish_digest(out);
}

// --- fast

// What is known of a tensor before it is placed: its first chunk among those of all, its bytes.
struct DigestShape {
    i64 first_chunk;
    i64 length;
};
// One launch of digest_trees as far as one tensor goes: its first block, its ``size`` values, from
// number ``source`` of all values on, 1024 a block, and where their results go.
struct DigestLevel {
    i64 first_block;
    i64 tensor;
    i64 source;
    i64 size;
    i64 target;
};

constexpr int DIGEST_THREADS = 128, DIGEST_GROUP = 1024;
// Bytes of each chunk in shared memory at a time, in pieces of 16 bytes; one piece more keeps
// neighbouring chunks off the same banks.
constexpr int STAGE_BYTES = 128, PIECES = STAGE_BYTES / 16, STAGE_ROW = PIECES + 1;

// The place of one tensor, for a launch that has it as an operand.
extern "C" __global__ void digest_place(i64 count, const u8* data, u8* digest,
                                        blake3::Place* places) {
    if (INDEX() >= count) return;
    places[0].data = data;
    places[0].digest = digest;
}

// The last of the sorted rows whose first i64 is at most ``value``.
template <class Row>
__device__ inline i64 find_row(const Row* rows, i64 count, i64 value) {
    i64 low = 0, high = count;
    while (high - low > 1) {
        const i64 middle = (low + high) / 2;
        if (*(const i64*)&rows[middle] <= value) low = middle;
        else high = middle;
    }
    return low;
}

// 16 bytes of a chunk of which ``left`` remain from here on; zeros after its end.
__device__ inline Pack<u32, 4> load_piece(const u8* data, i64 left) {
    if (left >= 16) {
        const uint4 words = __ldg((const uint4*)data);
        return {{words.x, words.y, words.z, words.w}};
    }
    Pack<u32, 4> piece = {{0, 0, 0, 0}};
#pragma unroll
    for (int i = 0; i < 15; i++)
        if (i < left) piece.v[i / 4] |= (u32)data[i] << (8 * (i % 4));
    return piece;
}

// Values of all chunks of all tensors, a thread a chunk; of a tensor of one chunk, its digest.
//
// A thread's chunk lies 1024 bytes from its neighbour's, so the threads of a block first bring the
// next 128 bytes of each of their chunks to shared memory together, eight threads a chunk.
extern "C" __global__ void __launch_bounds__(DIGEST_THREADS)
    digest_chunks(i64 chunks, i64 tensors, const DigestShape* shapes, const blake3::Place* places,
                  u32* values) {
    __shared__ Pack<u32, 4> stage[DIGEST_THREADS * STAGE_ROW];
    __shared__ const u8* starts[DIGEST_THREADS];
    __shared__ int lengths[DIGEST_THREADS];

    const i64 chunk = INDEX();
    const int thread = (int)threadIdx.x;
    i64 tensor = 0, index = 0;
    int length = 0;
    const u8* start = nullptr;
    if (chunk < chunks) {
        tensor = find_row(shapes, tensors, chunk);
        index = chunk - shapes[tensor].first_chunk;
        const i64 left = shapes[tensor].length - index * blake3::CHUNK_BYTES;
        length = (int)(left < blake3::CHUNK_BYTES ? left : blake3::CHUNK_BYTES);
        start = places[tensor].data + index * blake3::CHUNK_BYTES;
    }
    starts[thread] = start;
    lengths[thread] = length;
    __syncthreads();

    const bool is_whole = chunk < chunks && index == 0 &&
                          shapes[tensor].length <= blake3::CHUNK_BYTES;
    const int blocks = length == 0 ? 1 : (length + 63) / 64;
    u32 value[8];
    blake3::set_initial(value);
#pragma unroll 1
    for (int at = 0; at < blake3::CHUNK_BYTES; at += STAGE_BYTES) {
        const int offset = at + thread % PIECES * 16;
#pragma unroll
        for (int part = 0; part < PIECES; part++) {
            const int row = part * (DIGEST_THREADS / PIECES) + thread / PIECES;
            const int left = lengths[row] - offset;
            Pack<u32, 4> piece = {{0, 0, 0, 0}};
            if (left > 0) piece = load_piece(starts[row] + offset, left);
            stage[row * STAGE_ROW + thread % PIECES] = piece;
        }
        __syncthreads();
#pragma unroll 1
        for (int half = 0; half < STAGE_BYTES / 64; half++) {
            const int block = at / 64 + half;
            if (block < blocks) {
                u32 words[16];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const Pack<u32, 4> piece = stage[thread * STAGE_ROW + half * 4 + i];
#pragma unroll
                    for (int k = 0; k < 4; k++) words[4 * i + k] = piece.v[k];
                }
                u32 flags = block == 0 ? blake3::CHUNK_START : 0;
                if (block == blocks - 1) flags |= blake3::CHUNK_END | (is_whole ? blake3::ROOT : 0);
                const int bytes = length - block * 64 < 64 ? length - block * 64 : 64;
                blake3::compress(value, words, (u64)index, (u32)bytes, flags);
            }
        }
        __syncthreads();
    }
    if (chunk >= chunks) return;
    if (is_whole) blake3::store_digest(places[tensor].digest, value);
    Pack<u32, 4>* target = (Pack<u32, 4>*)(values + chunk * 8);
    target[0] = {{value[0], value[1], value[2], value[3]}};
    target[1] = {{value[4], value[5], value[6], value[7]}};
}

// Joins up to 1024 values, which make a subtree, to one; the root goes to where the digest belongs.
//
// BLAKE3's tree splits at powers of two, so it is also made by joining neighbours level by level, a
// last one without a neighbour staying as it is.  The node at ``left`` is the first of its leaves.
extern "C" __global__ void __launch_bounds__(DIGEST_THREADS)
    digest_trees(i64 levels, const DigestLevel* rows, const blake3::Place* places,
                 u32* values) {
    __shared__ Pack<u32, 4> pieces[DIGEST_GROUP * 2];
    u32* nodes = (u32*)pieces;

    const DigestLevel level = rows[find_row(rows, levels, (i64)blockIdx.x)];
    const i64 group = (i64)blockIdx.x - level.first_block;
    const i64 first = group * DIGEST_GROUP;
    const int size = (int)(level.size - first < DIGEST_GROUP ? level.size - first : DIGEST_GROUP);
    const Pack<u32, 4>* given = (const Pack<u32, 4>*)(values + (level.source + first) * 8);
    for (int i = (int)threadIdx.x; i < size * 2; i += DIGEST_THREADS) pieces[i] = given[i];
    __syncthreads();

    const bool has_root = level.size <= DIGEST_GROUP;
    u32 key[8];
    blake3::set_initial(key);
    for (int stride = 1; stride < size; stride *= 2) {
        const u32 flags = has_root && 2 * stride >= size ? blake3::ROOT : 0;
#pragma unroll 1
        for (int left = 2 * stride * (int)threadIdx.x; left + stride < size;
             left += 2 * stride * DIGEST_THREADS) {
            u32 value[8];
            blake3::join(value, nodes + left * 8, nodes + (left + stride) * 8, key, flags);
#pragma unroll
            for (int i = 0; i < 8; i++) nodes[left * 8 + i] = value[i];
        }
        __syncthreads();
    }
    if (threadIdx.x != 0) return;
    if (has_root) {
        blake3::store_digest(places[level.tensor].digest, nodes);
    } else {
        for (int i = 0; i < 2; i++)
            ((Pack<u32, 4>*)(values + (level.target + group) * 8))[i] = pieces[i];
    }
}
