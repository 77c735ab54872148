// Gate and product of the feed-forward block: rows of x hold n gates, then n values.
#pragma once

#include "dtype.hpp"
#include "gate.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace quire {

template <class T, int gate> void gated_activation(const T* x, T* out, int64_t rows, int64_t n, int threads) {
    for_rows(rows, 4 * n, threads, [=](int64_t r) {
        const T *gates = x + 2 * r * n, *values = gates + n;
        for (int64_t i = 0; i < n; i += LANES) {
            const Floats open = rounded<T>(activated(gate, load(gates + i, n - i)));
            store(out + r * n + i, open * load(values + i, n - i), n - i);
        }
    });
}

}  // namespace quire

QUIRE_EXPORT void quire_gated_activation(
    int dtype, int gate, const void* x, void* out, int64_t rows, int64_t n, int threads
) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        const auto run = gate == SILU   ? gated_activation<T, SILU>
                         : gate == GELU ? gated_activation<T, GELU>
                                        : gated_activation<T, GELU_TANH>;
        run(static_cast<const T*>(x), static_cast<T*>(out), rows, n, threads);
    });
}
