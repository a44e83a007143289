// Threads of a block as fibers of one thread of the operating system, for kernels with barriers.
//
// A fiber takes the threads of a warp one after the other.  A thread that has to wait keeps its
// fiber, and another fiber goes on with the next thread: a kernel without barriers never switches.
// Nothing marks a kernel as one with barriers; a kernel calls, as on the GPU,
//   __syncthreads, __syncwarp, the shuffles and votes     (cuda_on_cpu.h)
//   mma_m16n8k32, mbarrier_wait, ...     (mma.cuh, by way of tensor_core.h)
// and those come to wait_for_block, wait_for_warp and wait_until below.
//
// The schedule is greedy: a warp runs until all its threads wait, then the next one, from the first
// to the last or, after run_backwards(1), from the last to the first.  Under both, a thread that
// reads what another warp has yet to write, or overwrites what it has yet to read, is far ahead of
// it: a forgotten barrier shows as wrong bits in one of the two.
//
// Where all wait and none can go on, run_block returns false.
#pragma once

#undef _FORTIFY_SOURCE  // its longjmp takes a jump to another stack for an error
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

namespace host {

constexpr int MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 256 * 1024;

enum Waiting { RUNS, FOR_BLOCK, FOR_WARP, FOR_CONDITION, ENDED };

struct Fiber {
    jmp_buf place;
    ucontext_t start;  // where it comes from: later switches are jumps, without a system call
    void* stack;
    bool alive;
    Fiber* next_idle;
};

// One thread of the block at hand.
struct Thread {
    Dim3 index;
    Fiber* fiber;
    Waiting waiting;
    unsigned int mask;
    bool (*ready)(void*);
    void* of_ready;
};

static Fiber fibers[MAX_THREADS];
static Fiber* idle;
static Thread threads[MAX_THREADS];
static unsigned long long slots_of_warps[MAX_THREADS / 32][32];
static jmp_buf scheduler;
static ucontext_t scheduler_start;
static unsigned int thread_count, current, next_thread, end_thread;
static unsigned long long block_serial;  // which block of all this is: fresh ones reset their state
static bool backwards;
static void (*body)(const unsigned long long*);
static const unsigned long long* body_slots;

static void set_current(unsigned int index) {
    current = index;
    threadIdx = threads[index].index;
}

// Numbers the threads of blockDim: once a launch, since a division a thread takes as long as many a
// kernel.
static void number_threads() {
    thread_count = 0;
    for (unsigned int z = 0; z < blockDim.z; z++)
        for (unsigned int y = 0; y < blockDim.y; y++)
            for (unsigned int x = 0; x < blockDim.x; x++) threads[thread_count++].index = {x, y, z};
}

__attribute__((noinline)) static void switch_to_scheduler() {
    if (_setjmp(threads[current].fiber->place) == 0) _longjmp(scheduler, 1);
}

// The life of a fiber: threads of the warp at hand as long as there are some, then the idle list.
static void run_fiber() {
    for (;;) {
        Fiber* const mine = idle;
        idle = mine->next_idle;
        while (next_thread < end_thread) {
            set_current(next_thread++);
            threads[current].fiber = mine;
            threads[current].waiting = RUNS;
            body(body_slots);
            threads[current].waiting = ENDED;
        }
        mine->next_idle = idle;
        idle = mine;
        if (_setjmp(mine->place) == 0) _longjmp(scheduler, 1);
    }
}

__attribute__((noinline)) static void jump_to(Fiber* fiber) {
    if (_setjmp(scheduler) != 0) return;
    if (fiber->alive) _longjmp(fiber->place, 1);
    fiber->alive = true;
    getcontext(&fiber->start);
    fiber->start.uc_stack.ss_sp = fiber->stack;
    fiber->start.uc_stack.ss_size = STACK_BYTES;
    fiber->start.uc_link = nullptr;
    makecontext(&fiber->start, run_fiber, 0);
    setcontext(&fiber->start);
}

static void resume(unsigned int index) {
    threads[index].waiting = RUNS;
    set_current(index);
    jump_to(threads[index].fiber);
}

// Puts every fiber on the idle list; those that a deadlock left in mid-thread begin anew.
static bool reset_fibers(bool forget) {
    idle = nullptr;
    for (int i = MAX_THREADS - 1; i >= 0; i--) {
        if (fibers[i].stack == nullptr) fibers[i].stack = malloc(STACK_BYTES);
        if (fibers[i].stack == nullptr) return false;
        if (forget) fibers[i].alive = false;
        fibers[i].next_idle = idle;
        idle = &fibers[i];
    }
    return true;
}

// Wakes the threads of a mask when all of them that still live wait for each other.
static bool release_lanes(unsigned int first, unsigned int end, unsigned int index) {
    const unsigned int mask = threads[index].mask;
    for (unsigned int i = first; i < end; i++) {
        const Thread& other = threads[i];
        if (other.waiting == ENDED || !(mask >> (i - first) & 1u)) continue;
        if (other.waiting != FOR_WARP || other.mask != mask) return false;
    }
    // All are marked before one runs: it may wait again at once.
    unsigned int released = 0;
    for (unsigned int i = first; i < end; i++)
        if (threads[i].waiting == FOR_WARP && threads[i].mask == mask)
            released |= 1u << (i - first);
    for (unsigned int i = first; i < end; i++)
        if (released >> (i - first) & 1u) resume(i);
    return true;
}

static bool release_ready(unsigned int first, unsigned int end) {
    bool moved = false;
    for (unsigned int i = first; i < end; i++)
        if (threads[i].waiting == FOR_WARP) moved |= release_lanes(first, end, i);
    for (unsigned int i = first; i < end; i++)
        if (threads[i].waiting == FOR_CONDITION && threads[i].ready(threads[i].of_ready)) {
            resume(i);
            moved = true;
        }
    return moved;
}

// Runs the warp until all its threads wait; whether any moved.
static bool run_warp(unsigned int warp, bool fresh) {
    const unsigned int first = 32 * warp;
    const unsigned int end = first + 32 < thread_count ? first + 32 : thread_count;
    if (fresh) {
        next_thread = first;
        end_thread = end;
        while (next_thread < end_thread) jump_to(idle);
    }
    bool moved = fresh;
    while (release_ready(first, end)) moved = true;
    return moved;
}

// Wakes the threads of the block when all of them that still live wait for each other.
static bool release_block() {
    for (unsigned int i = 0; i < thread_count; i++)
        if (threads[i].waiting != ENDED && threads[i].waiting != FOR_BLOCK) return false;
    static bool released[MAX_THREADS];
    for (unsigned int i = 0; i < thread_count; i++) released[i] = threads[i].waiting == FOR_BLOCK;
    for (unsigned int n = 0; n < thread_count; n++) {
        const unsigned int i = backwards ? thread_count - 1 - n : n;
        if (released[i]) resume(i);
    }
    return true;
}

// Runs the threads of blockIdx; false where they wait for each other, or memory is short.
static bool run_block() {
    if (idle == nullptr && !reset_fibers(false)) return false;
    const unsigned int warps = (thread_count + 31) / 32;
    block_serial++;
    for (unsigned int i = 0; i < thread_count; i++) threads[i].waiting = FOR_CONDITION;
    bool fresh = true;
    for (;;) {
        bool moved = false;
        for (unsigned int n = 0; n < warps; n++)
            moved |= run_warp(backwards ? warps - 1 - n : n, fresh);
        fresh = false;
        if (moved) continue;
        unsigned int living = 0;
        for (unsigned int i = 0; i < thread_count; i++) living += threads[i].waiting != ENDED;
        if (living == 0) return true;
        if (!release_block()) {
            reset_fibers(true);
            return false;
        }
    }
}

// Waits until ready(of_ready) is true; it is asked whenever the scheduler comes by.
inline void wait_until(bool (*ready)(void*), void* of_ready) {
    if (ready(of_ready)) return;
    Thread& mine = threads[current];
    mine.ready = ready;
    mine.of_ready = of_ready;
    mine.waiting = FOR_CONDITION;
    switch_to_scheduler();
}

// Named barriers: the threads that come to one are counted, whoever they are.
struct NamedBarrier {
    unsigned int arrived;
    unsigned long long round, serial;
};
static NamedBarrier named_barriers[16];
struct Meeting {
    unsigned int barrier;
    unsigned long long round;
};
inline bool has_met(void* meeting) {
    const Meeting mine = *(Meeting*)meeting;
    return named_barriers[mine.barrier].round != mine.round;
}
inline void sync_named(unsigned int barrier, unsigned int count) {
    NamedBarrier& at = named_barriers[barrier];
    if (at.serial != block_serial) at = {0, 0, block_serial};
    Meeting mine = {barrier, at.round};
    if (++at.arrived == count) {
        at.arrived = 0;
        at.round++;
    }
    wait_until(has_met, &mine);
}

}  // namespace host

void wait_for_block() {
    host::threads[host::current].waiting = host::FOR_BLOCK;
    host::switch_to_scheduler();
}
void wait_for_warp(unsigned int mask) {
    host::threads[host::current].waiting = host::FOR_WARP;
    host::threads[host::current].mask = mask;
    host::switch_to_scheduler();
}
void* warp_slots() { return host::slots_of_warps[host::current / 32]; }
