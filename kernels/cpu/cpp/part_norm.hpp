// RMS norm of the two first parts of rows, each over the parts of all ranks: queries and keys of all heads together.
#pragma once

#include <cmath>

#include "dtype.hpp"
#include "parallel.hpp"
#include "simd.hpp"

// x [rows, width] -> the mean squares of its first `first` columns and of the `second` behind them: out [rows, 2].
QUIRE_EXPORT void quire_part_squares(
    int dtype, const void* x, float* out, int64_t rows, int64_t width, int64_t first, int64_t second, int threads
) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        const auto mean = [](const T* from, int64_t n) {
            Floats sum{};
            for (int64_t i = 0; i < n; i += LANES) {
                const Floats v = load(from + i, n - i);
                sum += v * v;
            }
            return sum_of(sum) / static_cast<float>(n);
        };
        for_rows(rows, first + second, threads, [=](int64_t r) {
            const T* const row = (const T*)x + r * width;
            out[2 * r] = mean(row, first);
            out[2 * r + 1] = mean(row + first, second);
        });
    });
}

// Both parts by their squares, which are the sums of `ranks` means, and their weights; what lies behind them as it is.
QUIRE_EXPORT void quire_part_norm(
    int dtype, const void* x, const float* squares, const void* first_weight, const void* second_weight, void* out,
    int64_t rows, int64_t width, int64_t first, int64_t second, int64_t ranks, float eps, int threads
) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        const auto norm = [=](const T* from, const T* weight, float square, int64_t n, T* to) {
            const float factor = 1.0f / std::sqrt(square / static_cast<float>(ranks) + eps);
            for (int64_t i = 0; i < n; i += LANES)
                store(to + i, load(weight + i, n - i) * rounded<T>(load(from + i, n - i) * factor), n - i);
        };
        for_rows(rows, width, threads, [=](int64_t r) {
            const T* const row = (const T*)x + r * width;
            T* const to = (T*)out + r * width;
            norm(row, (const T*)first_weight, squares[2 * r], first, to);
            norm(row + first, (const T*)second_weight, squares[2 * r + 1], second, to + first);
            std::copy(row + first + second, row + width, to + first + second);
        });
    });
}
