// Gates times values: the feed-forward block's, which lie side by side, and others.
#pragma once

#include "dtype.hpp"
#include "gate.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace quire {

// Rows of n elements, those of gates and of values each so far apart.
template <class T, int gate>
void gated_activation(
    const T* gates, int64_t gates_apart, const T* values, int64_t values_apart, T* out, int64_t rows, int64_t n,
    int threads
) {
    for_rows(rows, 4 * n, threads, [=](int64_t r) {
        const T *closed = gates + r * gates_apart, *value = values + r * values_apart;
        for (int64_t i = 0; i < n; i += LANES) {
            const Floats open = rounded<T>(activated(gate, load(closed + i, n - i)));
            store(out + r * n + i, open * load(value + i, n - i), n - i);
        }
    });
}

}  // namespace quire

QUIRE_EXPORT void quire_gated_activation(
    int dtype, int gate, const void* gates, int64_t gates_apart, const void* values, int64_t values_apart, void* out,
    int64_t rows, int64_t n, int threads
) {
    using namespace quire;
    for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        const auto run = gate == SILU   ? gated_activation<T, SILU>
                         : gate == GELU ? gated_activation<T, GELU>
                                        : gated_activation<T, GELU_TANH>;
        run((const T*)gates, gates_apart, (const T*)values, values_apart, static_cast<T*>(out), rows, n, threads);
    });
}
