// From the number Python passes to the type of an element; and how a function is exported.
#pragma once

#include <type_traits>

#include "simd.hpp"

#define QUIRE_EXPORT extern "C" __attribute__((visibility("default")))

namespace quire {

// f(T*) with the element type of activations and weights: float32, bfloat16 or float16 (Python has checked).
template <class F> inline void for_dtype(int dtype, const F& f) {
    switch (dtype) {
        case BF16: return f(static_cast<Bf16*>(nullptr));
        case FP16: return f(static_cast<F16*>(nullptr));
        default: return f(static_cast<float*>(nullptr));
    }
}

// The same for the elements of a cache, which may also be float8_e4m3fn, or 8-bit integers in rows with a scale.
template <class F> inline void for_cache_dtype(int dtype, const F& f) {
    if (dtype == FP8) return f(static_cast<Fp8*>(nullptr));
    if (dtype == INT8) return f(static_cast<I8*>(nullptr));
    for_dtype(dtype, f);
}

// A cached head of n elements: 8-bit integers have their scale behind them, a float32.
template <class T> constexpr bool HAS_SCALE = std::is_same_v<T, I8>;
template <class T> inline int64_t row_bytes(int64_t n) { return n * sizeof(T) + (HAS_SCALE<T> ? sizeof(float) : 0); }

template <class T> inline float row_scale(const T* row, int64_t n) {
    float scale = 1.0f;
    if constexpr (HAS_SCALE<T>) std::memcpy(&scale, row + n, sizeof scale);
    return scale;
}

}  // namespace quire
