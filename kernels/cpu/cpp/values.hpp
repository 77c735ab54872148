// Values of attention out of a product in which they have no part of their own, or no norm.
#pragma once

#include <algorithm>

#include "norm.hpp"

// product [rows, width] -> out [rows, kept + size]: its first `kept` columns, and behind them its last `size`, which with
// gains [head_dim] are normalised, a head at a time.
QUIRE_EXPORT void quire_with_values(
    int dtype, const void* product, int64_t width, int64_t kept, int64_t size, const void* gains, int64_t head_dim,
    float eps, void* out, int64_t rows, int threads
) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        for_rows(rows, kept + size, threads, [=](int64_t r) {
            const T *const row = (const T*)product + r * width, *const values = row + width - size;
            T *const to = (T*)out + r * (kept + size), *const made = to + kept;
            std::copy_n(row, kept, to);
            if (!gains) std::copy_n(values, size, made);
            else for (int64_t i = 0; i < size; i += head_dim) norm_row(values + i, (const T*)gains, made + i, head_dim, eps);
        });
    });
}
