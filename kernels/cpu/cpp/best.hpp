// The greatest logit of each row.
#pragma once

#include <cmath>

#include "dtype.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace quire {

// The greatest of a row and the lowest place that has it; NaN, and any place, where the row holds one or an infinity.
template <class T> inline void best_of_row(const T* row, int64_t n, float* value, int64_t* place) {
    Floats greatest = splat(-INFINITY);
    Ints at = {}, here, magnitude = {};
    for (int lane = 0; lane < LANES; lane++) here[lane] = lane;
    const Floats nothing = greatest;
    for (int64_t i = 0; i < n; i += LANES, here += LANES) {
        const Floats loaded = load(row + i, n - i);
        const Floats x = here < static_cast<int32_t>(n) ? loaded : nothing;
        const Ints bits = bits_of<Ints>(loaded) & 0x7fffffff;  // ordered like the numbers, infinity and NaN above all
        magnitude = bits > magnitude ? bits : magnitude;
        const Ints better = x > greatest;
        greatest = better ? x : greatest;
        at = better ? here : at;
    }
    int best = 0;
    bool finite = true;
    for (int lane = 0; lane < LANES; lane++) {
        finite &= magnitude[lane] < 0x7f800000;
        const bool lower = greatest[lane] == greatest[best] && at[lane] < at[best];
        if (greatest[lane] > greatest[best] || lower) best = lane;
    }
    *value = finite ? greatest[best] : NAN;
    *place = at[best];
}

}  // namespace quire

// logits [rows, stride], of which `n` count -> values, ids [rows].
QUIRE_EXPORT void quire_best(
    int dtype, const void* logits, int64_t stride, int64_t rows, int64_t n, float* values, int64_t* ids, int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        const auto* const from = static_cast<const std::remove_pointer_t<decltype(t)>*>(logits);
        quire::for_rows(rows, n, threads, [=](int64_t r) {
            quire::best_of_row(from + r * stride, n, values + r, ids + r);
        });
    });
}
