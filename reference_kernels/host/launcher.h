// Runs the kernels of one file, block after block; included after it.
//
// fibers.h has how the threads of a block take turns.  EXPORT_KERNEL(name) puts out launch_NAME and
// kinds_NAME.
#pragma once

#include "fibers.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace host {

// What the first undefined operation was, and by which thread.
static const char* undefined_kind;
static Dim3 undefined_block, undefined_thread;
// Where a launch ends whose thread would otherwise kill the process.
static ucontext_t given_up;
static volatile bool gives_up;

static int launch(void (*kernel)(const unsigned long long*), const unsigned long long* slots,
                  Dim3 grid, Dim3 block, unsigned long long shared) {
    body = kernel;
    body_slots = slots;
    gridDim = grid;
    blockDim = block;
    number_threads();
    undefined_kind = nullptr;
    gives_up = false;
    getcontext(&given_up);
    if (gives_up) return 0;
    for (unsigned int z = 0; z < grid.z; z++)
        for (unsigned int y = 0; y < grid.y; y++)
            for (unsigned int x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                // Shared memory starts as anything: nothing may rely on what it was.
                if (shared > 0) memset(dynamic_shared, 0xa5, shared);
                if (!run_block()) return 1;
            }
    return 0;
}

template <typename T>
struct Slot {
    static_assert(sizeof(T) == 8 && T(-1) != T(0), "a parameter is a pointer, i64 or u64");
    static constexpr char kind = 'i';
    static T read(unsigned long long slot) { return (T)slot; }
};
template <typename T>
struct Slot<T*> {
    static constexpr char kind = 'p';
    static T* read(unsigned long long slot) { return (T*)slot; }
};

template <typename I, I... at>
struct Places {};

template <auto kernel>
struct Caller;
template <typename... A, void (*kernel)(A...)>
struct Caller<kernel> {
    static constexpr char kinds[] = {Slot<A>::kind..., 0};
    template <int... at>
    static void spread(const unsigned long long* slots, Places<int, at...>) {
        kernel(Slot<A>::read(slots[at])...);
    }
    static void call(const unsigned long long* slots) {
        spread(slots, __make_integer_seq<Places, int, sizeof...(A)>());
    }
};

static void report(const char* kind) {
    if (undefined_kind != nullptr) return;
    undefined_kind = kind;
    undefined_block = blockIdx;
    undefined_thread = threadIdx;
}

static void report_and_end(const char* kind) {
    report(kind);
    gives_up = true;
    setcontext(&given_up);
}

}  // namespace host

// The order in which the warps of a block run: the last first, or as they stand.
EXPORT void run_backwards(int last_first) { host::backwards = last_first != 0; }

EXPORT const char* undefined(unsigned int* place) {
    memcpy(place, &host::undefined_block, sizeof(Dim3));
    memcpy(place + 3, &host::undefined_thread, sizeof(Dim3));
    return host::undefined_kind;
}

// The compiler calls these where C++ gives an operation no meaning.
#define UNDEFINED(name, then, kind) \
    extern "C" void __ubsan_handle_##name##_minimal() { host::then(kind); }
UNDEFINED(add_overflow, report, "a signed sum overflows")
UNDEFINED(sub_overflow, report, "a signed difference overflows")
UNDEFINED(mul_overflow, report, "a signed product overflows")
UNDEFINED(negate_overflow, report, "a signed negation overflows")
UNDEFINED(divrem_overflow, report_and_end, "a division by zero, or of the least integer by -1")
UNDEFINED(shift_out_of_bounds, report, "a shift by a count beyond the width, or of a negative number")
UNDEFINED(out_of_bounds, report, "an index beyond an array")
UNDEFINED(type_mismatch, report_and_end, "a pointer that is null or not aligned")

#define EXPORT_KERNEL(name)                                                               \
    EXPORT const char* kinds_##name() { return host::Caller<&name>::kinds; }              \
    EXPORT int launch_##name(const unsigned long long* slots, Dim3 grid, Dim3 block,      \
                             unsigned long long shared) {                                 \
        return host::launch(host::Caller<&name>::call, slots, grid, block, shared);       \
    }
