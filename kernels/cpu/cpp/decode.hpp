// Attention of a row of one token: bound by reading the cache, so it reads each key and value once for all query heads
// of its key-value head, and asks for the next ones early. Long rows are cut into splits that any thread may take.
#pragma once

#include "key_products.hpp"
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

// One row of one token, and the memory its tiles work in.
struct DecodeRow {
    const Attention& a;
    const Format cached;
    const int64_t head_bytes;  // of a cached head
    const int64_t code_stride;
    int64_t row, first_head, last_head;  // key-value heads [first_head, last_head)
    float *zeros, *query, *scores, *factors, *wide;
    // beside a cache of 8-bit integers queries are such, too: [heads, code_stride], with a scale each and what the keys'
    // zero point of 128 adds to their sums
    int8_t* codes;
    float* scales;
    int32_t* excess;

    DecodeRow(const Attention& a, int64_t row, int64_t first_head, int64_t last_head)
        : a(a), cached(format_of(a.cache_dtype)), head_bytes(cached.row_bytes(a.head_dim)),
          code_stride((a.head_dim + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES), row(row), first_head(first_head),
          last_head(last_head) {
        const int64_t dim = a.padded_dim(), heads = (last_head - first_head) * a.groups;
        zeros = scratch<0>((1 + heads + KEY_TILE) * dim + a.groups * (KEY_TILE + 1) + heads * (code_stride / 4 + 2));
        query = zeros + dim;
        wide = query + heads * dim;
        scores = wide + KEY_TILE * dim;
        codes = reinterpret_cast<int8_t*>(scores + a.groups * KEY_TILE);
        scales = reinterpret_cast<float*>(codes + heads * code_stride);
        excess = reinterpret_cast<int32_t*>(scales + heads);
        factors = scales + 2 * heads;
        std::memset(zeros, 0, dim * sizeof(float));
        const Format asked = format_of(a.query_dtype);
        for (int64_t h = 0; h < heads; h++) {
            const int64_t k = first_head + h / a.groups, g = h % a.groups;
            const int64_t place = (k * a.num_tokens + a.query_starts[row]) * a.groups + g;
            const char* from = static_cast<const char*>(a.query) + place * a.head_dim * asked.size;
            asked.widen(from, query + h * dim, a.head_dim, in_codes() ? 1.0f : a.query_factor(k));
            if (in_codes()) encode(h, query + h * dim, a.query_factor(k));
        }
    }

    bool in_codes() const { return a.cache_dtype == INT8; }

private:
    void encode(int64_t head, float* x, float factor) {
        int8_t* const own = codes + head * code_stride;
        std::memset(own, 0, code_stride);
        scales[head] = round_query(x, a.head_dim) * factor;
        Floats sum{};
        for (int64_t d = 0; d < a.head_dim; d += LANES) {
            const Floats some = load(x + d, a.head_dim - d);
            store(reinterpret_cast<I8*>(own) + d, some, a.head_dim - d);
            sum += some;
        }
        excess[head] = 128 * static_cast<int32_t>(sum_of(sum));
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

// Scores [groups, KEY_TILE] of one head's queries with a tile of its keys. `meanwhile(times)` is called `times` times for a
// whole tile.
template <class T, class Meanwhile>
inline void score_tile(const DecodeRow& r, const KeyTile& tile, int64_t head, bool copied, const Meanwhile& meanwhile) {
    const Attention& a = r.a;
    const int64_t dim = a.padded_dim(), times = KEY_TILE / 4 * ((a.groups + QUERIES<T> - 1) / QUERIES<T>);
    const float* const query = r.query + (head - r.first_head) * a.groups * dim;
    const T* rows[KEY_TILE];
    open_rows(r, tile.keys, tile.count, head, copied, rows);
    for (int64_t j = 0; j < tile.count; j += LANES) {
        int64_t g = 0;
        by_queries<QUERIES<T>>(a.groups, [&](auto together) {
            Floats scores[together];
            products<LANES>(query + g * dim, rows + j, dim, scores, [&] { meanwhile(times); });
            for (int m = 0; m < together; m++) store(r.scores + (g++) * KEY_TILE + j, scores[m]);
        });
    }
}

// The same of integers.
template <class Meanwhile>
inline void score_codes(const DecodeRow& r, const KeyTile& tile, int64_t head, const Meanwhile& meanwhile) {
    constexpr int TOGETHER = LANES == 16 ? 4 : 2;
    const Attention& a = r.a;
    const int64_t first = (head - r.first_head) * a.groups;
    const int64_t times = KEY_TILE / (LANES / 4) * ((a.groups + TOGETHER - 1) / TOGETHER);
    const I8* rows[KEY_TILE];
    open_rows(r, tile.keys, tile.count, head, false, rows);
    for (int64_t j = 0; j < tile.count; j += LANES) {
        int64_t g = 0;
        by_queries<TOGETHER>(a.groups, [&](auto together) {
            Ints sums[together];
            const int8_t* const codes = r.codes + (first + g) * r.code_stride;
            products(codes, r.code_stride, rows + j, a.head_dim, sums, [&] { meanwhile(times); });
            for (int m = 0; m < together; m++, g++) {
                const Floats whole = __builtin_convertvector(sums[m] - r.excess[first + g], Floats);
                store(r.scores + g * KEY_TILE + j, whole * r.scales[first + g]);
            }
        });
    }
    times_row_scales(r, rows, tile.count, r.scores);
}

// Adds a tile to the states of one head's G queries. T is the type of the opened rows: widened on the way to a product.
template <class T> inline void decode_tile(
    const DecodeRow& r, const KeyTile& tile, const KeyTile& next, int64_t head, bool copied, float* states
) {
    const Attention& a = r.a;
    const int64_t dim = a.padded_dim(), size = state_size(a), heads = r.last_head - r.first_head;
    // with each head a share of the next tile: its keys during the first product, its values during the second
    const int64_t span = heads * r.head_bytes, share = (KEY_TILE + heads - 1) / heads;
    const int64_t begin = (head - r.first_head) * share, end = begin + share < next.count ? begin + share : next.count;
    const int64_t lines = share * ((span + 63) / 64);
    Ahead keys{next.keys, begin, end, span}, values{next.values, begin, end, span};

    const auto ask = [&](int64_t times) { keys.ask(lines / times + 1); };
    if (r.in_codes()) score_codes(r, tile, head, ask);
    else score_tile<T>(r, tile, head, copied, ask);
    for (int64_t g = 0; g < a.groups; g++) {
        float* const state = states + g * size + dim;
        float* const scores = r.scores + g * KEY_TILE;
        r.factors[g] = soften(a, scores, 1.0f, scores, 0, KEY_TILE, 0, tile.count, state[0], state[1]);
    }
    const T* rows[KEY_TILE];
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
