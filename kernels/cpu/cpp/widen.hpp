// Rows in float32.
#pragma once

#include "dtype.hpp"
#include "parallel.hpp"
#include "simd.hpp"

// x [tokens, n] as float32.
QUIRE_EXPORT void quire_widen(int dtype, const void* x, float* out, int64_t tokens, int64_t n, int threads) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        for_rows(tokens, n, threads, [=](int64_t r) {
            for (int64_t i = 0; i < n; i += LANES) store(out + r * n + i, load((const T*)x + r * n + i, n - i), n - i);
        });
    });
}
