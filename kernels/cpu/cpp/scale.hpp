// Rows times a factor.
#pragma once

#include "dtype.hpp"
#include "parallel.hpp"
#include "simd.hpp"

// x [rows, n] -> out
QUIRE_EXPORT void quire_scale(int dtype, const void* x, float factor, void* out, int64_t rows, int64_t n, int threads) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        for_rows(rows, n, threads, [=](int64_t r) {
            for (int64_t i = 0; i < n; i += LANES)
                store((T*)out + r * n + i, load((const T*)x + r * n + i, n - i) * factor, n - i);
        });
    });
}
