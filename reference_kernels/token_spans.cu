// token_spans: the places near each, of its own document, between the padding at the ends of its row.
#include "law.cuh"

extern "C" __global__ void token_spans(i64 count, const void* ids, i64 ids_dtype, i64 places,
                                       i64 before, i64 after, i64 end_of_text, i64 padding,
                                       i32* out) {
    const i64 i = INDEX();
    if (i >= count) return;
    const i64 row = i / 2 / places * places, place = i / 2 % places;
    const bool is_end = i % 2 == 1;
    // Of the row: the paddings that it begins with, and the end of its last token.
    i64 first = 0, last = places;
    // Of the document: where it starts, and where it ends.
    i64 start = place, stop = place + 1;
    if (is_end) {
        while (last > 0 && load(ids, ids_dtype, row + last - 1) == padding) last--;
        while (stop < places && load(ids, ids_dtype, row + stop - 1) != end_of_text) stop++;
        const i64 furthest = place + after < last ? place + after : last;
        out[i] = (i32)(furthest < stop ? furthest : stop);
    } else {
        while (first < places && load(ids, ids_dtype, row + first) == padding) first++;
        while (start > 0 && load(ids, ids_dtype, row + start - 1) != end_of_text) start--;
        const i64 nearest = place + 1 - before > first ? place + 1 - before : first;
        out[i] = (i32)(nearest > start ? nearest : start);
    }
}
