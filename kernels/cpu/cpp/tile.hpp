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
// Into the second cache: the first has too few misses at once for what memory delivers.
constexpr int SECOND_CACHE = 2;

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
    static constexpr int FEW_ROWS = TALL_ROWS;  // up to so many, weights become Vectors in registers; else beforehand
    static constexpr int FOUR_BLOCKS_ROWS = 0;  // up to so many, four blocks at once: their sums wait for each other less
    static constexpr int GRAIN = 1;             // rows that cost as much as one
    static constexpr int PARTS = 1;             // lanes of a row that one lane of a weight meets
    static constexpr int64_t SEGMENT = 512;  // groups at a time: their weights stay in the first cache, rows in the second
    static constexpr int64_t WIDENED = 64;   // and of those that become Vectors beforehand
    static constexpr int64_t BEHIND = 0;     // groups behind a block's weights that are the sums to begin with
    static constexpr bool IN_TILES = false, SCALES_SEGMENTS = false, GROUPED = false;

    static int64_t scales(int64_t) { return 1; }  // of a row of so many inputs

    // rows [count, n] of lanes, `stride` apart -> a tile
    static void lay_out(const int32_t* rows, int64_t count, int64_t n, int64_t stride, int32_t* tile) {
        if (count == 1) std::memcpy(tile, rows, n * sizeof *tile);
        else interleave(rows, count, n, stride, tile);
    }
};

// Rows ready for the product, tile after tile, and what a Format keeps for each row besides.
template <class Format> struct PackedRows {
    float* scale;     // [rows, scales]
    int32_t* excess;  // [rows]
    int32_t* lanes;
    int64_t rows, groups, scales;

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
    using Tile = Float32;
    static constexpr int GROUP = 1;

    // Vector v of the block's weights that meet a row's lane `part` of a group.
    static Floats weights(int, const int32_t* group, int v) { return load_vector<Floats>(group + v * LANES); }
    static Floats dot(Floats sum, Floats weights, Floats x) { return sum + weights * x; }

    // A row as lanes, with zeros to the next whole vector; here and in the other formats.
    template <class T> static void pack(const T* x, int64_t n, int32_t* out, float*, int32_t*) {
        for (int64_t i = 0; i < n; i += LANES) {
            const Floats lanes = load(x + i, n - i);
            std::memcpy(out + i, &lanes, sizeof lanes);
        }
    }

    template <class Rows> static Floats real(Floats sum, const Rows&, int64_t, int64_t, int64_t) { return sum; }
};

// A row of whole vectors has the lanes that Format makes of it already.
template <class Format, class T> constexpr bool LANES_AS_THEY_LIE = false;
template <> constexpr bool LANES_AS_THEY_LIE<Float32, float> = true;

// Adds one tile's products: x [groups * PARTS, rows], blocks [groups, 16], `stride` lanes from a group to the next one ->
// sums [rows, 2 or 4, 16]. Scaled, by factors
// [rows, 2 or 4], the products are summed apart, and added when they were multiplied by the factor of their row and block.
// After these weights come those at `next` in the first block's place, and the others' as far from it as here.
template <class Format, int rows, int blocks, bool scaled>
void tile_sums(
    const int32_t* x, const int32_t* const* block, const int32_t* next, int64_t groups, int64_t stride,
    const float* factors, int32_t* sums
) {
    using Vector = typename Format::Vector;
    constexpr int vectors = blocks * BLOCK_VECTORS, columns = std::max(blocks, 2), width = columns * BLOCK;
    constexpr int parts = Format::PARTS;
    constexpr std::make_integer_sequence<int, rows> every_row{};
    constexpr std::make_integer_sequence<int, vectors> every_vector{};
    const int32_t* at[blocks];
    std::copy_n(block, blocks, at);
    Vector sum[rows][vectors];  // only ever indexed by constants, or it would lie in memory
    unrolled(every_row, [&](auto r) {
        unrolled(every_vector, [&](auto v) {
            if constexpr (scaled) sum[r][v] = Vector{};
            else sum[r][v] = load_vector<Vector>(sums + r * width + v * LANES);
        });
    });
    const int64_t early = AHEAD_LANES * 2 / blocks / BLOCK * stride, end = groups * stride, jump = next - (at[0] + end);
    for (int64_t place = 0; place < end; place += stride, x += parts * rows) {
        const int64_t later = place + early + (place + early < end ? 0 : jump);
        // a loop and no lambda: GCC drops a call of one that does nothing but prefetch
#pragma GCC unroll 4
        for (int b = 0; b < blocks; b++) __builtin_prefetch(at[b] + later, 0, SECOND_CACHE);
#pragma GCC unroll 4
        for (int part = 0; part < parts; part++) {
            Vector weights[vectors];
            unrolled(every_vector, [&](auto v) {
                weights[v] = Format::weights(part, at[v / BLOCK_VECTORS] + place, v % BLOCK_VECTORS);
            });
            unrolled(every_row, [&](auto r) {
                const Vector lane = bits_of<Vector>(x[part * rows + r] - Ints{});
                unrolled(every_vector, [&](auto v) { sum[r][v] = Format::dot(sum[r][v], weights[v], lane); });
            });
        }
    }
    unrolled(every_row, [&](auto r) {
        unrolled(every_vector, [&](auto v) {
            int32_t* const to = sums + r * width + v * LANES;
            if constexpr (scaled)
                sum[r][v] = load_vector<Floats>(to) + sum[r][v] * factors[r * columns + v / BLOCK_VECTORS];
            std::memcpy(to, &sum[r][v], sizeof(Vector));
        });
    });
}

template <class Format, bool scaled, int blocks, int least, int... i>
inline void sum_rows(
    int64_t rows, const int32_t* x, const int32_t* const* block, const int32_t* next, int64_t groups,
    int64_t stride, const float* factors, int32_t* sums, std::integer_sequence<int, i...>
) {
    static constexpr decltype(&tile_sums<Format, least, blocks, scaled>) by_rows[] = {
        tile_sums<Format, least + i, blocks, scaled>...
    };
    by_rows[rows - least](x, block, next, groups, stride, factors, sums);
}

// The same for any number of rows that a tile has, and two blocks.
template <class Format, bool scaled>
inline void sum_tile(
    int64_t rows, const int32_t* x, const int32_t* const* block, const int32_t* next, int64_t groups,
    int64_t stride, const float* factors, int32_t* sums
) {
    constexpr int wide = std::min(Format::TILE_ROWS, Format::FEW_ROWS);
    if constexpr (Format::FEW_ROWS > wide)
        if (rows > wide) {
            const auto counts = std::make_integer_sequence<int, Format::FEW_ROWS - wide>{};
            sum_rows<Format, scaled, 1, wide + 1>(rows, x, block, block[1], groups, stride, factors, sums, counts);
            const float* const others = scaled ? factors + 1 : nullptr;
            return sum_rows<Format, scaled, 1, wide + 1>(rows, x, block + 1, next, groups, stride, others, sums + BLOCK, counts);
        }
    sum_rows<Format, scaled, 2, 1>(rows, x, block, next, groups, stride, factors, sums, std::make_integer_sequence<int, wide>{});
}

}  // namespace quire
