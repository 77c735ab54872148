// Products of a key-value head's queries with its keys as they lie in the cache: of numbers, widened on the way, or of
// 8-bit integers.
#pragma once

#include "int8.hpp"
#include "paged.hpp"

namespace quire {

template <int groups, class V, int... i> inline V halve(V a, V b, std::integer_sequence<int, i...>) {
    constexpr int width = LANES / groups, half = width / 2;  // a holds `groups` partial sums of `width` lanes, b too
    return __builtin_shufflevector(a, b, (i / half * width + i % half)...) +
           __builtin_shufflevector(a, b, (i / half * width + i % half + half)...);
}

// Queries of a key-value head that meet a key while it is in registers, with four sums each. What need not be widened is
// as soon loaded again.
template <class T> constexpr int QUERIES = std::is_same_v<T, float> ? 1 : LANES == 16 ? 4 : 2;

// Products of M queries, `dim` apart, with `count` = 4, 8, ... LANES keys, each spread over LANES / count lanes.
// `meanwhile()` is called once for every four keys.
template <int count, int M, class T, class Meanwhile>
inline void products(
    const float* query, const T* const* keys, int64_t dim, Floats (&out)[M], const Meanwhile& meanwhile
) {
    if constexpr (count > 4) {
        Floats low[M], high[M];
        products<count / 2>(query, keys, dim, low, meanwhile);
        products<count / 2>(query, keys + count / 2, dim, high, meanwhile);
        for (int m = 0; m < M; m++)
            out[m] = halve<count / 2>(low[m], high[m], std::make_integer_sequence<int, LANES>{});
    } else {
        meanwhile();
        Floats sum[M][4] = {};
        for (int64_t i = 0; i < dim; i += LANES) {
            Floats key[4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) key[j] = load(keys[j] + i);
#pragma GCC unroll 4
            for (int m = 0; m < M; m++) {
                const Floats q = load_vector<Floats>(query + m * dim + i);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) sum[m][j] += q * key[j];
            }
        }
        const auto lanes = std::make_integer_sequence<int, LANES>{};
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
            out[m] = halve<2>(halve<1>(sum[m][0], sum[m][1], lanes), halve<1>(sum[m][2], sum[m][3], lanes), lanes);
    }
}

// f(M) for all queries of a head, up to `most` at once; f takes the next M of them.
template <int most, class F> inline void by_queries(int64_t count, const F& f) {
    static_assert(most <= 4);
    for (; count >= most; count -= most) f(std::integral_constant<int, most>{});
    if (most > 3 && count == 3) f(std::integral_constant<int, 3>{});
    if (most > 2 && count == 2) f(std::integral_constant<int, 2>{});
    if (most > 1 && count == 1) f(std::integral_constant<int, 1>{});
}

// ---- of 8-bit integers: sums of whole numbers, exact in any order ----

// x [n] as the integers of kernels/attention/int8_rows.py, still in float32 -> their scale; it is NaN, and they are
// zeros, where x holds one or an infinity.
inline float round_query(float* x, int64_t n) {
    const int32_t top = largest_magnitude(x, n);
    const bool finite = top < 0x7f800000;
    const float step = std::max(finite ? bits_of<float>(top) : 0.0f, 1e-30f) / 127.0f;
    const Floats magic = splat(0x1.8p23f);  // adding it rounds to the nearest integer, half to even
    for (int64_t i = 0; i < n; i += LANES)
        store(x + i, finite ? (load(x + i, n - i) / step + magic) - magic : Floats{}, n - i);
    return finite ? step : NAN;
}

// Lanes in fours: rows[i] gets the i-th four of all rows, one row after another.
template <int step = LANES / 2> inline void gather_fours(Floats (&rows)[LANES / 4]) {
    if constexpr (step >= 4) {
#pragma GCC unroll 4
        for (int i = 0; i < LANES / 4; i++)
            if (!(i & step / 4)) exchange<step>(rows[i], rows[i + step / 4], std::make_integer_sequence<int, LANES>{});
        gather_fours<step / 2>(rows);
    }
}

// 16 bytes in every four lanes.
inline Ints in_all_fours(const void* from) {
#if defined(__AVX512F__)
    return (Ints)_mm512_broadcast_i32x4(load_vector<__m128i>(from));
#elif defined(__AVX2__)
    return (Ints)_mm256_broadcastsi128_si256(load_vector<__m128i>(from));
#else
    return load_vector<Ints>(from);
#endif
}

// A vector of bytes, of which those behind the first n are zeros.
inline Words load_bytes(const void* from, int64_t n) {
    if (n >= VECTOR_BYTES) return load_vector<Words>(from);
#if defined(__AVX512F__)
    return (Words)_mm512_maskz_loadu_epi8((1ull << n) - 1, from);
#else
    Words some{};
    std::memcpy(&some, from, n);
    return some;
#endif
}

// Products of M rows of codes, `stride` bytes apart, with LANES keys of n codes: 128 times the sum of a row too large.
// A lane adds up a quarter of a key: folding whole vectors would cost more than the products.
template <int M, class Meanwhile>
inline void products(
    const int8_t* codes, int64_t stride, const I8* const* keys, int64_t n, Ints (&out)[M], const Meanwhile& meanwhile
) {
    constexpr int KEYS = LANES / 4;
    Ints sum[M][4] = {};
#pragma GCC unroll 4
    for (int part = 0; part < 4; part++) {
        meanwhile();
        for (int64_t d = 0; d < n; d += VECTOR_BYTES) {
            Floats fours[KEYS];
#pragma GCC unroll 4
            for (int j = 0; j < KEYS; j++)
                fours[j] = bits_of<Floats>(load_bytes(keys[part * KEYS + j] + d, n - d) ^ 0x80808080);
            gather_fours(fours);
#pragma GCC unroll 4
            for (int j = 0; j < KEYS; j++)
#pragma GCC unroll 4
                for (int m = 0; m < M; m++) {
                    const Ints query = in_all_fours(codes + m * stride + d + 16 * j);
                    sum[m][part] = Int8::dot(sum[m][part], bits_of<Ints>(fours[j]), query);
                }
        }
    }
    const auto lanes = std::make_integer_sequence<int, LANES>{};
#pragma GCC unroll 4
    for (int m = 0; m < M; m++)
        out[m] = halve<2 * KEYS>(
            halve<KEYS>(sum[m][0], sum[m][1], lanes), halve<KEYS>(sum[m][2], sum[m][3], lanes), lanes
        );
}

}  // namespace quire
