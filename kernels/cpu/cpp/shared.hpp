// What all tokens have beside their experts, added to what those make.
#pragma once

#include "dtype.hpp"
#include "parallel.hpp"
#include "simd.hpp"

// out = routed + shared, all [rows, n]; with logits, whose rows are `width` apart, shared counts by the logit's sigmoid.
QUIRE_EXPORT void quire_add_shared(
    int dtype, const void* routed, const void* shared, const void* logits, int64_t width, void* out, int64_t rows,
    int64_t n, int threads
) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        for_rows(rows, n, threads, [=](int64_t r) {
            const T *left = (const T*)routed + r * n, *right = (const T*)shared + r * n;
            T* const to = (T*)out + r * n;
            Floats factor = splat(1.0f);
            if (logits) factor = rounded<T>(1.0f / (1.0f + exp(splat(load((const T*)logits + r * width, 1)[0]) * -1.0f)));
            for (int64_t i = 0; i < n; i += LANES)
                store(to + i, load(left + i, n - i) + rounded<T>(load(right + i, n - i) * factor), n - i);
        });
    });
}
