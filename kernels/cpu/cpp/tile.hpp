// The product of a few rows with two blocks of 16 outputs: what linear layers are made of.
//
// A tile's sums stay in registers while it walks the inputs. Each output of each row is one chain of sums in the order
// of the inputs: neither other rows nor threads change it.
#pragma once

#include <algorithm>

#include "simd.hpp"
#include "transpose.hpp"

namespace quire {

constexpr int BLOCK = 16;  // outputs that lie together in a packed weight
constexpr int BLOCK_VECTORS = BLOCK / LANES;
constexpr int AHEAD_LANES = 512;  // weights are asked for this long before they are used

// f(0), f(1), ..., f(n - 1) with constant arguments: what they index can live in registers.
template <class F, int... i> inline __attribute__((always_inline)) void unrolled(
    std::integer_sequence<int, i...>, const F& f
) {
    (f(std::integral_constant<int, i>{}), ...);
}

// How the vector formats lay rows out: a tile of r rows holds [groups * PARTS, r] lanes, a group being the inputs of
// one lane of a weight.
struct VectorTiles {
    static constexpr int TILE_ROWS = LANES == 16 ? 12 : LANES == 8 ? 2 : 1;  // what the registers hold of two blocks
    static constexpr int TALL_ROWS = LANES == 16 ? 24 : LANES == 8 ? 6 : 1;  // and of one block, if all rows are in it
    static constexpr int GRAIN = 1;                                          // rows that cost as much as one
    static constexpr int PARTS = 1;  // lanes of a row that one lane of a weight meets
    static constexpr int64_t SEGMENT = 512;  // groups at a time: their weights stay in the first cache, rows in the second
    static constexpr bool IN_TILES = false;

    // rows [count, n] of lanes, `stride` apart -> a tile
    static void lay_out(const int32_t* rows, int64_t count, int64_t n, int64_t stride, int32_t* tile) {
        if (count == 1) std::memcpy(tile, rows, n * sizeof *tile);
        else interleave(rows, count, n, stride, tile);
    }
};

// Rows ready for the product, tile after tile, and what a Format keeps for each row besides.
template <class Format> struct PackedRows {
    float* scale;     // [rows]
    int32_t* excess;  // [rows]
    int32_t* lanes;
    int64_t rows, groups;

    // A second tile would follow one that waited for memory, and keep the memory waiting: a tall one does both at once.
    int64_t tiles() const {
        return rows <= Format::TALL_ROWS ? rows > 0 : (rows + Format::TILE_ROWS - 1) / Format::TILE_ROWS;
    }
    int64_t first(int64_t tile) const {
        const int64_t grains = (rows + Format::GRAIN - 1) / Format::GRAIN;
        return std::min(rows, tile * grains / tiles() * Format::GRAIN);
    }
    int32_t* at(int64_t tile) const { return lanes + first(tile) * groups * Format::PARTS; }
};

struct Float32 : VectorTiles {
    using Vector = Floats;
    static constexpr int GROUP = 1;

    static Floats part(int, Floats weights) { return weights; }
    static Floats dot(Floats sum, Floats weights, Floats x) { return sum + weights * x; }

    // A row as lanes, with zeros to the next whole vector; here and in the other formats.
    template <class T> static void pack(const T* x, int64_t n, int32_t* out, float*, int32_t*) {
        for (int64_t i = 0; i < n; i += LANES) {
            const Floats lanes = load(x + i, n - i);
            std::memcpy(out + i, &lanes, sizeof lanes);
        }
    }

    template <class Rows> static Floats real(Floats sum, const Rows&, int64_t, const float*, int64_t) { return sum; }
};

// Adds one tile's products: x [groups * PARTS, rows], one or two blocks [groups, 16] -> sums [rows, 2, 16].
template <class Format, int rows, int blocks>
void tile_sums(const int32_t* x, const int32_t* first, const int32_t* second, int64_t groups, int32_t* sums) {
    using Vector = typename Format::Vector;
    constexpr int vectors = blocks * BLOCK_VECTORS, stride = 2 * BLOCK, parts = Format::PARTS;
    constexpr std::make_integer_sequence<int, rows> every_row{};
    constexpr std::make_integer_sequence<int, vectors> every_vector{};
    Vector sum[rows][vectors];  // only ever indexed by constants, or it would lie in memory
    unrolled(every_row, [&](auto r) {
        unrolled(every_vector, [&](auto v) { sum[r][v] = load_vector<Vector>(sums + r * stride + v * LANES); });
    });
    for (int64_t g = 0; g < groups; g++) {
        __builtin_prefetch(first + g * BLOCK + AHEAD_LANES * 2 / blocks);
        if constexpr (blocks == 2) __builtin_prefetch(second + g * BLOCK + AHEAD_LANES);
#pragma GCC unroll 2
        for (int part = 0; part < parts; part++) {
            Vector weights[vectors];
            unrolled(every_vector, [&](auto v) {
                const int32_t* block = v < BLOCK_VECTORS ? first : second;
                weights[v] = Format::part(part, load_vector<Vector>(block + g * BLOCK + v % BLOCK_VECTORS * LANES));
            });
            unrolled(every_row, [&](auto r) {
                const Vector lane = bits_of<Vector>(x[(g * parts + part) * rows + r] - Ints{});
                unrolled(every_vector, [&](auto v) { sum[r][v] = Format::dot(sum[r][v], weights[v], lane); });
            });
        }
    }
    unrolled(every_row, [&](auto r) {
        unrolled(every_vector, [&](auto v) { std::memcpy(sums + r * stride + v * LANES, &sum[r][v], sizeof(Vector)); });
    });
}

template <class Format, int blocks, int least, int... i>
inline void sum_rows(
    int64_t rows, const int32_t* x, const int32_t* first, const int32_t* second, int64_t groups, int32_t* sums,
    std::integer_sequence<int, i...>
) {
    static constexpr void (*by_rows[])(const int32_t*, const int32_t*, const int32_t*, int64_t, int32_t*) = {
        tile_sums<Format, least + i, blocks>...
    };
    by_rows[rows - least](x, first, second, groups, sums);
}

template <class Format>
inline void sum_tile(
    int64_t rows, const int32_t* x, const int32_t* first, const int32_t* second, int64_t groups, int32_t* sums
) {
    constexpr int wide = Format::TILE_ROWS, tall = Format::TALL_ROWS;
    if constexpr (tall > wide)
        if (rows > wide) {
            const auto counts = std::make_integer_sequence<int, tall - wide>{};
            sum_rows<Format, 1, wide + 1>(rows, x, first, nullptr, groups, sums, counts);
            return sum_rows<Format, 1, wide + 1>(rows, x, second, nullptr, groups, sums + BLOCK, counts);
        }
    sum_rows<Format, 2, 1>(rows, x, first, second, groups, sums, std::make_integer_sequence<int, wide>{});
}

}  // namespace quire
