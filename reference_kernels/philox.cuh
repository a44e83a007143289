// Philox4x32-10 and the order of samples.  Twin of vtrain/spec/philox.py and vtrain/spec/order.py,
// which tell what is computed and why.
#pragma once

#include "law.cuh"

struct Words4 {
    u32 word[4];
};

// Four random words for one counter (four words) and key (two words).
__device__ inline Words4 philox(Words4 counter, u32 key0, u32 key1) {
    u32 c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
    for (int round = 0; round < 10; round++) {
        const u64 product0 = 0xD2511F53ull * c0, product1 = 0xCD9E8D57ull * c2;
        c0 = (u32)(product1 >> 32) ^ c1 ^ key0;
        c1 = (u32)product1;
        c2 = (u32)(product0 >> 32) ^ c3 ^ key1;
        c3 = (u32)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// Bits of each half of the Feistel network: the least h >= 1 such that 2h bits hold n - 1.
__device__ inline int half_bits(u64 n) {
    int half = 1;
    while (half < 32 && (n - 1) >> (2 * half) != 0) half++;
    return half;
}

// One pass of the network over 2h bits.
__device__ inline u64 permute_once(u64 seed, u64 epoch, int half, u64 value) {
    const u64 mask = (1ull << half) - 1;
    u64 left = value >> half, right = value & mask;
    for (u32 round = 0; round < 8; round++) {
        const Words4 counter = {{(u32)right, round, (u32)epoch, (u32)(epoch >> 32)}};
        const u64 word = philox(counter, (u32)seed, (u32)(seed >> 32)).word[0];
        const u64 next = left ^ (word & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

// The sample at a position of the endless sequence of epochs of n samples each.  The network is a
// bijection, so the walk comes back into [0, n).
__device__ inline u64 sample_at(u64 seed, u64 n, u64 position) {
    const u64 epoch = position / n;
    const int half = half_bits(n);
    u64 value = position % n;
    do value = permute_once(seed, epoch, half, value);
    while (value >= n);
    return value;
}
