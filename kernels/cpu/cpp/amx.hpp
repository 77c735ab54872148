// Products by the processor's tile registers (AMX): sixteen rows with sixteen outputs and sixteen groups of inputs in
// one instruction, of bfloat16 or int8. Packed weights are tiles as they lie.
#pragma once

#include "tile.hpp"

#if defined(__AMX_TILE__)
#include <immintrin.h>

namespace quire {

constexpr int64_t TILE = 16;                       // rows of a tile register, and groups of each
constexpr int64_t LINE_BYTES = 4 * TILE;           // of one of its rows

// How AMX formats lay rows out: a tile of r rows holds [groups / 16, r, 16] lanes. A layer must have whole 16 groups.
template <class Base> struct InTiles : Base {
    static constexpr int TILE_ROWS = 2 * TILE, TALL_ROWS = TILE_ROWS, GRAIN = TILE;
    static constexpr int64_t SEGMENT = 128;
    static constexpr bool IN_TILES = true;

    static void lay_out(const int32_t* rows, int64_t count, int64_t n, int64_t stride, int32_t* tile) {
        for (int64_t i = 0; i < n; i += TILE)
            for (int64_t r = 0; r < count; r++, tile += TILE) std::memcpy(tile, rows + r * stride + i, LINE_BYTES);
    }
};

template <class Base, class T> constexpr bool LANES_AS_THEY_LIE<InTiles<Base>, T> = LANES_AS_THEY_LIE<Base, T>;

// The registers of the calling thread while products of `rows` <= 32 rows run: 0 to 3 hold sums (two halves of the rows
// by two blocks), 4 and 5 the halves' inputs, 6 and 7 the blocks' weights.
class TileRegisters {
public:
    void set(int64_t rows) {
        if (rows == rows_) return;
        rows_ = rows;
        struct { uint8_t palette = 1, start = 0, reserved[14] = {}; uint16_t bytes[16] = {}; uint8_t rows[16] = {}; } shape;
        const uint8_t upper = std::min(rows, TILE), lower = rows - upper;
        const uint8_t counts[8] = {upper, upper, lower, lower, upper, lower, TILE, TILE};
        for (int tile = 0; tile < 8; tile++) {
            shape.rows[tile] = counts[tile];
            shape.bytes[tile] = counts[tile] ? LINE_BYTES : 0;
        }
        _tile_loadconfig(&shape);
    }
    TileRegisters() = default;
    TileRegisters(const TileRegisters&) = delete;
    ~TileRegisters() {
        if (rows_) _tile_release();
    }

private:
    int64_t rows_ = 0;
};

// What is asked for meanwhile: lines [from, to) of every sixteen, of two blocks. What one tile of rows reads alone goes
// to the first cache, what others use the time until to the second.
struct AheadOfTiles {
    const int32_t *first, *second;
    int64_t from, to, stride;

    void ask(int64_t group) const {
        if (to - from == TILE) ask_for<3>(group);
        else ask_for<2>(group);
    }
    template <int cache> void ask_for(int64_t group) const {
        for (int64_t line = group + from; line < group + to; line++) {
            __builtin_prefetch(first + line * stride, 0, cache);
            __builtin_prefetch(second + line * stride, 0, cache);
        }
    }
};

struct TileInputs {
    const void* rows;
    int64_t stride, step;  // bytes from row to row, and from sixteen groups to the next
};

// sums [rows, 2 blocks] += x [rows, groups] * two blocks [groups, 16], `lanes` from a group to the next one. `both`: there
// are more than 16 rows.
template <class Format, bool both>
inline void add_tile_products(
    TileInputs x, const int32_t* first, const int32_t* second, int64_t groups, int64_t lanes, const AheadOfTiles& ahead,
    void* sums, int64_t stride
) {
    char* const left = static_cast<char*>(sums);
    char *const right = left + LINE_BYTES, *const low = left + TILE * stride, *const low_right = low + LINE_BYTES;
    asm volatile("" ::: "memory");  // tile loads are not known to read what was written just before
    _tile_loadd(0, left, stride);
    _tile_loadd(1, right, stride);
    if constexpr (both) {
        _tile_loadd(2, low, stride);
        _tile_loadd(3, low_right, stride);
    }
    const char* rows = static_cast<const char*>(x.rows);
    for (int64_t g = 0; g < groups; g += TILE, rows += x.step) {
        _tile_loadd(6, first + g * lanes, 4 * lanes);
        _tile_loadd(4, rows, x.stride);
        Format::template multiply<0, 4, 6>();
        _tile_loadd(7, second + g * lanes, 4 * lanes);
        Format::template multiply<1, 4, 7>();
        if constexpr (both) {
            _tile_loadd(5, rows + TILE * x.stride, x.stride);
            Format::template multiply<2, 5, 6>();
            Format::template multiply<3, 5, 7>();
        }
        ahead.ask(g);
    }
    _tile_stored(0, left, stride);
    _tile_stored(1, right, stride);
    if constexpr (both) {
        _tile_stored(2, low, stride);
        _tile_stored(3, low_right, stride);
    }
    asm volatile("" ::: "memory");
}

}  // namespace quire
#endif
