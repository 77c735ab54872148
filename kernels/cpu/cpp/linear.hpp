// Linear layers on packed weights: norm before the product and activation after it, joined in one call.
#pragma once

#include <algorithm>
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

constexpr int64_t CHUNK_ROWS = 256;      // at most, that share one reading of the weights
constexpr int64_t WIDENED_SEGMENT = 64;  // groups of weights that are widened once for all rows of a chunk

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

    static constexpr int64_t CHUNK_TILES = CHUNK_ROWS / Format::TILE_ROWS;

    // scratch: 8 bytes for each row and 4 for each of its inputs
    void run(void* scratch) const {
        const int64_t groups = (inputs + Format::GROUP - 1) / Format::GROUP;
        float* scales = static_cast<float*>(scratch);
        int32_t* excess = reinterpret_cast<int32_t*>(scales + rows);
        const PackedRows<Format> packed{scales, excess, excess + rows, rows, groups};
        for_rows(packed.tiles(), inputs * Format::TILE_ROWS, threads, [=](int64_t tile) { pack(packed, tile); });
        const int64_t blocks = (outputs + BLOCK - 1) / BLOCK, pairs = gate == NO_GATE ? (blocks + 1) / 2 : blocks / 2;
        const int64_t tiles = packed.tiles(), chunks = (tiles + CHUNK_TILES - 1) / CHUNK_TILES;
        const int64_t work = groups * 8 * BLOCK * std::max<int64_t>(1, std::min<int64_t>(tiles, CHUNK_TILES) / 2);
        for_rows(chunks * pairs, work, threads, [=](int64_t item) {
            const int64_t pair = item % pairs, chunk = item / pairs;
            const int64_t first = gate == NO_GATE ? 2 * pair : pair;
            const int64_t second = gate == NO_GATE ? std::min(first + 1, blocks - 1) : pair + pairs;
            multiply(packed, chunk * tiles / chunks, (chunk + 1) * tiles / chunks, first, second);
        });
    }

    void pack(const PackedRows<Format>& packed, int64_t tile) const {
        static thread_local std::vector<int32_t> lanes;
        const int64_t first = packed.first(tile), count = packed.first(tile + 1) - first;
        const int64_t n = packed.groups * Format::PARTS, stride = (n + LANES - 1) / LANES * LANES;
        lanes.resize(count * stride);
        for (int64_t r = first; r < first + count; r++)
            Format::pack(prepared(r), inputs, lanes.data() + (r - first) * stride, packed.scale + r, packed.excess + r);
        Format::lay_out(lanes.data(), count, n, stride, packed.at(tile));
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
    void multiply(
        const PackedRows<Format>& packed, int64_t begin, int64_t end, int64_t first, int64_t second
    ) const {
        alignas(64) int32_t sums[CHUNK_ROWS][2][BLOCK];
        const int64_t origin = packed.first(begin), lanes = packed.groups * BLOCK;
        const int32_t *left = weight + first * lanes, *right = weight + second * lanes;
        std::memset(sums, 0, (packed.first(end) - origin) * sizeof sums[0]);
        if constexpr (Format::IN_TILES) multiply_in_tiles(packed, begin, end, left, right, sums[0][0]);
        else if constexpr (Format::PARTS == 1) multiply_in_vectors(packed, begin, end, left, right, sums[0][0]);
        else if (end - begin == 1) multiply_in_vectors(packed, begin, end, left, right, sums[0][0]);
        else multiply_widened(packed, begin, end, left, right, sums[0][0]);
        for (int64_t r = origin; r < packed.first(end); r++)
            for (int lane = 0; lane < BLOCK; lane += LANES) {
                const int32_t* row = sums[r - origin][0] + lane;
                finish(packed, r, first * BLOCK + lane, second * BLOCK + lane, row, row + BLOCK);
            }
    }

    void multiply_in_vectors(
        const PackedRows<Format>& packed, int64_t begin, int64_t end, const int32_t* left, const int32_t* right,
        int32_t* sums
    ) const {
        const int64_t origin = packed.first(begin);
        for (int64_t g = 0; g < packed.groups; g += Format::SEGMENT)
            for (int64_t tile = begin; tile < end; tile++) {
                const int64_t r = packed.first(tile), count = packed.first(tile + 1) - r;
                sum_tile<Format>(
                    count, packed.at(tile) + g * Format::PARTS * count, left + g * BLOCK, right + g * BLOCK,
                    std::min(Format::SEGMENT, packed.groups - g), sums + (r - origin) * 2 * BLOCK
                );
            }
    }

    // The same in the same order, the parts of the weights laid out for all tiles.
    void multiply_widened(
        const PackedRows<Format>& packed, int64_t begin, int64_t end, const int32_t* left, const int32_t* right,
        int32_t* sums
    ) const {
        constexpr int parts = Format::PARTS;
        alignas(64) int32_t wide[2][WIDENED_SEGMENT * parts * BLOCK];
        const int64_t origin = packed.first(begin);
        for (int64_t g = 0; g < packed.groups; g += WIDENED_SEGMENT) {
            const int64_t groups = std::min(WIDENED_SEGMENT, packed.groups - g);
            for (int64_t i = 0; i < groups * BLOCK; i += LANES) {
                const int64_t to = (i / BLOCK * parts * BLOCK) + i % BLOCK;
                widen(left + g * BLOCK + i, wide[0] + to);
                widen(right + g * BLOCK + i, wide[1] + to);
            }
            for (int64_t tile = begin; tile < end; tile++) {
                const int64_t r = packed.first(tile), count = packed.first(tile + 1) - r;
                sum_tile<Float32>(
                    count, packed.at(tile) + g * parts * count, wide[0], wide[1], groups * parts,
                    sums + (r - origin) * 2 * BLOCK
                );
            }
        }
    }

    static void widen(const int32_t* from, int32_t* to) {
        const Floats stored = load_vector<Floats>(from);
        for (int part = 0; part < Format::PARTS; part++) {
            const Floats weights = Format::part(part, stored);
            std::memcpy(to + part * BLOCK, &weights, sizeof weights);
        }
    }

#if defined(__AMX_TILE__)
    // Meanwhile the next segment, or that of the next pair of blocks, is asked for, each tile doing its share.
    void multiply_in_tiles(
        const PackedRows<Format>& packed, int64_t begin, int64_t end, const int32_t* left, const int32_t* right,
        int32_t* sums
    ) const {
        const int64_t origin = packed.first(begin), next_pair = (gate == NO_GATE ? 2 : 1) * packed.groups * BLOCK;
        TileRegisters registers;
        for (int64_t g = 0; g < packed.groups; g += Format::SEGMENT)
            for (int64_t tile = begin; tile < end; tile++) {
                const int64_t r = packed.first(tile), count = packed.first(tile + 1) - r;
                const int64_t next = g + Format::SEGMENT < packed.groups ? (g + Format::SEGMENT) * BLOCK : next_pair;
                const int64_t share = end - begin, place = tile - begin;
                const AheadOfTiles ahead{left + next, right + next, place * TILE / share, (place + 1) * TILE / share};
                registers.set(count);
                const auto add = count > TILE ? add_tile_products<Format, true> : add_tile_products<Format, false>;
                add({packed.at(tile) + g * count, LINE_BYTES, count * LINE_BYTES}, left + g * BLOCK, right + g * BLOCK,
                    std::min(Format::SEGMENT, packed.groups - g), ahead, sums + (r - origin) * 2 * BLOCK,
                    2 * LINE_BYTES);
            }
    }
#endif

    // Two vectors of sums of row r to where they belong; at a layer's odd last block both are the same.
    void finish(
        const PackedRows<Format>& packed, int64_t r, int64_t first, int64_t second, const int32_t* left, const int32_t* right
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
    Floats product(const PackedRows<Format>& packed, int64_t r, int64_t column, const int32_t* sums) const {
        const int64_t left = std::max<int64_t>(0, outputs - column);
        const auto sum = load_vector<typename Format::Vector>(sums);
        const Floats value = Format::real(sum, packed, r, scale + column, left);
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
        x, residual, norm_weight, total, rows, inputs, eps, (const int32_t*)weight, nullptr, bias, outputs, gate, out,
        threads
    }.run(scratch);
}

// The same in bfloat16, where inputs are whole 32s.
QUIRE_EXPORT void quire_linear_bf16(
    const quire::Bf16* x, const quire::Bf16* residual, const quire::Bf16* norm_weight, quire::Bf16* total, int64_t rows,
    int64_t inputs, float eps, const void* weight, const quire::Bf16* bias, int64_t outputs, int gate, quire::Bf16* out,
    void* scratch, int threads
) {
    quire::Linear<quire::Bfloat16, quire::Bf16>{
        x, residual, norm_weight, total, rows, inputs, eps, (const int32_t*)weight, nullptr, bias, outputs, gate, out,
        threads
    }.run(scratch);
}
