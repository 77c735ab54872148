// Vectors as wide as the registers this file is compiled for, and loads and stores of every element type as float32.
// GCC's vector extensions stand for x86-64 (SSE2, AVX2, AVX-512) and arm64 alike; intrinsics are left to the few
// conversions that GCC takes apart lane by lane.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace quire {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX2__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif
constexpr int LANES = VECTOR_BYTES / 4;

typedef float Floats __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t Ints __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t Words __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t Halves __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint8_t Bytes __attribute__((vector_size(VECTOR_BYTES / 4)));

// Element types as they lie in memory.
struct Bf16 { uint16_t bits; };
struct F16 { uint16_t bits; };
struct I8 { int8_t bits; };
struct Fp8 { uint8_t bits; };  // e4m3fn: 4 exponent bits, 3 of mantissa, no infinity, NaN is 0x7f
struct E8m0 { uint8_t bits; };  // 2^(bits - 127), NaN is 0xff

// What Python passes for a dtype; see native.py.
enum Dtype : int { F32 = 0, BF16 = 1, FP16 = 2, FP8 = 3, INT8 = 4, POWERS = 5 };

template <class To, class From> inline To bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class V> inline V load_vector(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

inline Floats splat(float x) { return x - Floats{}; }
inline Words splat_bits(uint32_t x) { return x - Words{}; }
inline Floats select(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }  // b where either is NaN

inline bool any(Words words) {
    uint32_t all = 0;
    for (int i = 0; i < LANES; i++) all |= words[i];
    return all != 0;
}

// ---- integers of other widths, lane by lane ----

#if defined(__AVX512F__)
inline Words wide(Halves x) { return (Words)_mm512_cvtepu16_epi32((__m256i)x); }
inline Words wide(Bytes x) { return (Words)_mm512_cvtepu8_epi32((__m128i)x); }
inline Halves low_half(Words x) { return (Halves)_mm512_cvtepi32_epi16((__m512i)x); }
inline Bytes low_byte(Words x) { return (Bytes)_mm512_cvtepi32_epi8((__m512i)x); }
#elif defined(__AVX2__)
inline Words wide(Halves x) { return (Words)_mm256_cvtepu16_epi32((__m128i)x); }
inline Words wide(Bytes x) { return (Words)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bits_of<int64_t>(x))); }
inline Halves low_half(Words x) { return __builtin_convertvector(x, Halves); }
inline Bytes low_byte(Words x) { return __builtin_convertvector(x, Bytes); }
#else
inline Words wide(Halves x) { return __builtin_convertvector(x, Words); }
inline Words wide(Bytes x) { return __builtin_convertvector(x, Words); }
inline Halves low_half(Words x) { return __builtin_convertvector(x, Halves); }
inline Bytes low_byte(Words x) { return __builtin_convertvector(x, Bytes); }
#endif

// Byte of a table of 16 at the place that each byte of x, below 16, names.
inline Words looked_up(Words x, const uint8_t* table) {
#if defined(__AVX512F__)
    return (Words)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load_vector<__m128i>(table)), (__m512i)x);
#elif defined(__AVX2__)
    return (Words)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_vector<__m128i>(table)), (__m256i)x);
#elif defined(__clang__)  // has no shuffle of this name
    uint8_t bytes[sizeof x];
    std::memcpy(bytes, &x, sizeof x);
    for (uint8_t& byte : bytes) byte = table[byte];
    return load_vector<Words>(bytes);
#else
    typedef uint8_t Sixteen __attribute__((vector_size(16)));
    return (Words)__builtin_shuffle(load_vector<Sixteen>(table), (Sixteen)x);
#endif
}

// ---- to float32 and back, a vector at a time ----

inline Floats widen(Floats raw, float*) { return raw; }
inline Floats narrow(Floats x, float*) { return x; }

inline Floats widen(Halves raw, Bf16*) { return bits_of<Floats>(wide(raw) << 16); }

// The upper half holds x rounded to nearest even; the lower one is rubbish.
inline Words rounded_to_upper_half(Floats x) {
    const Words w = bits_of<Words>(x);
    return x != x ? w | 0x400000 : w + 0x7fff + ((w >> 16) & 1);
}

inline Halves narrow(Floats x, Bf16*) { return low_half(rounded_to_upper_half(x) >> 16); }

// Small formats: put the bits where float32 has them, and multiply by the difference of the exponents' biases. The
// multiplication is exact and normalises subnormal numbers.
inline Floats widen(Bytes raw, Fp8*) {
    const Words w = wide(raw), body = w & 0x7f;
    const Words finite = bits_of<Words>(bits_of<Floats>(body << 20) * 0x1p120f);
    const Words magnitude = body == splat_bits(0x7f) ? splat_bits(0x7fc00000) : finite;
    return bits_of<Floats>(magnitude | ((w & 0x80) << 24));
}

inline Floats widen(Bytes raw, E8m0*) {
    const Words w = wide(raw), power = w == splat_bits(0) ? splat_bits(1u << 22) : w << 23;
    return bits_of<Floats>(w == splat_bits(0xff) ? splat_bits(0x7fc00000) : power);
}

// Magnitudes of a small float, rounded to nearest even. `mantissa`, `bias` are the format's; what is beyond its
// largest finite number must be dealt with by the caller.
template <int mantissa, int bias> inline Words rounded_magnitude(Words magnitude) {
    constexpr int shift = 23 - mantissa;
    constexpr uint32_t rebias = uint32_t(127 - bias) << 23;
    constexpr uint32_t unit = uint32_t(127 - bias + 1 + 23 - mantissa) << 23;  // its last bit is the smallest subnormal
    const Words normal = (magnitude - rebias + ((1u << (shift - 1)) - 1) + ((magnitude >> shift) & 1)) >> shift;
    const Floats added = bits_of<Floats>(magnitude) + bits_of<Floats>(splat_bits(unit));
    const Words subnormal = bits_of<Words>(added) - unit;
    return magnitude < splat_bits(rebias + (1u << 23)) ? subnormal : normal;
}

#if defined(__AVX512F__)
inline Floats widen(Bytes raw, I8*) { return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)raw)); }
#else
inline Floats widen(Bytes raw, I8*) { return __builtin_convertvector((Ints)(wide(raw) << 24) >> 24, Floats); }
#endif

// Rounded to the nearest, half to even, and clamped to +-127; NaN becomes zero.
inline Bytes narrow(Floats x, I8*) {
    const Floats most = splat(127.f), magic = splat(0x1.8p23f);  // adding it leaves an integer in the lowest bits
    return low_byte(bits_of<Words>((x > most ? most : x < -most ? -most : x) + magic));
}

// Clamped to the largest finite number, 448; NaN stays NaN.
inline Bytes narrow(Floats x, Fp8*) {
    const Words w = bits_of<Words>(x), magnitude = w & 0x7fffffff;
    Words body = rounded_magnitude<3, 7>(magnitude);
    body = magnitude >= splat_bits(0x43e00000) ? splat_bits(0x7e) : body;
    body = magnitude > splat_bits(0x7f800000) ? splat_bits(0x7f) : body;
    return low_byte(body | ((w >> 24) & 0x80));
}

// x rounded to the nearest e4m3, half to even, saturating, as float32. NaN stays none.
inline Floats rounded_to_f8(Floats x) {
    const Floats most = splat(448.f), magic = splat(0x1.8p14f);  // adding it leaves multiples of the least subnormal
    const Floats y = x > most ? most : x < -most ? -most : x;
    const Words w = bits_of<Words>(y);
    const Floats normal = bits_of<Floats>((w + 0x7ffff + ((w >> 20) & 1)) & 0xfff00000);
    const Floats subnormal = (y + magic) - magic;
    return (w & 0x7fffffff) < splat_bits(0x3c800000) ? subnormal : normal;  // 2^-6
}

inline Floats widen(Bytes raw, uint8_t*) { return __builtin_convertvector((Ints)wide(raw), Floats); }

#if defined(__AVX512F__)
inline Floats widen(Halves raw, F16*) { return (Floats)_mm512_cvtph_ps((__m256i)raw); }
inline Halves narrow(Floats x, F16*) { return (Halves)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__AVX2__)  // every processor that has AVX2 has F16C
inline Floats widen(Halves raw, F16*) { return (Floats)_mm256_cvtph_ps((__m128i)raw); }
inline Halves narrow(Floats x, F16*) { return (Halves)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT); }
#else
inline Floats widen(Halves raw, F16*) {
    const Words w = wide(raw), body = w & 0x7fff;
    const Words finite = bits_of<Words>(bits_of<Floats>(body << 13) * 0x1p112f);
    const Words magnitude = body >= splat_bits(0x7c00) ? (body << 13) | 0x7f800000 : finite;
    return bits_of<Floats>(magnitude | ((w & 0x8000) << 16));
}

inline Halves narrow(Floats x, F16*) {
    const Words w = bits_of<Words>(x), magnitude = w & 0x7fffffff;
    Words body = rounded_magnitude<10, 15>(magnitude);
    body = magnitude >= splat_bits(0x477ff000) ? splat_bits(0x7c00) : body;  // 65520 and above round to infinity
    body = magnitude > splat_bits(0x7f800000) ? splat_bits(0x7e00) : body;
    return low_half(body | ((w >> 16) & 0x8000));
}
#endif

template <class T> struct Raw;
template <> struct Raw<float> { using type = Floats; };
template <> struct Raw<Bf16> { using type = Halves; };
template <> struct Raw<F16> { using type = Halves; };
template <> struct Raw<Fp8> { using type = Bytes; };
template <> struct Raw<E8m0> { using type = Bytes; };
template <> struct Raw<uint8_t> { using type = Bytes; };
template <> struct Raw<I8> { using type = Bytes; };

// ---- memory: `n` elements are left from here on; those beyond read as zero and are not written ----

template <class T> inline Floats load(const T* from, int64_t n = LANES) {
    if (n >= LANES) return widen(load_vector<typename Raw<T>::type>(from), static_cast<T*>(nullptr));
    T some[LANES] = {};
    std::memcpy(some, from, n * sizeof(T));
    return widen(load_vector<typename Raw<T>::type>(some), static_cast<T*>(nullptr));
}

template <class T> inline void store(T* to, Floats x, int64_t n = LANES) {
    const auto raw = narrow(x, static_cast<T*>(nullptr));
    if (n >= LANES) std::memcpy(to, &raw, sizeof raw);
    else std::memcpy(to, &raw, n * sizeof(T));
}

// x as it would come back from memory.
template <class T> inline Floats rounded(Floats x) {
    if constexpr (std::is_same_v<T, Bf16>) return bits_of<Floats>(rounded_to_upper_half(x) & 0xffff0000);
    else return widen(narrow(x, static_cast<T*>(nullptr)), static_cast<T*>(nullptr));
}

// ---- across lanes ----

template <int step, class V, int... i> inline V swapped(V x, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(x, x, (i ^ step)...);
}

template <int step = LANES / 2, class V, class Combine> inline auto fold(V x, Combine combine) {
    if constexpr (step == 0) return x[0];
    else {
        const V other = swapped<step>(x, std::make_integer_sequence<int, LANES>{});
        return fold<step / 2>(combine(x, other), combine);
    }
}

inline float sum_of(Floats x) {
    return fold(x, [](Floats a, Floats b) { return a + b; });
}

inline float max_of(Floats x) { return fold(x, larger); }

// Bits of the largest magnitude of n elements: they are ordered like the numbers, infinity and NaN above all.
template <class T> inline int32_t largest_magnitude(const T* x, int64_t n) {
    Ints most = {};
    for (int64_t i = 0; i < n; i += LANES) {
        const Ints bits = bits_of<Ints>(load(x + i, n - i)) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    return fold(most, [](Ints a, Ints b) { return a > b ? a : b; });
}

// ---- functions ----

// 2^x to 1e-7 relative; 0 below 2^-126, infinity above 2^127.5, NaN for NaN. The polynomial is 2^f for |f| <= 0.5.
inline Floats exp2(Floats x) {
    const Floats magic = splat(0x1.8p23f);  // adding it leaves the nearest integer in the lowest bits
    const Floats capped = x > splat(128.f) ? splat(128.f) : x;
    const Floats shifted = capped + magic;
    const Floats f = capped - (shifted - magic);
    Floats p = splat(0x1.41fbb8p-13f);
    p = p * f + 0x1.5f3e56p-10f;
    p = p * f + 0x1.3b2d4cp-7f;
    p = p * f + 0x1.c6aee8p-5f;
    p = p * f + 0x1.ebfbdcp-3f;
    p = p * f + 0x1.62e430p-1f;
    p = p * f + 1.0f;
    const Floats power = bits_of<Floats>((bits_of<Words>(shifted) + 127) << 23);
    return x < splat(-126.f) ? Floats{} : p * power;
}

constexpr float LOG2_E = 0x1.715476p0f;

inline Floats exp(Floats x) { return exp2(x * LOG2_E); }

inline Floats tanh(Floats x) { return 1.0f - 2.0f / (exp2(x * (2.0f * LOG2_E)) + 1.0f); }

}  // namespace quire
