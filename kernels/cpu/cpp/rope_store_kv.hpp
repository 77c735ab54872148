// What stands between the QKV product and attention, a token at a time: norm of the heads, rotary positions (Su et al.,
// 2021), the write of keys and values into their slot, and the queries in the order attention reads them.
#pragma once

#include "norm.hpp"
#include "paged.hpp"

namespace quire {

struct RotateStore {
    const float *cos, *sin;  // [T, half]
    const int64_t* slots;    // [T], negative: padding; null: qkv holds queries alone
    const float *key_scale, *value_scale;  // null, or [K]
    int64_t num_tokens, kv_heads, groups, head_dim, half;
    float eps;
};

// One head -> `row` [padded dim]: normalised if there is a weight, then turned by the token's angles. Every
// intermediate result is rounded to T where the reference rounds it, what a weight multiplies to what that is of.
template <class T, class W>
inline void turn_head(const RotateStore& p, int64_t token, const T* head, const W* weight, float* row) {
    const int64_t n = p.head_dim, half = p.half;
    const float factor = weight ? rms_factor(head, n, p.eps) : 1.0f;
    for (int64_t i = 0; i < n; i += LANES) {
        const Floats x = load(head + i, n - i);
        store(row + i, weight ? rounded<T>(load(weight + i, n - i) * rounded<W>(x * factor)) : x);
    }
    const float *cos = p.cos + token * half, *sin = p.sin + token * half;
    for (int64_t i = 0; i < half; i += LANES) {
        const Floats first = load(row + i, half - i), second = load(row + half + i, half - i);
        const Floats c = load(cos + i, half - i), s = load(sin + i, half - i);
        store(row + i, rounded<T>(first * c - second * s), half - i);
        store(row + half + i, rounded<T>(second * c + first * s), half - i);
    }
}

// 8-bit integers have a scale of this token's and head's own: the largest becomes 127. NaN is kept in the scale.
template <class C> inline void store_cached(const float* row, C* to, int64_t n, float scale) {
    if constexpr (HAS_SCALE<C>) {
        const float own = bits_of<float>(largest_magnitude(row, n)) / 127.0f;
        std::memcpy(to + n, &own, sizeof own);
        scale = own > 0.0f ? own : 1.0f;
    }
    for (int64_t i = 0; i < n; i += LANES) store(to + i, load(row + i) / scale, n - i);
}

template <class T, class C, class W>
void rope_store_kv(
    const RotateStore& p, const T* qkv, C* keys, C* values, const W* query_weight, const W* key_weight, T* query,
    int threads
) {
    const int64_t n = p.head_dim, heads = p.kv_heads * p.groups, width = (heads + (p.slots ? 2 * p.kv_heads : 0)) * n;
    for_rows(p.num_tokens, width, threads, [&](int64_t token) {
        float* const row = scratch<0>((n + LANES - 1) / LANES * LANES);
        const T* const own = qkv + token * width;
        for (int64_t h = 0; h < heads; h++) {
            turn_head(p, token, own + h * n, query_weight, row);
            T* const to = query + ((h / p.groups * p.num_tokens + token) * p.groups + h % p.groups) * n;
            for (int64_t i = 0; i < n; i += LANES) store(to + i, load(row + i), n - i);
        }
        if (!p.slots || p.slots[token] < 0) return;
        for (int64_t k = 0; k < p.kv_heads; k++) {
            const int64_t place = (p.slots[token] * p.kv_heads + k) * row_bytes<C>(n) / sizeof(C);
            turn_head(p, token, own + (heads + k) * n, key_weight, row);
            store_cached(row, keys + place, n, p.key_scale ? p.key_scale[k] : 1.0f);
            widen_row<T>(own + (heads + p.kv_heads + k) * n, row, n, 1.0f);
            store_cached(row, values + place, n, p.value_scale ? p.value_scale[k] : 1.0f);
        }
    });
}

// Weights of float32 where `wide`, else of `dtype`.
template <bool wide>
void rope_store_kv(
    int dtype, int cache_dtype, const RotateStore& p, const void* qkv, void* keys, void* values,
    const void* query_weight, const void* key_weight, void* query, int threads
) {
    for_dtype(dtype, [&](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        using W = std::conditional_t<wide, float, T>;
        for_cache_dtype(cache_dtype, [&](auto* c) {
            using C = std::remove_pointer_t<decltype(c)>;
            rope_store_kv(
                p, static_cast<const T*>(qkv), static_cast<C*>(keys), static_cast<C*>(values),
                static_cast<const W*>(query_weight), static_cast<const W*>(key_weight), static_cast<T*>(query), threads
            );
        });
    });
}

}  // namespace quire

QUIRE_EXPORT void quire_rope_store_kv(
    int dtype, int cache_dtype, const void* qkv, const float* cos, const float* sin, void* keys, void* values,
    const int64_t* slots, const void* query_weight, const void* key_weight, const float* key_scale,
    const float* value_scale, void* query, int64_t num_tokens, int64_t kv_heads, int64_t groups, int64_t head_dim,
    int64_t half, float eps, int threads
) {
    const quire::RotateStore p{
        cos, sin, slots, key_scale, value_scale, num_tokens, kv_heads, groups, head_dim, half, eps
    };
    quire::rope_store_kv<false>(dtype, cache_dtype, p, qkv, keys, values, query_weight, key_weight, query, threads);
}

// The same by gains of float32, whatever qkv is.
QUIRE_EXPORT void quire_rope_store_kv_wide(
    int dtype, int cache_dtype, const void* qkv, const float* cos, const float* sin, void* keys, void* values,
    const int64_t* slots, const float* query_weight, const float* key_weight, const float* key_scale,
    const float* value_scale, void* query, int64_t num_tokens, int64_t kv_heads, int64_t groups, int64_t head_dim,
    int64_t half, float eps, int threads
) {
    const quire::RotateStore p{
        cos, sin, slots, key_scale, value_scale, num_tokens, kv_heads, groups, head_dim, half, eps
    };
    quire::rope_store_kv<true>(dtype, cache_dtype, p, qkv, keys, values, query_weight, key_weight, query, threads);
}
