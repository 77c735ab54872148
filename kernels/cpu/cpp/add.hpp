// Sums of rows.
#pragma once

#include "dtype.hpp"
#include "parallel.hpp"
#include "simd.hpp"

// out = x + y, both [rows, n]; those of y are `apart` from each other, 0: it is one for all.
QUIRE_EXPORT void quire_add(
    int dtype, const void* x, const void* y, int64_t apart, void* out, int64_t rows, int64_t n, int threads
) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        for_rows(rows, n, threads, [=](int64_t r) {
            const T *left = (const T*)x + r * n, *right = (const T*)y + r * apart;
            for (int64_t i = 0; i < n; i += LANES)
                store((T*)out + r * n + i, load(left + i, n - i) + load(right + i, n - i), n - i);
        });
    });
}
