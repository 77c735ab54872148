// Rotary positions (Su et al., 2021) of queries and keys where they lie, a token at a time.
#pragma once

#include "dtype.hpp"
#include "parallel.hpp"

namespace quire {

// Turns the pairs (i, i + half) of `count` heads of `head_dim` elements that lie one after another.
template <class T>
inline void turn_heads(T* heads, int64_t count, int64_t head_dim, int64_t half, const float* cos, const float* sin) {
    for (int64_t i = 0; i < half; i += LANES) {
        const int64_t left = half - i;
        const Floats c = load(cos + i, left), s = load(sin + i, left);
        for (int64_t h = 0; h < count; h++) {
            T* const head = heads + h * head_dim + i;
            const Floats first = load(head, left), second = load(head + half, left);
            store(head, first * c - second * s, left);
            store(head + half, second * c + first * s, left);
        }
    }
}

}  // namespace quire

// qkv [tokens, 3 * heads * head_dim]: of each token its queries, keys and values. cos, sin [tokens, half].
QUIRE_EXPORT void quire_rope_in_place(
    int dtype, void* qkv, const float* cos, const float* sin, int64_t tokens, int64_t heads, int64_t head_dim,
    int64_t half, int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        auto* const rows = static_cast<std::remove_pointer_t<decltype(t)>*>(qkv);
        const int64_t turning = 2 * heads * head_dim, width = 3 * heads * head_dim;
        quire::for_rows(tokens, turning, threads, [=](int64_t token) {
            quire::turn_heads(rows + token * width, 2 * heads, head_dim, half, cos + token * half, sin + token * half);
        });
    });
}
