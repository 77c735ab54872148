// Attention of a row of several tokens: bound by arithmetic, so both products are micro-kernels that hold their sums in
// registers. The G query heads of a key-value head are G more query rows: they share the tile of packed keys.
#pragma once

#include "key_products.hpp"
#include "softmax.hpp"

namespace quire {

constexpr int64_t QUERY_TILE = 384;  // (token, head) pairs: a multiple of MICRO_ROWS
constexpr int64_t CONTEXT_TILE = 256;
constexpr int MICRO_ROWS = 6;
constexpr int64_t PANEL_KEYS = PANEL * LANES;

// scores [MICRO_ROWS, PANEL_KEYS] = query rows x packed keys [dim, PANEL_KEYS].
inline void score_panel(const float* query, int64_t query_stride, const float* packed, int64_t dim, float* scores) {
    Floats sum[MICRO_ROWS][PANEL] = {};
    for (int64_t d = 0; d < dim; d++) {
        Floats k[PANEL];
#pragma GCC unroll 8
        for (int v = 0; v < PANEL; v++) k[v] = load_vector<Floats>(packed + d * PANEL_KEYS + v * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < MICRO_ROWS; m++) {
            const Floats q = splat(query[m * query_stride + d]);
#pragma GCC unroll 8
            for (int v = 0; v < PANEL; v++) sum[m][v] += q * k[v];
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < MICRO_ROWS; m++)
#pragma GCC unroll 8
        for (int v = 0; v < PANEL; v++) store(scores + m * CONTEXT_TILE + v * LANES, sum[m][v]);
}

// A tile of queries of one row and key-value head, and what is known of it so far.
struct QueryTile {
    const Attention& a;
    int64_t row, kv_head, first, count;  // pairs [first, first + count) of the row's query_len * G
    int64_t dim;  // of a head, padded
    float *query, *sums, *largest, *mass;  // [QUERY_TILE, dim] twice, [QUERY_TILE] twice

    // What a pair sees is [begin, end) of the row's sequence.
    int64_t begin(int64_t pair) const { return a.both_ways() ? 0 : a.first_seen(position(pair)); }
    int64_t end(int64_t pair) const {
        if (a.both_ways()) return a.query_len(row);
        return (a.last_visible ? a.last_visible[a.query_starts[row] + token(pair)] : position(pair)) + 1;
    }

    // f(pair, place): where the queries lie.
    template <class F> void for_queries(const F& f) const {
        const int64_t size = format_of(a.query_dtype).size, token = a.query_starts[row], n = a.head_dim;
        const int64_t step = a.both_ways() ? a.token_stride : n;
        const int64_t start = a.both_ways() ? (token + first) * step + kv_head * n
                                            : ((kv_head * a.num_tokens + token) * a.groups + first) * n;
        const char* place = static_cast<const char*>(a.query) + start * size;
        for (int64_t pair = 0; pair < count; pair++, place += step * size) f(pair, place);
    }

private:
    int64_t token(int64_t pair) const {  // of the row; pairs that fill a micro-tile repeat the last one
        return (first + (pair < count ? pair : count - 1)) / a.groups;
    }
    int64_t position(int64_t pair) const { return a.seq_lens[row] - a.query_len(row) + token(pair); }
};

// Keys of a context tile whose values are not finite. The queries of a micro-tile meet the values of all that one of them
// sees, with weight zero for what they do not see themselves, and zero times infinity is not zero: a later token's NaN
// would come to earlier tokens, whose blocks other requests share. So these values are zeros in the product, and are
// added to who sees them.
struct Apart {
    const Format format;
    float* value;  // room for one
    int64_t count = 0, keys[CONTEXT_TILE];
    const char* places[CONTEXT_TILE];

    void take(int64_t key, const char* place) {
        keys[count] = key;
        places[count++] = place;
    }

    // To `rows` pairs from `pair` on with weights [rows, stride], of the tile that begins at token `start`.
    template <class T>
    void add(const QueryTile& tile, int64_t pair, int rows, int64_t start, const T* weights, int64_t stride) const {
        const Attention& a = tile.a;
        for (int64_t i = 0; i < count; i++) {
            format.widen(places[i], value, a.head_dim, 1.0f);
            for (int m = 0; m < rows; m++) {
                const int64_t key = start + keys[i];
                if (key < tile.begin(pair + m) || key >= tile.end(pair + m)) continue;
                const float weight = load(weights + m * stride + keys[i], 1)[0];
                float* const sums = tile.sums + (pair + m) * tile.dim;
                for (int64_t d = 0; d < a.head_dim; d++) sums[d] += weight * value[d];
            }
        }
    }
};

inline bool all_finite(const float* x, int64_t n) {
    Floats zeros{};  // or NaN: infinity times zero
    for (int64_t i = 0; i < n; i += LANES) zeros += load_vector<Floats>(x + i) * 0.0f;
    return sum_of(zeros) == 0.0f;
}

// Adds the keys [start, start + keys) to MICRO_ROWS pairs from `pair` on.
inline void attend_micro_tile(
    const QueryTile& tile, int64_t pair, int64_t start, int64_t keys, const float* packed, const float* const* values,
    const Apart& apart
) {
    const Attention& a = tile.a;
    const int64_t dim = tile.dim;
    alignas(64) float scores[MICRO_ROWS * CONTEXT_TILE];
    float factors[MICRO_ROWS];
    // what the first of these pairs sees begins first, what the last one sees ends last
    const int64_t from = std::max<int64_t>(0, tile.begin(pair) - start);
    const int64_t to = std::min(keys, tile.end(pair + MICRO_ROWS - 1) - start);
    if (from >= to) return;
    const int64_t low = from / PANEL_KEYS * PANEL_KEYS, high = (to + PANEL_KEYS - 1) / PANEL_KEYS * PANEL_KEYS;
    for (int64_t j = low; j < high; j += PANEL_KEYS)
        score_panel(tile.query + pair * dim, dim, packed + j * dim, a.head_dim, scores + j);
    for (int m = 0; m < MICRO_ROWS; m++) {
        float* const own = scores + m * CONTEXT_TILE;
        factors[m] = soften(
            a, own, 1.0f, own, low, high, tile.begin(pair + m) - start, std::min(keys, tile.end(pair + m) - start),
            tile.largest[pair + m], tile.mass[pair + m]
        );
    }
    add_weighted_rows<MICRO_ROWS>(values, from, to, scores, CONTEXT_TILE, factors, tile.sums + pair * dim, dim, dim);
    apart.add(tile, pair, MICRO_ROWS, start, scores, CONTEXT_TILE);
}

inline void finish(const QueryTile& tile) {
    const Attention& a = tile.a;
    const Format asked = format_of(a.query_dtype);
    for (int64_t pair = 0; pair < tile.count; pair++) {
        const int64_t token = a.query_starts[tile.row] + (tile.first + pair) / a.groups;
        const int64_t head = tile.kv_head * a.groups + (tile.first + pair) % a.groups;
        const int64_t place = (token * a.kv_heads * a.groups + head) * a.head_dim;
        asked.narrow(
            tile.sums + pair * tile.dim, static_cast<char*>(a.out) + place * asked.size, a.head_dim,
            a.value_factor(tile.kv_head) / tile.mass[pair]
        );
    }
}

// Pairs [first, ...) of a row for one key-value head, from its first visible key to its last.
inline void prefill_tile(const Attention& a, int64_t row, int64_t kv_head, int64_t first) {
    const Format cached = format_of(a.cache_dtype);
    const int64_t dim = a.padded_dim(), pairs = a.query_len(row) * a.groups - first;
    const int64_t head_bytes = cached.row_bytes(a.head_dim), count = pairs < QUERY_TILE ? pairs : QUERY_TILE;
    const int64_t rounded_count = (count + MICRO_ROWS - 1) / MICRO_ROWS * MICRO_ROWS;
    float* const query = scratch<0>(2 * (QUERY_TILE + CONTEXT_TILE) * dim + 2 * QUERY_TILE + dim);
    float* const sums = query + QUERY_TILE * dim;
    float* const packed = sums + QUERY_TILE * dim;
    float* const wide = packed + CONTEXT_TILE * dim;
    float* const largest = wide + CONTEXT_TILE * dim;
    const QueryTile tile{a, row, kv_head, first, count, dim, query, sums, largest, largest + QUERY_TILE};

    std::memset(query, 0, rounded_count * dim * sizeof(float));
    std::memset(sums, 0, rounded_count * dim * sizeof(float));
    for (int64_t pair = 0; pair < rounded_count; pair++) {
        tile.largest[pair] = a.sink(kv_head * a.groups + (first + pair) % a.groups);
        tile.mass[pair] = a.sinks ? 1.0f : 0.0f;
    }
    tile.for_queries([&](int64_t pair, const char* place) {
        const bool rounded = a.cache_dtype == INT8;
        float* const own = query + pair * dim;
        format_of(a.query_dtype).widen(place, own, a.head_dim, rounded ? 1.0f : a.query_factor(kv_head));
        if (rounded) widen_row<float>(own, own, a.head_dim, round_query(own, a.head_dim) * a.query_factor(kv_head));
    });

    const char* places[CONTEXT_TILE];
    const float* values[CONTEXT_TILE];
    for (int64_t j = 0; j < CONTEXT_TILE; j++) values[j] = wide + j * dim;
    // not a position before the first visible one is touched: its block may belong to somebody else by now
    const int64_t end = tile.end(count - 1);
    for (int64_t start = tile.begin(0); start < end; start += CONTEXT_TILE) {
        const int64_t keys = end - start < CONTEXT_TILE ? end - start : CONTEXT_TILE;
        const int64_t padded = (keys + PANEL_KEYS - 1) / PANEL_KEYS * PANEL_KEYS;
        locate(a, a.keys, row, kv_head, start, keys, padded, head_bytes, places);
        for (int64_t j = 0; j < padded; j += LANES) {
            float* const panel = packed + j / PANEL_KEYS * PANEL_KEYS * dim + j % PANEL_KEYS;
            cached.transpose(places + j, panel, a.head_dim, PANEL_KEYS);
        }
        locate(a, a.values, row, kv_head, start, keys, keys, head_bytes, places);
        cached.widen_rows(places, 0, keys, wide, a.head_dim);
        Apart apart{cached, largest + 2 * QUERY_TILE};
        for (int64_t j = 0; j < keys; j++)
            if (!all_finite(wide + j * dim, dim)) {
                apart.take(j, places[j]);
                std::memset(wide + j * dim, 0, dim * sizeof(float));
            }
        for (int64_t pair = 0; pair < rounded_count; pair += MICRO_ROWS)
            attend_micro_tile(tile, pair, start, keys, packed, values, apart);
    }
    finish(tile);
}

}  // namespace quire
