// Linear layers on packed weights: norm before the product and activation after it, joined in one call.
//
// A tile is up to TILE_ROWS rows times two blocks of 16 outputs; its sums stay in registers while it walks the inputs.
// Each output of each row is one chain of sums in the order of the inputs: neither other rows nor threads change it.
#pragma once

#include <algorithm>
#include <vector>

#include "dtype.hpp"
#include "gate.hpp"
#include "norm.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace quire {

constexpr int BLOCK = 16;  // outputs that lie together in a packed weight
constexpr int BLOCK_VECTORS = BLOCK / LANES;
constexpr int TILE_ROWS = LANES == 16 ? 12 : LANES == 8 ? 2 : 1;  // what the registers hold
constexpr int CHUNK_TILES = 240 / TILE_ROWS;  // that share one reading of the weights
constexpr int64_t SEGMENT = 512;              // groups at a time: their weights stay in the first cache, rows in the second
constexpr int AHEAD_LANES = 512;              // weights are asked for this long before they are used

// f(0), f(1), ..., f(n - 1) with constant arguments: what they index can live in registers.
template <class F, int... i> inline __attribute__((always_inline)) void unrolled(
    std::integer_sequence<int, i...>, const F& f
) {
    (f(std::integral_constant<int, i>{}), ...);
}

// Rows ready for the product, tile after tile: a tile of r rows holds [groups, r] lanes, a group being the inputs of
// one lane. A Format (Float32 here, Int8 in int8.hpp) says what a lane is, and what it keeps for each row besides.
struct PackedRows {
    float* scale;     // [rows]
    int32_t* excess;  // [rows]
    int32_t* lanes;
    int64_t rows, groups;

    int64_t tiles() const { return (rows + TILE_ROWS - 1) / TILE_ROWS; }
    int64_t first(int64_t tile) const { return tile * rows / tiles(); }
    int32_t* at(int64_t tile) const { return lanes + first(tile) * groups; }
};

struct Float32 {
    using Vector = Floats;
    static constexpr int GROUP = 1;

    static Floats dot(Floats sum, Floats weights, Floats x) { return sum + weights * x; }

    template <class T> static void pack(const T* x, int64_t n, int32_t* out, int64_t stride, float*, int32_t*) {
        for (int64_t i = 0; i < n; i += LANES) {
            const Ints bits = bits_of<Ints>(load(x + i, n - i));
            for (int lane = 0; lane < LANES && i + lane < n; lane++) out[(i + lane) * stride] = bits[lane];
        }
    }

    static Floats real(Floats sum, const PackedRows&, int64_t, const float*, int64_t) { return sum; }
};

// Adds one tile's products: x [groups, rows], two blocks [groups, 16] -> sums [rows, 2, 16].
template <class Format, int rows>
void tile_sums(const int32_t* x, const int32_t* first, const int32_t* second, int64_t groups, int32_t* sums) {
    using Vector = typename Format::Vector;
    constexpr int vectors = 2 * BLOCK_VECTORS;
    constexpr std::make_integer_sequence<int, rows> every_row{};
    constexpr std::make_integer_sequence<int, vectors> every_vector{};
    Vector sum[rows][vectors];  // only ever indexed by constants, or it would lie in memory
    unrolled(every_row, [&](auto r) {
        unrolled(every_vector, [&](auto v) { sum[r][v] = load_vector<Vector>(sums + (r * vectors + v) * LANES); });
    });
    for (int64_t g = 0; g < groups; g++) {
        Vector weights[vectors];
        unrolled(every_vector, [&](auto v) {
            const int32_t* block = v < BLOCK_VECTORS ? first : second;
            weights[v] = load_vector<Vector>(block + g * BLOCK + v % BLOCK_VECTORS * LANES);
        });
        __builtin_prefetch(first + g * BLOCK + AHEAD_LANES);
        __builtin_prefetch(second + g * BLOCK + AHEAD_LANES);
        unrolled(every_row, [&](auto r) {
            const Vector lane = bits_of<Vector>(x[g * rows + r] - Ints{});
            unrolled(every_vector, [&](auto v) { sum[r][v] = Format::dot(sum[r][v], weights[v], lane); });
        });
    }
    unrolled(every_row, [&](auto r) {
        unrolled(every_vector, [&](auto v) {
            std::memcpy(sums + (r * vectors + v) * LANES, &sum[r][v], sizeof(Vector));
        });
    });
}

template <class Format, int... i>
inline void sum_tile(
    int64_t rows, const int32_t* x, const int32_t* first, const int32_t* second, int64_t groups, int32_t* sums,
    std::integer_sequence<int, i...>
) {
    static constexpr void (*by_rows[])(const int32_t*, const int32_t*, const int32_t*, int64_t, int32_t*) = {
        tile_sums<Format, i + 1>...
    };
    by_rows[rows - 1](x, first, second, groups, sums);
}

template <class Format, class T> struct Linear {
    // Inputs: x [rows, inputs]; with norm_weight they are normed first, with residual (and total) added before that.
    const T *x, *residual, *norm_weight;
    T* total;  // [rows, inputs]
    int64_t rows, inputs;
    float eps;
    // The layer: weight [blocks, groups, 16] lanes, scale [outputs] or null, bias [outputs] or null.
    const int32_t* weight;
    const float* scale;
    const T* bias;
    int64_t outputs;
    int gate;
    T* out;  // [rows, outputs], with a gate [rows, outputs / 2]
    int threads;

    // scratch: 8 bytes for each row and 4 for each of its groups
    void run(void* scratch) const {
        const int64_t groups = (inputs + Format::GROUP - 1) / Format::GROUP;
        float* scales = static_cast<float*>(scratch);
        int32_t* excess = reinterpret_cast<int32_t*>(scales + rows);
        const PackedRows packed{scales, excess, excess + rows, rows, groups};
        for_rows(packed.tiles(), inputs * TILE_ROWS, threads, [=](int64_t tile) {
            const int64_t begin = packed.first(tile), end = packed.first(tile + 1);
            for (int64_t r = begin; r < end; r++)
                Format::pack(
                    prepared(r), inputs, packed.at(tile) + (r - begin), end - begin, scales + r, excess + r
                );
        });
        const int64_t blocks = (outputs + BLOCK - 1) / BLOCK, pairs = gate == NO_GATE ? (blocks + 1) / 2 : blocks / 2;
        const int64_t tiles = packed.tiles(), chunks = (tiles + CHUNK_TILES - 1) / CHUNK_TILES;
        const int64_t work = groups * 8 * BLOCK * std::max<int64_t>(1, std::min<int64_t>(tiles, CHUNK_TILES) / 2);
        for_rows(chunks * pairs, work, threads, [=](int64_t item) {
            const int64_t pair = item % pairs, begin = item / pairs * CHUNK_TILES;
            const int64_t first = gate == NO_GATE ? 2 * pair : pair;
            const int64_t second = gate == NO_GATE ? std::min(first + 1, blocks - 1) : pair + pairs;
            multiply(packed, begin, std::min(begin + CHUNK_TILES, tiles), first, second);
        });
    }

    // Row r as it is to be packed; what is normed lasts until this thread's next row.
    const T* prepared(int64_t r) const {
        static thread_local std::vector<T> normed;
        const T* row = x + r * inputs;
        if (!norm_weight) return row;
        if (residual) {
            const T* other = residual + r * inputs;
            T* sum = total + r * inputs;
            for (int64_t i = 0; i < inputs; i += LANES)
                store(sum + i, load(other + i, inputs - i) + load(row + i, inputs - i), inputs - i);
            row = sum;
        }
        normed.resize(inputs);
        norm_row(row, norm_weight, normed.data(), inputs, eps);
        return normed.data();
    }

    // Tiles from `begin` to before `end` with two blocks of outputs.
    void multiply(const PackedRows& packed, int64_t begin, int64_t end, int64_t first, int64_t second) const {
        alignas(64) int32_t sums[CHUNK_TILES * TILE_ROWS][2][BLOCK];
        const int64_t origin = packed.first(begin), lanes = packed.groups * BLOCK;
        std::memset(sums, 0, (packed.first(end) - origin) * sizeof sums[0]);
        for (int64_t g = 0; g < packed.groups; g += SEGMENT)
            for (int64_t tile = begin; tile < end; tile++) {
                const int64_t r = packed.first(tile), count = packed.first(tile + 1) - r;
                sum_tile<Format>(
                    count, packed.at(tile) + g * count, weight + first * lanes + g * BLOCK,
                    weight + second * lanes + g * BLOCK, std::min(SEGMENT, packed.groups - g), sums[r - origin][0],
                    std::make_integer_sequence<int, TILE_ROWS>{}
                );
            }
        for (int64_t r = origin; r < packed.first(end); r++)
            for (int lane = 0; lane < BLOCK; lane += LANES) {
                const int32_t* row = sums[r - origin][0] + lane;
                finish(packed, r, first * BLOCK + lane, second * BLOCK + lane, row, row + BLOCK);
            }
    }

    // Two vectors of sums of row r to where they belong; at a layer's odd last block both are the same.
    void finish(
        const PackedRows& packed, int64_t r, int64_t first, int64_t second, const int32_t* left, const int32_t* right
    ) const {
        const Floats one = product(packed, r, first, left);
        if (gate != NO_GATE) {  // with the roundings of a product and an activation that are not joined
            const Floats opened = rounded<T>(activated(gate, rounded<T>(one)));
            return put(r, first, opened * rounded<T>(product(packed, r, second, right)));
        }
        put(r, first, one);
        if (second != first) put(r, second, product(packed, r, second, right));
    }

    // `column` may lie behind the last output.
    Floats product(const PackedRows& packed, int64_t r, int64_t column, const int32_t* sums) const {
        const int64_t left = std::max<int64_t>(0, outputs - column);
        const auto sum = load_vector<typename Format::Vector>(sums);
        const Floats value = Format::real(sum, packed, r, scale + column, left);
        return bias ? value + load(bias + column, left) : value;
    }

    void put(int64_t r, int64_t column, Floats value) const {
        const int64_t width = gate == NO_GATE ? outputs : outputs / 2;
        if (column < width) store(out + r * width + column, value, width - column);
    }
};

}  // namespace quire

QUIRE_EXPORT void quire_linear(
    const float* x, const float* residual, const float* norm_weight, float* total, int64_t rows, int64_t inputs,
    float eps, const void* weight, const float* bias, int64_t outputs, int gate, float* out, void* scratch, int threads
) {
    quire::Linear<quire::Float32, float>{
        x, residual, norm_weight, total, rows, inputs, eps, (const int32_t*)weight, nullptr, bias, outputs, gate, out,
        threads
    }.run(scratch);
}
