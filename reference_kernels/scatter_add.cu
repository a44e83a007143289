// scatter_add: each row of the output is the sum, in int64, of the rows of x whose id it is.
#include "law.cuh"

extern "C" __global__ void scatter_add(i64 count, const void* x, i64 x_dtype, const void* ids,
                                       i64 ids_dtype, i64 terms, i64 rows, i64 columns, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 row = i / columns, column = i % columns;
    i64 total = 0;
    for (i64 term = 0; term < terms; term++)
        if (clamp(load(ids, ids_dtype, term), 0, rows - 1) == row)
            total = wrap_add(total, load(x, x_dtype, term * columns + column));
    out[i] = total;
}

// --- fast: a thread an element of x, which it adds to its place.  Sums modulo 2^64 are the same in
// any order.

extern "C" __global__ void scatter_add_clear(i64 count, i64* out) {
    const i64 i = INDEX();
    if (i < count) out[i] = 0;
}

extern "C" __global__ void scatter_add_elements(i64 count, const void* x, i64 x_dtype,
                                                const void* ids, i64 ids_dtype, i64 rows,
                                                i64 columns, i64* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 row = clamp(load(ids, ids_dtype, i / columns), 0, rows - 1);
    atomicAdd((u64*)out + row * columns + i % columns, (u64)load(x, x_dtype, i));
}
