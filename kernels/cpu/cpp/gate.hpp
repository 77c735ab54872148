// The activations of a gated feed-forward block, on vectors.
#pragma once

#include "simd.hpp"

namespace quire {

// What Python passes for an activation; kernels/cpu/linear/activation.py has the numbers.
enum Gate : int { NO_GATE = -1, SILU = 0, GELU = 1, GELU_TANH = 2, SWIGLU_OAI = 3 };

inline Floats silu(Floats x) { return x / (1.0f + exp(-x)); }

// x >= 0 -> 1 - erf(x), to 2e-7 relative: Chebyshev fit of Press et al., Numerical Recipes, section 6.2.
inline Floats erfc_of_positive(Floats x) {
    const Floats t = 1.0f / (1.0f + 0.5f * x);
    Floats p = splat(0.17087277f);
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t - 1.26551223f;
    return t * exp(p - x * x);
}

inline Floats gelu(Floats x) {
    const Floats magnitude = bits_of<Floats>(bits_of<Words>(x) & 0x7fffffff);
    const Floats tail = 0.5f * erfc_of_positive(magnitude * 0.70710678f);
    return x * (x < Floats{} ? tail : 1.0f - tail);
}

// 0.5 * (1 + tanh(y)) is 1 / (1 + exp(-2 y)), which keeps its digits where tanh is near -1.
inline Floats gelu_tanh(Floats x) { return x / (1.0f + exp(-1.59576912f * (x + 0.044715f * x * x * x))); }

inline Floats activated(int gate, Floats x) {
    return gate == SILU ? silu(x) : gate == GELU ? gelu(x) : gelu_tanh(x);
}

// gpt-oss: the gate is bounded above, the other half to both sides, and that counts from -1 on.
inline Floats swiglu_oai(Floats open, Floats value) {
    const Floats most = splat(7.0f);
    const Floats x = open > most ? most : open, y = value > most ? most : value < -most ? -most : value;
    return x / (1.0f + exp(-1.702f * x)) * (y + 1.0f);
}

// Gate and value of a feed-forward block, both rounded to T -> what is left of the value.
template <class T> inline Floats gated(int gate, Floats open, Floats value) {
    return gate == SWIGLU_OAI ? swiglu_oai(open, value) : rounded<T>(activated(gate, open)) * value;
}

}  // namespace quire
