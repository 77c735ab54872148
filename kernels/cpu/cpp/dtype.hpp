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

// The same for the elements of a cache, which may also be float8_e4m3fn.
template <class F> inline void for_cache_dtype(int dtype, const F& f) {
    if (dtype == FP8) return f(static_cast<Fp8*>(nullptr));
    for_dtype(dtype, f);
}

}  // namespace quire
