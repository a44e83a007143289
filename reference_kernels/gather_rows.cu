// gather_rows: row i of the output is the row of the table whose number is id[i].
#include "law.cuh"

extern "C" __global__ void gather_rows(i64 count, const void* x, i64 x_dtype, const void* ids,
                                       i64 ids_dtype, i64 rows, i64 columns, void* out,
                                       i64 out_dtype) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 row = clamp(load(ids, ids_dtype, i / columns), 0, rows - 1);
    store(out, out_dtype, i, load(x, x_dtype, row * columns + i % columns));
}
