// Cosines and sines of the rotary positions, for all layers of a step.
#pragma once

#include <cmath>

#include "dtype.hpp"
#include "parallel.hpp"

// positions [axes, stride], of which `tokens` count; pair i turns by its axis (null: the first) -> cos, sin [tokens, half].
QUIRE_EXPORT void quire_rope_angles(
    const int64_t* positions, int64_t stride, const float* frequencies, const int64_t* pair_axes, float scale,
    float* cos, float* sin, int64_t tokens, int64_t half, int threads
) {
    constexpr int64_t cost = 64;  // of a cosine and a sine, in elements of other loops
    quire::for_rows(tokens, cost * half, threads, [=](int64_t t) {
        for (int64_t i = 0; i < half; i++) {
            const float angle = static_cast<float>(positions[(pair_axes ? pair_axes[i] : 0) * stride + t]) * frequencies[i];
            cos[t * half + i] = std::cos(angle) * scale;
            sin[t * half + i] = std::sin(angle) * scale;
        }
    });
}
