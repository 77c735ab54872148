// Attention of a row of one token: bound by reading the cache, so it reads each key and value once for all query heads
// of its key-value head, and asks for the next ones early. Long rows are cut into splits that any thread may take.
#pragma once

#include "softmax.hpp"

namespace quire {

// A split's length is fixed, so a row's arithmetic depends on its own length alone.
constexpr int64_t SPLIT = 256;
constexpr int64_t KEY_TILE = 64;

// What is known of a head after some of its keys: `sum` [padded_dim] = sum of 2^(score - largest) * value, and
// `largest` and `mass` behind it.
inline int64_t state_size(const Attention& a) { return a.padded_dim() + LANES; }

// Asks for places[row, end) in the order they lie in memory, each of `span` bytes, a few cache lines at a time: the
// memory is then never idle, and never has more to do at once than it can queue.
struct Ahead {
    const char* const* places;
    int64_t row, end, span, offset = 0;

    void ask(int64_t lines) {
        for (; lines > 0 && row < end; lines--) {
            __builtin_prefetch(places[row] + offset, 0, 2);
            offset += 64;
            if (offset >= span) offset = 0, row++;
        }
    }
};

template <int groups, int... i> inline Floats halve(Floats a, Floats b, std::integer_sequence<int, i...>) {
    constexpr int width = LANES / groups, half = width / 2;  // a holds `groups` partial sums of `width` lanes, b too
    return __builtin_shufflevector(a, b, (i / half * width + i % half)...) +
           __builtin_shufflevector(a, b, (i / half * width + i % half + half)...);
}

// Queries of a key-value head that meet a key while it is in registers, with four sums each. What need not be widened is
// as soon loaded again.
template <class T> constexpr int QUERIES = std::is_same_v<T, float> ? 1 : LANES == 16 ? 4 : 2;

// Products of M queries, `dim` apart, with `count` = 4, 8, ... LANES keys, each spread over LANES / count lanes.
// `meanwhile()` is called once for every four keys.
template <int count, int M, class T, class Meanwhile>
inline void products(
    const float* query, const T* const* keys, int64_t dim, Floats (&out)[M], const Meanwhile& meanwhile
) {
    if constexpr (count > 4) {
        Floats low[M], high[M];
        products<count / 2>(query, keys, dim, low, meanwhile);
        products<count / 2>(query, keys + count / 2, dim, high, meanwhile);
        for (int m = 0; m < M; m++)
            out[m] = halve<count / 2>(low[m], high[m], std::make_integer_sequence<int, LANES>{});
    } else {
        meanwhile();
        Floats sum[M][4] = {};
        for (int64_t i = 0; i < dim; i += LANES) {
            Floats key[4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) key[j] = load(keys[j] + i);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                const Floats q = load_vector<Floats>(query + m * dim + i);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) sum[m][j] += q * key[j];
            }
        }
        const auto lanes = std::make_integer_sequence<int, LANES>{};
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
            out[m] = halve<2>(halve<1>(sum[m][0], sum[m][1], lanes), halve<1>(sum[m][2], sum[m][3], lanes), lanes);
    }
}

// f(M) for all queries of a head, up to `most` at once; f takes the next M of them.
template <int most, class F> inline void by_queries(int64_t count, const F& f) {
    static_assert(most <= 4);
    for (; count >= most; count -= most) f(std::integral_constant<int, most>{});
    if (most > 3 && count == 3) f(std::integral_constant<int, 3>{});
    if (most > 2 && count == 2) f(std::integral_constant<int, 2>{});
    if (most > 1 && count == 1) f(std::integral_constant<int, 1>{});
}

// One row of one token, and the memory its tiles work in.
struct DecodeRow {
    const Attention& a;
    const Format cached;
    const int64_t head_bytes;  // of a cached head
    int64_t row, first_head, last_head;  // key-value heads [first_head, last_head)
    float *zeros, *query, *scores, *factors, *wide;

    DecodeRow(const Attention& a, int64_t row, int64_t first_head, int64_t last_head)
        : a(a), cached(format_of(a.cache_dtype)), head_bytes(cached.row_bytes(a.head_dim)), row(row), first_head(first_head),
          last_head(last_head) {
        const int64_t dim = a.padded_dim(), heads = (last_head - first_head) * a.groups;
        zeros = scratch<0>((1 + heads + KEY_TILE) * dim + a.groups * (KEY_TILE + 1));
        query = zeros + dim;
        wide = query + heads * dim;
        scores = wide + KEY_TILE * dim;
        factors = scores + a.groups * KEY_TILE;
        std::memset(zeros, 0, dim * sizeof(float));
        const Format asked = format_of(a.query_dtype);
        for (int64_t h = 0; h < heads; h++) {
            const int64_t k = first_head + h / a.groups, g = h % a.groups;
            const int64_t place = (k * a.num_tokens + a.query_starts[row]) * a.groups + g;
            const char* from = static_cast<const char*>(a.query) + place * a.head_dim * asked.size;
            asked.widen(from, query + h * dim, a.head_dim, a.query_factor(k));
        }
    }
};

// Where the cached vectors of KEY_TILE positions begin: those of the row's first head, the others follow.
struct KeyTile {
    const char *keys[KEY_TILE], *values[KEY_TILE];
    int64_t count = 0;

    void find(const DecodeRow& r, int64_t first, int64_t last) {
        count = last - first < KEY_TILE ? (last > first ? last - first : 0) : KEY_TILE;
        locate(r.a, r.a.keys, r.row, r.first_head, first, count, KEY_TILE, r.head_bytes, keys);
        locate(r.a, r.a.values, r.row, r.first_head, first, count, KEY_TILE, r.head_bytes, values);
    }
};

// The vectors of one head as rows of T: where they lie, in the cache's own type, or copied as float32 with zeros behind.
template <class T> inline void open_rows(
    const DecodeRow& r, const char* const* places, int64_t count, int64_t head, bool copied, const T** rows
) {
    const int64_t dim = r.a.padded_dim(), offset = (head - r.first_head) * r.head_bytes;
    if (copied) r.cached.widen_rows(places, offset, count, r.wide, r.a.head_dim);
    for (int64_t j = 0; j < KEY_TILE; j++) {
        const void* const own = copied ? static_cast<const void*>(r.wide + j * dim) : places[j] + offset;
        rows[j] = static_cast<const T*>(j < count ? own : r.zeros);
    }
}

// Multiplies numbers [groups, KEY_TILE] by the scales of their rows, which begin with 8-bit integers.
template <class T> inline void times_row_scales(
    const DecodeRow& r, const T* const* rows, int64_t count, float* numbers
) {
    if constexpr (HAS_SCALE<T>) {
        alignas(64) float scales[KEY_TILE] = {};
        for (int64_t j = 0; j < count; j++) scales[j] = row_scale(rows[j], r.a.head_dim);
        for (int64_t g = 0; g < r.a.groups; g++)
            for (int64_t j = 0; j < KEY_TILE; j += LANES) {
                float* const to = numbers + g * KEY_TILE + j;
                store(to, load_vector<Floats>(to) * load_vector<Floats>(scales + j));
            }
    }
}

// Adds a tile to the states of one head's G queries. T is the type of the opened rows: widened on the way to a product.
template <class T> inline void decode_tile(
    const DecodeRow& r, const KeyTile& tile, const KeyTile& next, int64_t head, bool copied, float* states
) {
    const Attention& a = r.a;
    const int64_t dim = a.padded_dim(), size = state_size(a), heads = r.last_head - r.first_head;
    const float* const query = r.query + (head - r.first_head) * a.groups * dim;
    const T* rows[KEY_TILE];
    // with each head a share of the next tile: its keys during the first product, its values during the second
    const int64_t span = heads * r.head_bytes, share = (KEY_TILE + heads - 1) / heads;
    const int64_t begin = (head - r.first_head) * share, end = begin + share < next.count ? begin + share : next.count;
    const int64_t lines = share * ((span + 63) / 64), passes = (a.groups + QUERIES<T> - 1) / QUERIES<T>;
    Ahead keys{next.keys, begin, end, span}, values{next.values, begin, end, span};

    open_rows(r, tile.keys, tile.count, head, copied, rows);
    for (int64_t j = 0; j < tile.count; j += LANES) {
        int64_t g = 0;
        by_queries<QUERIES<T>>(a.groups, [&](auto together) {
            Floats scores[together];
            products<LANES>(query + g * dim, rows + j, dim, scores, [&] {
                keys.ask(lines / (KEY_TILE / 4 * passes) + 1);
            });
            for (int m = 0; m < together; m++) store(r.scores + (g++) * KEY_TILE + j, scores[m]);
        });
    }
    times_row_scales(r, rows, tile.count, r.scores);
    for (int64_t g = 0; g < a.groups; g++) {
        float* const state = states + g * size + dim;
        float* const scores = r.scores + g * KEY_TILE;
        r.factors[g] = soften(a, scores, 1.0f, scores, 0, KEY_TILE, 0, tile.count, state[0], state[1]);
    }
    open_rows(r, tile.values, tile.count, head, copied, rows);
    times_row_scales(r, rows, tile.count, r.scores);
    int64_t g = 0;
    by_queries<4>(a.groups, [&](auto together) {
        add_weighted_rows<together>(
            rows, 0, tile.count, r.scores + g * KEY_TILE, KEY_TILE, r.factors + g, states + g * size, size, dim,
            [&] { values.ask(lines / KEY_TILE + 1); }
        );
        g += together;
    });
}

// Positions [first, last) of `row` for key-value heads [first_head, last_head) -> their states, [heads * G, size].
inline void decode_split(
    const Attention& a, int64_t row, int64_t first_head, int64_t last_head, int64_t first, int64_t last, float* states
) {
    const DecodeRow r(a, row, first_head, last_head);
    const int64_t size = state_size(a), per_head = a.groups * size;
    std::memset(states, 0, (last_head - first_head) * per_head * sizeof(float));
    for (int64_t h = 0; h < (last_head - first_head) * a.groups; h++) states[h * size + a.padded_dim()] = -INFINITE;
    KeyTile tiles[2];
    tiles[0].find(r, first, last);
    const bool copied = a.padded_dim() != a.head_dim;  // a vector's last register would hold some of the next head
    auto add = decode_tile<float>;
    if (!copied) for_cache_dtype(a.cache_dtype, [&](auto* t) { add = decode_tile<std::remove_pointer_t<decltype(t)>>; });
    for (int64_t start = first, now = 0; start < last; start += KEY_TILE, now ^= 1) {
        tiles[now ^ 1].find(r, start + KEY_TILE, last);
        for (int64_t k = first_head; k < last_head; k++)
            add(r, tiles[now], tiles[now ^ 1], k, copied, states + (k - first_head) * per_head);
    }
}

// The states of a row's splits, in their order and `split_stride` apart -> its output.
inline void merge_splits(
    const Attention& a, int64_t row, int64_t kv_head, const float* states, int64_t num_splits, int64_t split_stride
) {
    const Format asked = format_of(a.query_dtype);
    const int64_t dim = a.padded_dim(), size = state_size(a);
    float* const total = scratch<0>(dim);
    for (int64_t g = 0; g < a.groups; g++) {
        const int64_t head = kv_head * a.groups + g;
        const float* const state = states + g * size;
        float largest = a.sink(head);
        for (int64_t s = 0; s < num_splits; s++) {
            const float most = state[s * split_stride + dim];
            largest = most > largest ? most : largest;
        }
        const float base = largest == -INFINITE ? 0.0f : largest;
        float mass = exp2(splat(a.sink(head) - base))[0];
        std::memset(total, 0, dim * sizeof(float));
        for (int64_t s = 0; s < num_splits; s++) {
            const float* const part = state + s * split_stride;
            const float factor = exp2(splat(part[dim] - base))[0];
            mass += factor * part[dim + 1];
            for (int64_t d = 0; d < dim; d += LANES) store(total + d, load(total + d) + load(part + d) * factor);
        }
        const int64_t place = (a.query_starts[row] * a.kv_heads * a.groups + head) * a.head_dim;
        asked.narrow(total, static_cast<char*>(a.out) + place * asked.size, a.head_dim, a.value_factor(kv_head) / mass);
    }
}

}  // namespace quire
