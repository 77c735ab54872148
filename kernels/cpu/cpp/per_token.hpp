// Numbers that each token has: what its queries count by its position, and what rows of it are multiplied by.
#pragma once

#include <algorithm>
#include <cmath>

#include "dtype.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace quire {

// A row of n elements times a number, which is rounded to their type first.
template <class T> inline void scale_row(const T* x, float factor, T* out, int64_t n) {
    const Floats by = rounded<T>(splat(factor));
    for (int64_t i = 0; i < n; i += LANES) store(out + i, load(x + i, n - i) * by, n - i);
}

}  // namespace quire

// positions [tokens] -> 1 + beta * log(1 + whole lengths), `ahead` of each of which counts, too.
QUIRE_EXPORT void quire_query_factors(
    const int64_t* positions, int64_t ahead, int64_t length, float beta, float* out, int64_t tokens
) {
    quire::once([=] {
        for (int64_t t = 0; t < tokens; t++)
            out[t] = 1.0f + beta * std::log(1.0f + static_cast<float>((positions[t] + ahead) / length));
    });
}

// x [groups, tokens, n] times each token's factor.
QUIRE_EXPORT void quire_scale_tokens(
    int dtype, const void* x, const float* factors, void* out, int64_t groups, int64_t tokens, int64_t n, int threads
) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        for_rows(groups * tokens, n, threads, [=](int64_t r) {
            scale_row((const T*)x + r * n, factors[r % tokens], (T*)out + r * n, n);
        });
    });
}

// x [tokens, n] by what the one expert of each token counts, which is then 1.
QUIRE_EXPORT void quire_count_inputs(
    int dtype, const void* x, const float* weights, void* out, float* counted, int64_t tokens, int64_t n, int threads
) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        for_rows(tokens, n, threads, [=](int64_t r) {
            scale_row((const T*)x + r * n, weights[r], (T*)out + r * n, n);
            counted[r] = 1.0f;
        });
    });
}

// weights [tokens, k] times the factors [experts] of their experts; of none: times 0.
QUIRE_EXPORT void quire_scale_weights(
    int dtype, const float* weights, const int32_t* ids, const void* factors, float* out, int64_t tokens, int64_t k
) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        once([=] {
            for (int64_t i = 0; i < tokens * k; i++)
                out[i] = ids[i] < 0 ? 0.0f : weights[i] * load((const T*)factors + ids[i], 1)[0];
        });
    });
}
