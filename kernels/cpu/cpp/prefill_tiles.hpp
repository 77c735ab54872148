// Attention of a row of several tokens in bfloat16, both products by tile registers or by products of pairs: scores are
// sums in float32, weights are rounded to bfloat16 on their way to the second product, and the outputs are sums in
// float32 again.
#pragma once

#include "amx.hpp"
#include "bf16.hpp"
#include "prefill.hpp"

#if defined(__AVX512BF16__)

namespace quire {

constexpr int64_t TWO_BLOCKS = 2 * BLOCK;
constexpr int64_t SCORE_STRIDE = CONTEXT_TILE + BLOCK;  // off a power of two: rows would share a place in the cache
constexpr int64_t WEIGHT_STRIDE = CONTEXT_TILE + TWO_BLOCKS;

// sums [PAIRS, 2 blocks] = factors [PAIRS] * sums + rows [PAIRS, 2 groups] x two blocks [groups, 16, 2]; no factors: there
// were no sums before. Strides are in elements.
#if defined(__AMX_BF16__)
class PairProducts {
public:
    static constexpr int64_t PAIRS = 2 * TILE;  // (token, head) pairs that go through together
    static constexpr int64_t GRAIN = TILE;      // groups come in so many

    void add(
        const Bf16* rows, int64_t row_stride, const int32_t* first, const int32_t* second, int64_t groups,
        const float* factors, float* sums, int64_t sum_stride
    ) {
        for (int64_t m = 0; m < PAIRS; m++)
            for (int64_t i = 0; i < TWO_BLOCKS; i += LANES) {
                float* const sum = sums + m * sum_stride + i;
                store(sum, factors ? load_vector<Floats>(sum) * factors[m] : Floats{});
            }
        registers.set(PAIRS);
        add_tile_products<Bfloat16, true>(
            {rows, row_stride * 2, LINE_BYTES}, first, second, groups, BLOCK, {nullptr, nullptr, 0, 0, 0}, sums,
            sum_stride * sizeof(float)
        );
    }

private:
    TileRegisters registers;
};
#else
struct PairProducts {
    static constexpr int64_t PAIRS = 8;  // few: their scores and weights stay in the first cache
    static constexpr int64_t GRAIN = 1;

    void add(
        const Bf16* rows, int64_t row_stride, const int32_t* first, const int32_t* second, int64_t groups,
        const float* factors, float* sums, int64_t sum_stride
    ) {
        Floats left[PAIRS] = {}, right[PAIRS] = {};
        if (factors)
#pragma GCC unroll 8
            for (int m = 0; m < PAIRS; m++) {
                left[m] = load_vector<Floats>(sums + m * sum_stride) * factors[m];
                right[m] = load_vector<Floats>(sums + m * sum_stride + BLOCK) * factors[m];
            }
        for (int64_t g = 0; g < groups; g++) {
            const Floats one = load_vector<Floats>(first + g * BLOCK), other = load_vector<Floats>(second + g * BLOCK);
#pragma GCC unroll 8
            for (int m = 0; m < PAIRS; m++) {
                int32_t pair;
                std::memcpy(&pair, rows + m * row_stride + 2 * g, sizeof pair);
                const Floats x = bits_of<Floats>(pair - Ints{});
                left[m] = Bfloat16::dot(left[m], one, x);
                right[m] = Bfloat16::dot(right[m], other, x);
            }
        }
#pragma GCC unroll 8
        for (int m = 0; m < PAIRS; m++) {
            store(sums + m * sum_stride, left[m]);
            store(sums + m * sum_stride + BLOCK, right[m]);
        }
    }
};
#endif

constexpr int64_t PAIRS = PairProducts::PAIRS;

// Of attention in both directions any even head, padded.
inline bool in_tiles(const Attention& a) {
    const bool cached = a.cache_dtype == BF16 || a.cache_dtype == FP8 || a.cache_dtype == INT8;
    return a.query_dtype == BF16 && cached && a.head_dim % (a.both_ways() ? 2 : TWO_BLOCKS) == 0;
}

// Cached rows of n numbers, which the places then have in bfloat16, at `to`. 8-bit floats keep their value.
template <class T> void round_rows(const char** places, int64_t count, Bf16* to, int64_t n) {
    for (int64_t j = 0; j < count; j++, to += n) {
        const T* const from = reinterpret_cast<const T*>(places[j]);
        const float scale = row_scale(from, n);
        for (int64_t i = 0; i < n; i += LANES) store_sum(to + i, load(from + i) * scale, LANES);
        places[j] = reinterpret_cast<const char*>(to);
    }
}

// Bits 31 and 15 of a word say of which of its halves, as bfloat16, every bit of the exponent is set: NaN and infinity.
inline Words not_finite(Words pairs) { return ((pairs & 0x7fff7fff) + 0x00800080) & 0x80008000; }

// Numbers d to d + 16 of a row of n, those behind it as zeros; zeros for a null place, too.
inline Words block_of(const char* place, int64_t d, int64_t n) {
    if (!place || d >= n) return Words{};
    if (d + BLOCK <= n) return wide(load_vector<Halves>(place + d * sizeof(Bf16)));
    return (Words)_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((1u << (n - d)) - 1, place + d * sizeof(Bf16)));
}

// `count` cached values of n numbers (null places read as zero) -> [dim / 16, keys / 2, 16, 2]: blocks like a weight's.
// Returns whether all are finite.
inline bool pair_rows(const char* const* places, int64_t count, Bf16* to, int64_t n, int64_t dim) {
    Words odd{};
    for (int64_t d = 0; d < dim; d += BLOCK)
        for (int64_t j = 0; j < count; j += 2, to += 2 * BLOCK) {
            const Words pair = block_of(places[j], d, n) | block_of(places[j + 1], d, n) << 16;
            odd |= not_finite(pair);
            std::memcpy(to, &pair, sizeof pair);
        }
    return !any(odd);
}

// Gives `apart` the values that are not finite, and null for their places.
inline void take_apart(const char** places, int64_t count, int64_t n, Apart& apart) {
    for (int64_t j = 0; j < count; j++) {
        Words odd{};
        for (int64_t d = 0; d < n; d += BLOCK) odd |= not_finite(block_of(places[j], d, n));
        if (!any(odd)) continue;
        apart.take(j, places[j]);
        places[j] = nullptr;
    }
}

// The tile of keys and values that all pairs of a query tile meet: [keys / 16, dim / 2, 16, 2] and
// [dim / 16, keys / 2, 16, 2], with zeros for keys up to the next multiple of 32.
struct ContextTile {
    int64_t start, keys, padded;
    int32_t *packed, *values;

    const int32_t* key_block(int64_t key, int64_t dim) const { return packed + key * dim / 2; }
    const int32_t* value_block(int64_t d, int64_t key) const { return values + (d * padded + key * BLOCK) / 2; }
};

// Adds a tile of keys to PAIRS pairs from `pair` on. scales [count]: what makes their scores logits.
inline void attend_pairs(
    const QueryTile& tile, const Bf16* query, const float* scales, int64_t pair, const ContextTile& context,
    const Apart& apart, PairProducts& products
) {
    const Attention& a = tile.a;
    const int64_t dim = tile.dim, start = context.start, keys = context.keys;
    const int64_t groups = (a.head_dim / 2 + PairProducts::GRAIN - 1) / PairProducts::GRAIN * PairProducts::GRAIN;
    const int64_t from = std::max<int64_t>(0, tile.begin(pair) - start);
    const int64_t to = std::min(keys, tile.end(pair + PAIRS - 1) - start);
    if (from >= to) return;
    const int64_t low = from / TWO_BLOCKS * TWO_BLOCKS, high = (to + TWO_BLOCKS - 1) / TWO_BLOCKS * TWO_BLOCKS;
    alignas(64) float scores[PAIRS * SCORE_STRIDE];
    alignas(64) Bf16 weights[PAIRS * WEIGHT_STRIDE];
    float factors[PAIRS];
    for (int64_t key = low; key < high; key += TWO_BLOCKS)
        products.add(
            query + pair * dim, dim, context.key_block(key, dim), context.key_block(key + BLOCK, dim), groups, nullptr,
            scores + key, SCORE_STRIDE
        );
    for (int64_t m = 0; m < PAIRS; m++)
        factors[m] = soften(
            a, scores + m * SCORE_STRIDE, scales[pair + m], weights + m * WEIGHT_STRIDE, low, high,
            tile.begin(pair + m) - start, std::min(keys, tile.end(pair + m) - start), tile.largest[pair + m],
            tile.mass[pair + m]
        );
    for (int64_t d = 0; d < dim; d += TWO_BLOCKS)
        products.add(
            weights + low, WEIGHT_STRIDE, context.value_block(d, low), context.value_block(d + BLOCK, low),
            (high - low) / 2, factors, tile.sums + pair * dim + d, dim
        );
    apart.add(tile, pair, PAIRS, start, weights, WEIGHT_STRIDE);
}

// prefill_tile of these dtypes.
inline void prefill_in_tiles(const Attention& a, int64_t row, int64_t kv_head, int64_t first) {
    const int64_t n = a.head_dim, dim = (n + TWO_BLOCKS - 1) / TWO_BLOCKS * TWO_BLOCKS;
    const int64_t pairs = a.query_len(row) * a.groups - first;
    const int64_t count = pairs < QUERY_TILE ? pairs : QUERY_TILE, rounded_count = (count + PAIRS - 1) / PAIRS * PAIRS;
    float* const sums = scratch<0>((QUERY_TILE + QUERY_TILE / 2 + CONTEXT_TILE * 3 / 2 + 1) * dim + 3 * QUERY_TILE);
    Bf16* const query = reinterpret_cast<Bf16*>(sums + QUERY_TILE * dim);
    float* const packed = sums + (QUERY_TILE + QUERY_TILE / 2) * dim;
    int32_t* const values = reinterpret_cast<int32_t*>(packed) + CONTEXT_TILE * dim / 2;
    Bf16* const rounded = reinterpret_cast<Bf16*>(packed + CONTEXT_TILE * dim);
    float* const largest = packed + CONTEXT_TILE * 3 / 2 * dim;
    float *const scales = largest + 2 * QUERY_TILE, *const one_row = scales + QUERY_TILE;
    const QueryTile tile{a, row, kv_head, first, count, dim, nullptr, sums, largest, largest + QUERY_TILE};

    std::memset(query, 0, rounded_count * dim * sizeof(Bf16));
    tile.for_queries([&](int64_t pair, const char* place) { std::memcpy(query + pair * dim, place, n * sizeof(Bf16)); });
    std::memset(sums, 0, rounded_count * dim * sizeof(float));
    for (int64_t pair = 0; pair < rounded_count; pair++) {
        tile.largest[pair] = a.sink(kv_head * a.groups + (first + pair) % a.groups);
        tile.mass[pair] = a.sinks ? 1.0f : 0.0f;
        scales[pair] = a.query_factor(kv_head);
        if (a.cache_dtype == INT8) {
            widen_row<Bf16>(query + pair * dim, one_row, dim, 1.0f);
            scales[pair] *= round_query(one_row, dim);
            narrow_row<Bf16>(one_row, query + pair * dim, dim, 1.0f);  // exactly
        }
    }

    const char* places[CONTEXT_TILE];
    const Format cached = format_of(a.cache_dtype);
    const auto find = [&](const void* cache, int64_t start, int64_t keys, int64_t padded) {
        locate(a, cache, row, kv_head, start, keys, padded, cached.row_bytes(n), places);
        if (a.cache_dtype == FP8) round_rows<Fp8>(places, keys, rounded, dim);
        if (a.cache_dtype == INT8) round_rows<I8>(places, keys, rounded, dim);
    };
    const int64_t end = tile.end(count - 1);
    PairProducts products;
    for (int64_t start = tile.begin(0); start < end; start += CONTEXT_TILE) {
        const int64_t keys = end - start < CONTEXT_TILE ? end - start : CONTEXT_TILE;
        const int64_t padded = (keys + TWO_BLOCKS - 1) / TWO_BLOCKS * TWO_BLOCKS;
        const ContextTile context{start, keys, padded, reinterpret_cast<int32_t*>(packed), values};
        find(a.keys, start, keys, padded);
        for (int64_t j = 0; j < padded; j += BLOCK)  // pairs of numbers move as one
            transpose_rows<float>(places + j, packed + j * dim / 2, n / 2, BLOCK);
        find(a.values, start, keys, padded);
        Apart apart{format_of(BF16), one_row};
        if (!pair_rows(places, padded, reinterpret_cast<Bf16*>(values), n, dim)) {
            take_apart(places, keys, n, apart);
            pair_rows(places, padded, reinterpret_cast<Bf16*>(values), n, dim);
        }
        for (int64_t pair = 0; pair < rounded_count; pair += PAIRS)
            attend_pairs(tile, query, scales, pair, context, apart, products);
    }
    finish(tile);
}

}  // namespace quire
#endif
