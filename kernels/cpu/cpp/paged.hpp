// Attention over a paged cache, or in both directions without one: its arguments, where a sequence's keys and values lie,
// and what turns a score into a logit. Scores are kept in base 2: log2(e) is folded into the scale, and 2^x is what the
// softmax takes.
#pragma once

#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>

#include "dtype.hpp"
#include "parallel.hpp"
#include "simd.hpp"
#include "transpose.hpp"

namespace quire {

constexpr float INFINITE = std::numeric_limits<float>::infinity();

struct Attention {
    const void* query;  // [K, T, G, D]
    const void* keys;   // [num_blocks, block_size, K, D], rows of D elements as dtype.hpp says
    const void* values;
    void* out;  // [T, K * G * D]
    const int32_t* tables;
    const int32_t* slots;
    const int32_t* seq_lens;
    const int32_t* query_starts;
    const float* sinks;        // null, or [K * G]
    const float* key_scale;    // null, or [K]
    const float* value_scale;  // null, or [K]
    // Null, or [T]: the last position that each token sees, its own or a later one; it falls nowhere within a row. A row
    // of one token sees to its own.
    const int32_t* last_visible;
    int64_t num_rows, num_tokens, kv_heads, groups, head_dim, block_size, table_width;
    int64_t window;  // larger than any length when there is none
    int64_t chunk;   // not 0: a token sees from the last multiple of it on; there is no window then
    float scale, soft_cap;  // soft_cap 0: none
    int query_dtype, cache_dtype;
    // Not 0: there is no cache, and a token sees all of its row. `query`, `keys` and `values` then point into the product
    // that made them, [T, token_stride] of one type; G is 1; tables, slots and seq_lens are null.
    int64_t token_stride = 0;

    bool both_ways() const { return token_stride > 0; }
    bool decodes(int64_t row) const { return query_len(row) == 1 && !both_ways(); }
    int64_t padded_dim() const { return (head_dim + LANES - 1) / LANES * LANES; }
    int64_t query_len(int64_t row) const { return query_starts[row + 1] - query_starts[row]; }
    int64_t first_seen(int64_t position) const {
        if (chunk > 0) return position / chunk * chunk;
        return position < window ? 0 : position - window + 1;
    }
    float sink(int64_t head) const { return sinks ? sinks[head] * LOG2_E : -INFINITE; }
    float value_factor(int64_t kv_head) const { return value_scale ? value_scale[kv_head] : 1.0f; }

    // What queries are multiplied by; with a soft cap the base changes only after it, see capped().
    float query_factor(int64_t kv_head) const {
        return scale * (key_scale ? key_scale[kv_head] : 1.0f) * (soft_cap > 0.0f ? 1.0f : LOG2_E);
    }
    Floats capped(Floats score) const { return soft_cap * LOG2_E * tanh(score / soft_cap); }
};

// Memory of the calling thread, aligned for vectors; valid until the next call with the same tag.
template <int tag> inline float* scratch(size_t floats) {
    struct Buffer {
        float* data = nullptr;
        size_t size = 0;
        ~Buffer() { std::free(data); }
    };
    thread_local Buffer buffer;
    if (buffer.size < floats) {
        std::free(buffer.data);
        buffer.size = (floats + 4095) / 4096 * 4096;
        buffer.data = static_cast<float*>(std::aligned_alloc(64, buffer.size * sizeof(float)));
        if (!buffer.data) throw std::bad_alloc();
    }
    return buffer.data;
}

// The same for all threads that make this call together: the memory of one of them.
template <int tag> inline float* common_scratch(size_t floats) {
    if (!member.team) return scratch<tag>(floats);
    once([=] { member.team->common = scratch<tag>(floats); });
    return member.team->common;
}

// ---- rows of memory as float32, whatever they hold ----

template <class T> void widen_row(const void* from, float* to, int64_t n, float factor) {
    factor *= row_scale(static_cast<const T*>(from), n);
    for (int64_t i = 0; i < n; i += LANES) store(to + i, load(static_cast<const T*>(from) + i, n - i) * factor);
}

// `count` rows that begin `offset` bytes behind the places, with a stride of n rounded up to whole vectors.
template <class T>
void widen_rows(const char* const* places, int64_t offset, int64_t count, float* to, int64_t n) {
    for (int64_t j = 0; j < count; j++) {
        const T* const from = reinterpret_cast<const T*>(places[j] + offset);
        const float scale = row_scale(from, n);
        for (int64_t i = 0; i < n; i += LANES, to += LANES) {
            const Floats x = load(from + i, n - i);
            store(to, HAS_SCALE<T> ? x * scale : x);
        }
    }
}

template <class T> void narrow_row(const float* from, void* to, int64_t n, float factor) {
    for (int64_t i = 0; i < n; i += LANES) store(static_cast<T*>(to) + i, load(from + i) * factor, n - i);
}

// LANES rows of n elements -> their columns: element d of all rows at to + d * stride. Null rows count as zero.
template <class T> void transpose_rows(const char* const* rows, float* to, int64_t n, int64_t stride) {
    Floats scales{};
    if constexpr (HAS_SCALE<T>)
        for (int i = 0; i < LANES; i++) scales[i] = rows[i] ? row_scale(reinterpret_cast<const T*>(rows[i]), n) : 0.0f;
    for (int64_t d = 0; d < n; d += LANES) {
        Floats square[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            square[i] = rows[i] ? load(reinterpret_cast<const T*>(rows[i]) + d, n - d) : Floats{};
        transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) store(to + (d + i) * stride, HAS_SCALE<T> ? square[i] * scales : square[i]);
    }
}

struct Format {
    int64_t size;  // of an element
    int64_t (*row_bytes)(int64_t);
    void (*widen)(const void*, float*, int64_t, float);
    void (*widen_rows)(const char* const*, int64_t, int64_t, float*, int64_t);
    void (*narrow)(const float*, void*, int64_t, float);
    void (*transpose)(const char* const*, float*, int64_t, int64_t);
};

inline Format format_of(int dtype) {
    Format format;
    for_cache_dtype(dtype, [&](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        format = {sizeof(T), row_bytes<T>, widen_row<T>, widen_rows<T>, narrow_row<T>, transpose_rows<T>};
    });
    return format;
}

// Addresses of `count` consecutive cached vectors of one key-value head; the places up to `padded` become null.
inline void locate(
    const Attention& a, const void* cache, int64_t row, int64_t kv_head, int64_t first, int64_t count, int64_t padded,
    int64_t head_bytes, const char** places
) {
    const char* base = static_cast<const char*>(cache) + kv_head * head_bytes;
    for (int64_t i = count; i < padded; i++) places[i] = nullptr;
    if (a.both_ways()) {
        const int64_t stride = a.token_stride * (head_bytes / a.head_dim);
        for (int64_t i = 0; i < count; i++) places[i] = base + (a.query_starts[row] + first + i) * stride;
        return;
    }
    const int32_t* table = a.tables + a.slots[row] * a.table_width;
    const int64_t step = a.kv_heads * head_bytes;
    for (int64_t i = 0; i < count;) {
        const int64_t block = (first + i) / a.block_size, offset = (first + i) % a.block_size;
        const char* place = base + (table[block] * a.block_size + offset) * step;
        for (int64_t o = offset; o < a.block_size && i < count; o++, i++, place += step) places[i] = place;
    }
}

}  // namespace quire
