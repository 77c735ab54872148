// Linear layers on 8-bit floats (e4m3): a block of 16 outputs is [inputs, 16] bytes, whole groups of four inputs, and
// behind them the float32 that its sums begin with: NaN where an output holds a code that is none, so no product need
// look for it (kernels/linear/linear_f8.py packs). Weights are widened in registers, to float32 or to pairs of bfloat16.
#pragma once

#include <algorithm>
#include <cmath>

#include "linear.hpp"

namespace quire {

// Codes to float32 by way of float16, which has their fraction and more exponents: no multiplication of subnormals.
struct WidenedF8 : Float32 {
    using Tile = WidenedF8;
    using Wide = Float32;
    static constexpr int GROUP = 4, PARTS = 4, FEW_ROWS = LANES == 16 ? 6 : LANES == 8 ? 2 : 1;
    static constexpr int FOUR_BLOCKS_ROWS = LANES == 16 ? 2 : 1;
    static constexpr int64_t BEHIND = 1;

    static Floats weights(int part, const int32_t* group, int v) {
        const char* const codes = reinterpret_cast<const char*>(group);
#if defined(__AVX512F__)
        const __m512i words = _mm512_cvtepi8_epi16(load_vector<__m256i>(codes + part / 2 * 2 * BLOCK));
        const __m512i halves = _mm512_and_si512(_mm512_slli_epi16(words, 7), _mm512_set1_epi16(int16_t(0xbf80)));
        const __m256i half = part % 2 ? _mm512_extracti64x4_epi64(halves, 1) : _mm512_castsi512_si256(halves);
        return (Floats)_mm512_cvtph_ps(half);
#elif defined(__AVX2__)
        const __m128i words = _mm_cvtepi8_epi16(_mm_cvtsi64_si128(load_vector<int64_t>(codes + part * BLOCK + v * LANES)));
        return (Floats)_mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16(int16_t(0xbf80))));
#else
        return widen(load_vector<Bytes>(codes + part * BLOCK + v * LANES), static_cast<Fp8*>(nullptr)) * (1.f / UNIT);
#endif
    }
    static constexpr float UNIT = 256;  // that the exponents of float16 are off by

    // A vector of a row as its lanes, from input i on.
    static void put(int32_t* row, int64_t i, Floats x) { std::memcpy(row + i, &x, sizeof x); }
};

#if defined(__AVX512BF16__)
struct F8Tables {
    alignas(64) uint8_t high[128], low[128], order[64];

    constexpr F8Tables() : high(), low(), order() {
        for (int code = 0; code < 128; code++) {
            int exponent = code >> 3, fraction = code & 7;
            if (exponent == 0 && fraction > 0)
                for (exponent = 1; fraction < 8; exponent--) fraction *= 2;
            const int bits = code == 0 ? 0 : (exponent + 120) << 7 | (fraction & 7) << 4;
            high[code] = uint8_t(bits >> 8);
            low[code] = uint8_t(bits);
        }
        // unpacking takes the lower or upper eight bytes of each sixteen: pairs of inputs of four outputs
        for (int to = 0; to < 64; to++) order[to] = uint8_t(to / 8 % 2 * 32 + to % 2 * 16 + to / 16 * 4 + to % 8 / 2);
    }
};
constexpr F8Tables F8_TABLES;

// The two bytes of each code's bfloat16 are looked up. Sums are those of PairedBf16.
struct PairedF8 : PairedBf16 {
    using Tile = PairedF8;
    using Wide = PairedBf16;
    static constexpr int GROUP = 4, PARTS = 2, FEW_ROWS = 8, FOUR_BLOCKS_ROWS = 2;
    static constexpr int64_t BEHIND = 1;
    static constexpr float UNIT = 1;

    static Floats weights(int part, const int32_t* group, int) {
        const auto table = [](const uint8_t* from) { return _mm512_load_si512(from); };
        const __m512i codes = _mm512_permutexvar_epi8(table(F8_TABLES.order), load_vector<__m512i>(group));
        const __m512i body = _mm512_permutex2var_epi8(table(F8_TABLES.high), codes, table(F8_TABLES.high + 64));
        const __m512i low = _mm512_permutex2var_epi8(table(F8_TABLES.low), codes, table(F8_TABLES.low + 64));
        constexpr int sign_of_second = 0xf8;  // first | second & third
        const __m512i high = _mm512_ternarylogic_epi64(body, codes, _mm512_set1_epi8(int8_t(0x80)), sign_of_second);
        return (Floats)(part ? _mm512_unpackhi_epi8(low, high) : _mm512_unpacklo_epi8(low, high));
    }

    static void put(int32_t* row, int64_t i, Floats x) {
        const Halves upper = low_half(bits_of<Words>(x) >> 16);  // codes are exact
        std::memcpy(reinterpret_cast<char*>(row) + 2 * i, &upper, sizeof upper);
    }
};
#endif

// What becomes of activations; the order of Activations in kernels/linear/linear_f8.py.
enum Activations : int { BY_TOKEN = 0, BY_GIVEN_SCALE = 1, AS_THEY_ARE = 2 };

// Inputs [begin, end) of a row as lanes of Base, rounded to codes unless they stay as they are -> their scale.
template <class Base, class T>
float put_row(Activations activations, const float* given, const T* x, int64_t begin, int64_t end, int32_t* row) {
    if (activations == AS_THEY_ARE) {
        for (int64_t i = begin; i < end; i += LANES) Base::put(row, i, load(x + i, end - i));
        return 1;
    }
    const int32_t top = largest_magnitude(x + begin, end - begin);
    const bool finite = top < 0x7f800000;
    const float scale = given ? *given : std::max(finite ? bits_of<float>(top) : 0.f, 1e-30f) / 448.f;
    for (int64_t i = begin; i < end; i += LANES) Base::put(row, i, rounded_to_f8(load(x + i, end - i) / scale));
    return finite ? scale : NAN;
}

// A scale for each output, and one for each row.
template <class Base> struct F8Rows : Base {
    Activations activations;
    const float *given, *scale;  // [1] or null, [outputs]

    template <class T> void pack(const T* x, int64_t n, int32_t* out, float* scale, int32_t*) const {
        *scale = put_row<Base>(activations, given, x, 0, n, out);
    }
    template <class Rows> Floats real(Floats sum, const Rows& rows, int64_t r, int64_t column, int64_t left) const {
        return sum * Base::UNIT * load(scale + column, left) * rows.scale[r];
    }
};

// A scale for each 128 outputs and 128 inputs, and one for each 128 inputs of a row.
template <class Base> struct F8Blocks : Base {
    static constexpr int64_t SIDE = 128, SEGMENT = SIDE / Base::GROUP, WIDENED = SEGMENT;
    static constexpr bool SCALES_SEGMENTS = true;
    Activations activations;
    const float* scale;  // [outputs / 128, scales], rounded up

    static int64_t scales(int64_t inputs) { return (inputs + SIDE - 1) / SIDE; }

    template <class T> void pack(const T* x, int64_t n, int32_t* out, float* scale, int32_t*) const {
        for (int64_t i = 0; i < n; i += SIDE)
            scale[i / SIDE] = put_row<Base>(activations, nullptr, x, i, std::min(n, i + SIDE), out);
    }
    template <class Rows> float factor(const Rows& rows, int64_t r, int64_t g, int64_t block) const {
        const int64_t segment = g / SEGMENT;
        return rows.scale[r * rows.scales + segment] * scale[block * BLOCK / SIDE * rows.scales + segment] * Base::UNIT;
    }
};

// Codes [16, inputs] of a block, of which `count` are there, to bytes [inputs, 16]; NaN to `starts` of what holds one.
inline void pack_block(const uint8_t* codes, int64_t count, int64_t inputs, uint8_t* packed, float* starts) {
    for (int64_t o = 0; o < count; o++) {
        uint8_t none = 0;
        for (int64_t i = 0; i < inputs; i++) none |= (codes[o * inputs + i] & 0x7f) == 0x7f;
        if (none) starts[o] = NAN;
    }
    constexpr int64_t STEP = 64;  // a line of each output
    for (int64_t begin = 0; begin < inputs; begin += STEP)
        for (int64_t o = 0; o < count; o++)
            for (int64_t i = begin; i < std::min(inputs, begin + STEP); i++) packed[i * BLOCK + o] = codes[o * inputs + i];
}

// f(Base) with the way to multiply activations of this dtype.
template <class F> inline void for_f8(int dtype, int activations, const F& f) {
#if defined(__AVX512BF16__)
    if (dtype == BF16 || activations != AS_THEY_ARE) return f(PairedF8{});
#endif
    f(WidenedF8{});
}

}  // namespace quire

// codes [outputs, inputs] -> packed [blocks, inputs in whole groups and one group, 16], which holds zeros.
QUIRE_EXPORT void quire_pack_f8(const uint8_t* codes, int64_t outputs, int64_t inputs, uint8_t* packed, int threads) {
    const int64_t group = quire::WidenedF8::GROUP, whole = (inputs + group - 1) / group * group;
    quire::for_rows((outputs + quire::BLOCK - 1) / quire::BLOCK, inputs * quire::BLOCK, threads, [=](int64_t b) {
        const int64_t first = b * quire::BLOCK, count = std::min<int64_t>(quire::BLOCK, outputs - first);
        uint8_t* const to = packed + b * (whole + group) * quire::BLOCK;
        float* const starts = reinterpret_cast<float*>(to + whole * quire::BLOCK);
        quire::pack_block(codes + first * inputs, count, inputs, to, starts);
    });
}

// `blocks`: columns of scale, or 0 where that is one for each output.
QUIRE_EXPORT void quire_linear_f8(
    int dtype, const void* x, const void* residual, const void* norm_weight, void* total, int64_t rows, int64_t inputs,
    float eps, const void* weight, const float* scale, int64_t blocks, const void* bias, int64_t outputs, int activations,
    const float* input_scale, int gate, void* out, void* scratch, int threads
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
    quire::for_f8(dtype, activations, [=](auto base) {
        const auto what = quire::Activations(activations);
        if (blocks) run(quire::F8Blocks<decltype(base)>{base, what, scale});
        else run(quire::F8Rows<decltype(base)>{base, what, input_scale, scale});
    });
}
