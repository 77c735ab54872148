// Linear layers on packed weights: norm before the product and activation after it, joined in one call.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "amx.hpp"
#include "bf16.hpp"
#include "dtype.hpp"
#include "gate.hpp"
#include "norm.hpp"
#include "parallel.hpp"
#include "simd.hpp"
#include "tile.hpp"

namespace quire {

constexpr int64_t CHUNK_ROWS = 256;  // at most, that share one reading of the weights

template <class Format, class T> struct Linear {
    Format format;
    // Inputs: x [rows, inputs]; with norm_weight they are normed first, with residual (and total) added before that.
    const T *x, *residual, *norm_weight;
    T* total;  // [rows, inputs]
    int64_t rows, inputs;
    float eps;
    // The layer: weight [blocks, groups + BEHIND, 16] lanes, bias [outputs] or null.
    const int32_t* weight;
    const T* bias;
    int64_t outputs;
    int gate;
    T* out;  // [rows, outputs], with a gate [rows, outputs / 2]
    int threads;
    const int32_t* picked = nullptr;  // row r is x's picked[r] / places-th
    int64_t places = 1;
    bool woven = false;               // group by group the first half's blocks with the second's: [blocks / 2, groups, 2, 16]
    const int32_t* behind = nullptr;  // weights that are multiplied after the last ones

    static constexpr int64_t CHUNK_TILES = CHUNK_ROWS / Format::TILE_ROWS;

    // scratch, for each row: 4 bytes, 4 for each of its scales, 4 for each of its inputs in whole groups
    void run(void* scratch) const {
        if (rows == 0) return;
        const PackedRows<Format> packed = packed_in(scratch);
        for_rows(packed.tiles(), inputs * Format::TILE_ROWS, threads, [=](int64_t tile) { pack(packed, tile); });
        const int64_t tiles = packed.tiles(), fours = in_fours() ? 2 : 1;
        const int64_t work = packed.groups * 8 * BLOCK * std::max<int64_t>(1, std::min<int64_t>(tiles, CHUNK_TILES) / 2);
        for_rows(items(packed), fours * work, threads, [=](int64_t item) { multiply(packed, item); });
    }

    PackedRows<Format> packed_in(void* scratch) const {
        const int64_t groups = (inputs + Format::GROUP - 1) / Format::GROUP, row_scales = format.scales(inputs);
        float* scales = static_cast<float*>(scratch);
        int32_t* excess = reinterpret_cast<int32_t*>(scales + rows * row_scales);
        return {scales, excess, excess + rows, rows, groups, row_scales};
    }

    // A product is made of independent items once all of its tiles are packed: a chunk of rows with two blocks each, or
    // all rows, which are few, with four.
    int64_t items(const PackedRows<Format>& packed) const {
        return in_fours() ? (num_pairs() + 1) / 2 : chunks(packed) * num_pairs();
    }
    void multiply(const PackedRows<Format>& packed, int64_t item) const {
        const int64_t pairs = num_pairs(), chunk = item / pairs, tiles = packed.tiles(), all = chunks(packed);
        if constexpr (Format::FOUR_BLOCKS_ROWS > 0)
            if (in_fours())
                return multiply_four(packed, {blocks_of(2 * item), blocks_of(std::min(2 * item + 1, pairs - 1))});
        multiply(packed, chunk * tiles / all, (chunk + 1) * tiles / all, blocks_of(item % pairs));
    }

    // Two blocks of outputs.
    struct Pair { int64_t first, second; };

    bool in_fours() const { return rows <= Format::FOUR_BLOCKS_ROWS; }
    bool apart() const { return woven || gate != NO_GATE; }  // a pair has one of each half
    int64_t num_pairs() const {
        const int64_t blocks = (outputs + BLOCK - 1) / BLOCK;
        return apart() ? blocks / 2 : (blocks + 1) / 2;
    }
    static int64_t chunks(const PackedRows<Format>& packed) { return (packed.tiles() + CHUNK_TILES - 1) / CHUNK_TILES; }
    Pair blocks_of(int64_t pair) const {
        if (apart()) return {pair, pair + num_pairs()};
        return {2 * pair, std::min(2 * pair + 1, (outputs + BLOCK - 1) / BLOCK - 1)};
    }

    void pack(const PackedRows<Format>& packed, int64_t tile) const {
        static thread_local std::vector<int32_t> lanes;
        const int64_t first = packed.first(tile), count = packed.first(tile + 1) - first;
        const int64_t n = packed.groups * Format::PARTS, stride = (n + LANES - 1) / LANES * LANES;
        if constexpr (LANES_AS_THEY_LIE<Format, T>)
            if (!norm_weight && n == stride && (!picked || count == 1))
                return Format::lay_out(reinterpret_cast<const int32_t*>(at(first)), count, n, n, packed.at(tile));
        lanes.resize(count * stride);
        for (int64_t r = first; r < first + count; r++) {
            int32_t* const row = lanes.data() + (r - first) * stride;
            format.pack(prepared(r), inputs, row, packed.scale + r * packed.scales, packed.excess + r);
        }
        Format::lay_out(lanes.data(), count, n, stride, packed.at(tile));
    }

    const T* at(int64_t r) const { return x + (picked ? picked[r] / places : r) * inputs; }

    // Row r as it is to be packed; what is normed lasts until this thread's next row.
    const T* prepared(int64_t r) const {
        static thread_local std::vector<T> normed;
        const T* row = at(r);
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
    void multiply(
        const PackedRows<Format>& packed, int64_t begin, int64_t end, Pair pair
    ) const {
        alignas(64) int32_t sums[CHUNK_ROWS][2][BLOCK];
        const int64_t origin = packed.first(begin), count = packed.first(end) - origin;
        const int32_t* const block[2] = {weights(packed, pair.first), weights(packed, pair.second)};
        for (int64_t r = 0; r < count; r++) begin_sums<2>(packed, block, sums[r][0]);
        if constexpr (Format::GROUPED) {
            const int next = gate == NO_GATE ? 2 : 1;
            format.template add<2>(packed, begin, end, block, {pair.first, pair.second}, next, sums[0][0]);
            finish(packed, origin, origin + count, pair, sums[0][0]);
        } else if constexpr (Format::IN_TILES) multiply_in_tiles(packed, begin, end, pair, block, sums[0][0]);
        else if constexpr (Format::PARTS == 1) multiply_in_vectors(packed, begin, end, pair, block, sums[0][0]);
        else if (count <= Format::FEW_ROWS) multiply_in_vectors(packed, begin, end, pair, block, sums[0][0]);
        else multiply_widened(packed, begin, end, pair, block, sums[0][0]);
    }

    // All rows, which are few, with two pairs of blocks.
    void multiply_four(const PackedRows<Format>& packed, const std::array<Pair, 2>& pairs) const {
        alignas(64) int32_t sums[Format::FOUR_BLOCKS_ROWS][4][BLOCK];
        const int32_t* block[4];
        for (int b = 0; b < 4; b++) block[b] = weights(packed, b % 2 ? pairs[b / 2].second : pairs[b / 2].first);
        for (int64_t r = 0; r < rows; r++) begin_sums<4>(packed, block, sums[r][0]);
        if constexpr (Format::GROUPED) {
            const std::array<int64_t, 4> numbers{pairs[0].first, pairs[0].second, pairs[1].first, pairs[1].second};
            format.template add<4>(packed, 0, packed.tiles(), block, numbers, gate == NO_GATE ? 4 : 2, sums[0][0]);
        } else
            for (int64_t g = 0; g < packed.groups; g += Format::SEGMENT) {
                const int64_t groups = std::min(Format::SEGMENT, packed.groups - g);
                const auto counts = std::make_integer_sequence<int, Format::FOUR_BLOCKS_ROWS>{};
                const Factors<2> factors{*this, packed, 0, rows, g, pairs};
                const int32_t* const x = packed.lanes + g * Format::PARTS * rows;
                const int32_t* const next = g + groups == packed.groups ? after(packed, pairs[1]) : block[0] + groups * BLOCK;
                sum_rows<typename Format::Tile, Format::SCALES_SEGMENTS, 4, 1>(
                    rows, x, block, next, groups, BLOCK, factors.get(), sums[0][0], counts
                );
                for (const int32_t*& one : block) one += groups * BLOCK;
            }
        for (int64_t r = 0; r < rows; r++)
            for (int one = 0; one < 2; one++) finish(packed, r, pairs[one], sums[r][2 * one]);
    }

    const int32_t* weights(const PackedRows<Format>& packed, int64_t block) const {
        if constexpr (Format::GROUPED) return weight + block * format.lanes_of_block(inputs);
        else if (woven) return weight + block % num_pairs() * packed.groups * stride() + block / num_pairs() * BLOCK;
        else return weight + block * (packed.groups + Format::BEHIND) * BLOCK;
    }
    int64_t stride() const { return woven ? 2 * BLOCK : BLOCK; }  // lanes from a group of a block to the next one

    // The first weights of what a thread mostly goes on with after these blocks.
    const int32_t* after(const PackedRows<Format>& packed, Pair pair) const {
        const int64_t next = pair.first + (apart() ? 1 : 2), end = num_pairs() * (apart() ? 1 : 2);
        return next < end || !behind ? weights(packed, next) : behind;
    }

    // The sums of a row with so many blocks.
    template <int blocks>
    static void begin_sums(const PackedRows<Format>& packed, const int32_t* const* block, int32_t* sums) {
        if constexpr (Format::BEHIND == 0) std::memset(sums, 0, blocks * BLOCK * sizeof *sums);
        else
            for (int b = 0; b < blocks; b++)
                std::memcpy(sums + b * BLOCK, block[b] + packed.groups * BLOCK, BLOCK * sizeof *sums);
    }

    void multiply_in_vectors(
        const PackedRows<Format>& packed, int64_t begin, int64_t end, Pair pair, const int32_t* const* block, int32_t* sums
    ) const {
        // weights that one tile reads alone need not stay in a cache, and are read best as they lie
        const bool alone = end - begin == 1 && !Format::SCALES_SEGMENTS;
        const int64_t origin = packed.first(begin), segment = alone ? packed.groups : Format::SEGMENT, lanes = stride();
        for (int64_t g = 0; g < packed.groups; g += segment)
            for (int64_t tile = begin; tile < end; tile++) {
                const int64_t r = packed.first(tile), count = packed.first(tile + 1) - r;
                const int64_t groups = std::min(segment, packed.groups - g);
                const bool last = g + groups == packed.groups;
                const int32_t* const from[2] = {block[0] + g * lanes, block[1] + g * lanes};
                int32_t* const to = sums + (r - origin) * 2 * BLOCK;
                const Factors<1> factors{*this, packed, r, count, g, {pair}};
                const int32_t* const x = packed.at(tile) + g * Format::PARTS * count;
                const int32_t* const next = last ? after(packed, pair) : from[0] + groups * lanes;
                if (last) ask_for_outputs(r, r + count, pair);
                sum_tile<typename Format::Tile, Format::SCALES_SEGMENTS>(
                    count, x, from, next, groups, lanes, factors.get(), to
                );
                if (last) finish(packed, r, r + count, pair, to);
            }
    }

    // The same in the same order, the parts of the weights laid out for all tiles.
    void multiply_widened(
        const PackedRows<Format>& packed, int64_t begin, int64_t end, Pair pair, const int32_t* const* block, int32_t* sums
    ) const {
        constexpr int parts = Format::PARTS;
        alignas(64) int32_t wide[2][Format::WIDENED * parts * BLOCK];
        const int32_t* const from[2] = {wide[0], wide[1]};
        const int64_t origin = packed.first(begin);
        for (int64_t g = 0; g < packed.groups; g += Format::WIDENED) {
            const int64_t groups = std::min(Format::WIDENED, packed.groups - g);
            const bool last = g + groups == packed.groups;
            for (int64_t i = 0; i < groups; i++)
                for (int b = 0; b < 2; b++) widen(block[b] + (g + i) * stride(), wide[b] + i * parts * BLOCK);
            for (int64_t tile = begin; tile < end; tile++) {
                const int64_t r = packed.first(tile), count = packed.first(tile + 1) - r;
                const Factors<1> factors{*this, packed, r, count, g, {pair}};
                const int32_t* const x = packed.at(tile) + g * parts * count;
                int32_t* const to = sums + (r - origin) * 2 * BLOCK;
                if (last) ask_for_outputs(r, r + count, pair);
                sum_tile<typename Format::Wide, Format::SCALES_SEGMENTS>(
                    count, x, from, wide[0], groups * parts, BLOCK, factors.get(), to
                );
                if (last) finish(packed, r, r + count, pair, to);
            }
        }
    }

    // One group of a block.
    static void widen(const int32_t* from, int32_t* to) {
        unrolled(std::make_integer_sequence<int, Format::PARTS * BLOCK_VECTORS>{}, [&](auto i) {
            const auto weights = Format::weights(i / BLOCK_VECTORS, from, i % BLOCK_VECTORS);
            std::memcpy(to + i * LANES, &weights, sizeof weights);
        });
    }

    // What sums of the segment at group g are multiplied with, for each row of a tile and each of the blocks.
    template <int pairs> struct Factors {
        float of[pairs == 1 ? Format::TALL_ROWS : Format::FOUR_BLOCKS_ROWS][2 * pairs];

        Factors(
            const Linear& linear, const PackedRows<Format>& packed, int64_t r, int64_t count, int64_t g,
            const std::array<Pair, pairs>& blocks
        ) {
            if constexpr (Format::SCALES_SEGMENTS)
                for (int64_t i = 0; i < count; i++)
                    for (int one = 0; one < pairs; one++) {
                        of[i][2 * one] = linear.format.factor(packed, r + i, g, blocks[one].first);
                        of[i][2 * one + 1] = linear.format.factor(packed, r + i, g, blocks[one].second);
                    }
        }
        const float* get() const { return Format::SCALES_SEGMENTS ? of[0] : nullptr; }
    };

#if defined(__AMX_TILE__)
    // Meanwhile the next segment, or that of the next pair of blocks, is asked for, each tile doing its share.
    void multiply_in_tiles(
        const PackedRows<Format>& packed, int64_t begin, int64_t end, Pair pair, const int32_t* const* block, int32_t* sums
    ) const {
        const int32_t *left = block[0], *right = block[1];
        const int64_t origin = packed.first(begin), lanes = stride(), next_pair = after(packed, pair) - left;
        TileRegisters registers;
        for (int64_t g = 0; g < packed.groups; g += Format::SEGMENT)
            for (int64_t tile = begin; tile < end; tile++) {
                const int64_t r = packed.first(tile), count = packed.first(tile + 1) - r;
                const int64_t next = g + Format::SEGMENT < packed.groups ? (g + Format::SEGMENT) * lanes : next_pair;
                const int64_t groups = std::min(Format::SEGMENT, packed.groups - g);
                const int64_t share = end - begin, place = tile - begin;
                const AheadOfTiles ahead{left + next, right + next, place * TILE / share, (place + 1) * TILE / share, lanes};
                registers.set(count);
                const auto add = count > TILE ? add_tile_products<Format, true> : add_tile_products<Format, false>;
                int32_t* const to = sums + (r - origin) * 2 * BLOCK;
                add({packed.at(tile) + g * count, LINE_BYTES, count * LINE_BYTES}, left + g * lanes, right + g * lanes,
                    groups, lanes, ahead, to, 2 * LINE_BYTES);
                if (g + groups == packed.groups) finish(packed, r, r + count, pair, to);
            }
    }
#endif

    // Where the sums of rows [begin, end) go, so that stores need not wait for memory. GCC drops a call of what does
    // nothing but prefetch.
    inline __attribute__((always_inline)) void ask_for_outputs(int64_t begin, int64_t end, Pair pair) const {
        const int64_t width = gate == NO_GATE ? outputs : outputs / 2;
        for (int64_t r = begin; r < end; r++) {
            __builtin_prefetch(out + r * width + pair.first * BLOCK, 1);
            if (gate == NO_GATE) __builtin_prefetch(out + r * width + pair.second * BLOCK, 1);
        }
    }

    // The sums of rows with two blocks to where they belong; at a layer's odd last block both are the same.
    void finish(const PackedRows<Format>& packed, int64_t begin, int64_t end, Pair pair, const int32_t* sums) const {
        for (int64_t r = begin; r < end; r++, sums += 2 * BLOCK) finish(packed, r, pair, sums);
    }
    void finish(const PackedRows<Format>& packed, int64_t r, Pair pair, const int32_t* sums) const {
        for (int lane = 0; lane < BLOCK; lane += LANES)
            finish(packed, r, pair.first * BLOCK + lane, pair.second * BLOCK + lane, sums + lane, sums + BLOCK + lane);
    }
    void finish(
        const PackedRows<Format>& packed, int64_t r, int64_t first, int64_t second, const int32_t* left, const int32_t* right
    ) const {
        const Floats one = product(packed, r, first, left);
        if (gate != NO_GATE)  // with the roundings of a product and an activation that are not joined
            return put(r, first, gated<T>(gate, rounded<T>(one), rounded<T>(product(packed, r, second, right))));
        put(r, first, one);
        if (second != first) put(r, second, product(packed, r, second, right));
    }

    // `column` may lie behind the last output.
    Floats product(const PackedRows<Format>& packed, int64_t r, int64_t column, const int32_t* sums) const {
        const int64_t left = std::max<int64_t>(0, outputs - column);
        const auto sum = load_vector<typename Format::Vector>(sums);
        const Floats value = format.real(sum, packed, r, column, left);
        return bias ? value + load(bias + column, left) : value;
    }

    void put(int64_t r, int64_t column, Floats value) const {
        const int64_t width = gate == NO_GATE ? outputs : outputs / 2;
        if (column < width) store_sum(out + r * width + column, value, width - column);
    }
};

}  // namespace quire

QUIRE_EXPORT void quire_linear(
    const float* x, const float* residual, const float* norm_weight, float* total, int64_t rows, int64_t inputs,
    float eps, const void* weight, const float* bias, int64_t outputs, int gate, float* out, void* scratch, int threads
) {
    quire::Linear<quire::Float32, float>{
        {}, x, residual, norm_weight, total, rows, inputs, eps, (const int32_t*)weight, bias, outputs, gate, out, threads
    }.run(scratch);
}

// The same in bfloat16, where inputs are whole 32s.
QUIRE_EXPORT void quire_linear_bf16(
    const quire::Bf16* x, const quire::Bf16* residual, const quire::Bf16* norm_weight, quire::Bf16* total, int64_t rows,
    int64_t inputs, float eps, const void* weight, const quire::Bf16* bias, int64_t outputs, int gate, quire::Bf16* out,
    void* scratch, int threads
) {
    quire::Linear<quire::Bfloat16, quire::Bf16>{
        {}, x, residual, norm_weight, total, rows, inputs, eps, (const int32_t*)weight, bias, outputs, gate, out, threads
    }.run(scratch);
}
