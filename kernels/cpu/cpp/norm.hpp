// RMS norm of rows (Zhang and Sennrich, 2019), alone and after the residual addition.
#pragma once

#include <cmath>

#include "dtype.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace quire {

// 1 / sqrt(mean(x^2) + eps) of n elements.
template <class T> inline float rms_factor(const T* x, int64_t n, float eps) {
    Floats squares[2] = {};
    for (int64_t i = 0; i < n; i += LANES) {
        const Floats v = load(x + i, n - i);
        squares[i / LANES & 1] += v * v;
    }
    return 1.0f / std::sqrt(sum_of(squares[0] + squares[1]) / static_cast<float>(n) + eps);
}

// out = weight * rounded(x / rms(x)), rounded, the inner time to what the weight is of: one row of n elements. `out` may
// be `x`.
template <class T, class W> inline void norm_row(const T* x, const W* weight, T* out, int64_t n, float eps) {
    const float factor = rms_factor(x, n, eps);
    for (int64_t i = 0; i < n; i += LANES)
        store(out + i, load(weight + i, n - i) * rounded<W>(load(x + i, n - i) * factor), n - i);
}

template <class T, class W>
void rms_norm(const T* x, const W* weight, T* out, int64_t rows, int64_t n, float eps, int threads) {
    for_rows(rows, n, threads, [=](int64_t r) { norm_row(x + r * n, weight, out + r * n, n, eps); });
}

template <class T, class W>
void add_rms_norm(
    const T* x, const T* residual, const W* weight, T* out, T* total, int64_t rows, int64_t n, float eps, int threads
) {
    for_rows(rows, n, threads, [=](int64_t r) {
        const T *a = x + r * n, *b = residual + r * n;
        T* sum = total + r * n;
        for (int64_t i = 0; i < n; i += LANES) store(sum + i, load(b + i, n - i) + load(a + i, n - i), n - i);
        norm_row(sum, weight, out + r * n, n, eps);
    });
}

}  // namespace quire

// x [rows, parts, n]: each part by itself.
QUIRE_EXPORT void quire_rms_norm(
    int dtype, const void* x, const void* weight, void* out, int64_t rows, int64_t parts, int64_t n, float eps,
    int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::rms_norm((const T*)x, (const T*)weight, (T*)out, rows * parts, n, eps, threads);
    });
}

// The same by gains of float32, whatever x is.
QUIRE_EXPORT void quire_rms_norm_wide(
    int dtype, const void* x, const float* weight, void* out, int64_t rows, int64_t parts, int64_t n, float eps,
    int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::rms_norm((const T*)x, weight, (T*)out, rows * parts, n, eps, threads);
    });
}

QUIRE_EXPORT void quire_add_rms_norm(
    int dtype, const void* x, const void* residual, const void* weight, void* out, void* total, int64_t rows, int64_t n,
    float eps, int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::add_rms_norm(
            (const T*)x, (const T*)residual, (const T*)weight, (T*)out, (T*)total, rows, n, eps, threads
        );
    });
}

QUIRE_EXPORT void quire_add_rms_norm_wide(
    int dtype, const void* x, const void* residual, const float* weight, void* out, void* total, int64_t rows,
    int64_t n, float eps, int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::add_rms_norm((const T*)x, (const T*)residual, weight, (T*)out, (T*)total, rows, n, eps, threads);
    });
}
