// Linear layers on int8: rows of activations are quantized as they come, each with a scale of its own; weights were
// packed once (kernels/linear_int8.py says how). Integer sums are exact, so every instruction set gives the same.
#pragma once

#include <algorithm>
#include <cmath>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "linear.hpp"

namespace quire {

struct Int8 : VectorTiles {
    using Vector = Ints;
    using Tile = Int8;
    static constexpr int GROUP = 4;
    const float* scale;  // [outputs]

    static Ints weights(int, const int32_t* group, int v) { return load_vector<Ints>(group + v * LANES); }

    // sum + 4 products in each lane: weights are 0 to 255, x is -127 to 127.
    static Ints dot(Ints sum, Ints weights, Ints x) {
#if defined(__AVX512VNNI__)
        return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)x);
#elif defined(__AVX2__)
        const __m256i w = (__m256i)weights, a = (__m256i)x;
        const __m256i even = _mm256_madd_epi16(
            _mm256_and_si256(w, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8)
        );
        const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(a, 8));
        return sum + (Ints)even + (Ints)odd;
#else
        for (int byte = 0; byte < GROUP; byte++)
            sum += (Ints)((Words)weights >> (8 * byte) & 255) * ((x << (24 - 8 * byte)) >> 24);
        return sum;
#endif
    }

    // x [n] as round(x / scale), scale = max |x| / 127 (NaN where x holds one, or an infinity); and what the weights'
    // zero point of 128 will add to the sums, 128 times the sum of the row.
    template <class T> static void pack(const T* x, int64_t n, int32_t* out, float* scale, int32_t* excess) {
        const int32_t top = largest_magnitude(x, n);
        const bool finite = top < 0x7f800000;
        const float step = std::max(finite ? bits_of<float>(top) : 0.f, 1e-30f) / 127.f;
        *excess = 128 * put(x, n, step, finite, out);
        *scale = finite ? step : NAN;
    }

    // x [n] as round(x / step), or zeros -> their sum.
    template <class T> static int32_t put(const T* x, int64_t n, float step, bool finite, int32_t* out) {
        Ints total = {};
        for (int64_t i = 0; i < n; i += LANES) {
            const Floats magic = splat(0x1.8p23f);  // adding it rounds to the nearest integer, half to even
            const Floats shifted = load(x + i, n - i) / step + magic;
            const Ints q = finite ? bits_of<Ints>(shifted) - bits_of<Ints>(magic) : Ints{};
            total += q;
            typedef int8_t Small __attribute__((vector_size(LANES)));
            const Small bytes = __builtin_convertvector(q, Small);
            std::memcpy(out + i / GROUP, &bytes, sizeof bytes);
        }
        return fold(total, [](Ints a, Ints b) { return a + b; });
    }

    template <class Rows> Floats real(Ints sum, const Rows& rows, int64_t r, int64_t column, int64_t left) const {
        return __builtin_convertvector(sum - rows.excess[r], Floats) * load(scale + column, left) * rows.scale[r];
    }

#if defined(__AMX_INT8__)
    template <int sums, int x, int weights> static void multiply() {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(x), "i"(weights));
    }
#endif
};

}  // namespace quire

QUIRE_EXPORT void quire_linear_int8(
    int dtype, const void* x, const void* residual, const void* norm_weight, void* total, int64_t rows, int64_t inputs,
    float eps, const void* weight, const void* scale, const void* bias, int64_t outputs, int gate, void* out,
    void* scratch, int threads
) {
    const auto run = [=](auto format) {
        quire::for_dtype(dtype, [=](auto* t) {
            using T = std::remove_pointer_t<decltype(t)>;
            quire::Linear<decltype(format), T>{
                format, (const T*)x, (const T*)residual, (const T*)norm_weight, (T*)total, rows, inputs, eps,
                (const int32_t*)weight, (const T*)bias, outputs, gate, (T*)out, threads
            }.run(scratch);
        });
    };
#if defined(__AMX_INT8__)
    // a few rows leave the tiles' arithmetic idle; the sums are exact, so either way gives the same
    if (rows > 8 && inputs % (quire::Int8::GROUP * quire::TILE) == 0) {
        quire::InTiles<quire::Int8> format;
        format.scale = (const float*)scale;
        return run(format);
    }
#endif
    run(quire::Int8{{}, (const float*)scale});
}
