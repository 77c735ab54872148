// Rows of the vocabulary, of a weight that lies row by row or in blocks of outputs.
#pragma once

#include <cstring>

#include "dtype.hpp"
#include "parallel.hpp"
#include "tile.hpp"

namespace quire {

// Lane `row` of the lines of its block, 4 bytes of the row in each.
inline void gather_row(const int32_t* weight, int64_t row, int64_t lines, int32_t* out) {
    const int32_t* const lane = weight + row / BLOCK * lines * BLOCK + row % BLOCK;
    for (int64_t line = 0; line < lines; line++) out[line] = lane[line * BLOCK];
}

}  // namespace quire

// Row ids[t] - first of the weight for ids in [first, first + count), zeros for all others.
QUIRE_EXPORT void quire_embed_shard(
    const int64_t* ids, const char* weight, int64_t first, int64_t count, int64_t row_bytes, int blocked, char* out,
    int64_t tokens, int threads
) {
    quire::for_rows(tokens, row_bytes / 4, threads, [=](int64_t t) {
        const int64_t row = ids[t] - first;
        char* const to = out + t * row_bytes;
        if (row < 0 || row >= count) std::memset(to, 0, row_bytes);
        else if (!blocked) std::memcpy(to, weight + row * row_bytes, row_bytes);
        else quire::gather_row((const int32_t*)weight, row, row_bytes / 4, (int32_t*)to);
    });
}
