// The inputs of a step out of the tables; kernels/prepare_inputs.py says what they are.
#pragma once

#include "dtype.hpp"
#include "parallel.hpp"

QUIRE_EXPORT void quire_prepare_inputs(
    const int32_t* tokens, int64_t tokens_stride, const int64_t* known, const int32_t* block_tables,
    int64_t tables_stride, const int32_t* rows, int64_t rows_stride, int64_t num_rows, int64_t block_size,
    int64_t* token_ids, int64_t* positions, int64_t num_axes, int64_t positions_stride, int64_t* slot_mapping,
    int64_t num_tokens, int32_t* query_starts, int32_t* seq_lens, int32_t* slots, const int64_t* shifts
) {
    const auto put = [=](int64_t t, int64_t token, int64_t position, int64_t place) {
        token_ids[t] = token;
        slot_mapping[t] = place;
        for (int64_t axis = 0; axis < num_axes; axis++) positions[axis * positions_stride + t] = position;
    };
    quire::once([=] {
        int64_t t = 0;
        for (int64_t r = 0; r < num_rows; r++) {
            const int64_t slot = rows[r], left = rows[rows_stride + r], count = rows[2 * rows_stride + r];
            const int64_t computed = known[slot] - left, shift = shifts ? shifts[slot] : 0;
            query_starts[r] = static_cast<int32_t>(t);
            seq_lens[r] = static_cast<int32_t>(count > 0 ? computed + count : 0);
            slots[r] = static_cast<int32_t>(slot);
            for (int64_t index = computed; index < computed + count; index++) {
                const int64_t block = block_tables[slot * tables_stride + index / block_size];
                const int64_t place = block * block_size + index % block_size;
                put(t++, tokens[slot * tokens_stride + index], index + shift, place);
            }
        }
        query_starts[num_rows] = static_cast<int32_t>(t);
        for (; t < num_tokens; t++) put(t, 0, 0, -1);
    });
}
