// The second half of attention, for decode and prefill alike: from scores to weights, and the weighted sum of values.
#pragma once

#include "bf16.hpp"
#include "paged.hpp"

namespace quire {

// 2^x of a logit less the largest, so x <= 0 but for roundings; NaN for NaN. To 1e-7 relative, 3e-6 for a T of bfloat16,
// and zero from some x below -126 on.
template <class T> inline Floats weight_of(Floats x) {
#if defined(__AVX512F__)
    x = larger(splat(-150.0f), x);
    const Floats whole = (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Floats f = x - whole;
    Floats p;
    if constexpr (std::is_same_v<T, Bf16>) {
        p = splat(0x1.3a02ccp-7f);
        p = p * f + 0x1.c9fc46p-5f;
        p = p * f + 0x1.ec0378p-3f;
        p = p * f + 0x1.62e12cp-1f;
    } else {
        p = splat(0x1.41fbb8p-13f);
        p = p * f + 0x1.5f3e56p-10f;
        p = p * f + 0x1.3b2d4cp-7f;
        p = p * f + 0x1.c6aee8p-5f;
        p = p * f + 0x1.ebfbdcp-3f;
        p = p * f + 0x1.62e430p-1f;
    }
    p = p * f + 1.0f;
    return (Floats)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    return exp2(x);
#endif
}

// Online softmax (Milakov and Gimelshein, 2018) of one query's next scores: [low, high), whole vectors, of which
// [from, to) are seen. Times `scale` they are logits, and become weights 2^(logit - largest), zero where not seen, which
// go to `weights` (it may be where the scores are); returns what sums over earlier keys are to be multiplied by. NaN
// among the seen scores makes `mass` NaN; a query that has seen nothing keeps mass 0.
template <class T>
inline float soften(
    const Attention& a, float* scores, float scale, T* weights, int64_t low, int64_t high, int64_t from, int64_t to,
    float& largest, float& mass
) {
    const auto seen = [&](int64_t j, Floats x, float otherwise) {
        if (j >= from && j + LANES <= to) return x;
        Ints lane;
        for (int i = 0; i < LANES; i++) lane[i] = i;
        const Ints begin = lane >= static_cast<int32_t>(from - j), end = lane < static_cast<int32_t>(to - j);
        return select(begin & end, x, splat(otherwise));
    };
    Floats top = splat(-INFINITE);
    for (int64_t j = low; j < high; j += LANES) {
        Floats s = load_vector<Floats>(scores + j) * scale;
        if (a.soft_cap > 0.0f) store(scores + j, s = a.capped(s));
        top = larger(seen(j, s, -INFINITE), top);
    }
    const float before = largest, most = max_of(top);
    largest = most > before ? most : before;
    const float base = largest == -INFINITE ? 0.0f : largest;
    if (a.soft_cap > 0.0f) scale = 1.0f;
    Floats sum{};
    for (int64_t j = low; j < high; j += LANES) {
        const Floats weight = seen(j, weight_of<T>(load_vector<Floats>(scores + j) * scale - base), 0.0f);
        store_sum(weights + j, weight, LANES);
        sum += weight;
    }
    const float factor = exp2(splat(before - base))[0];
    mass = mass * factor + sum_of(sum);
    return factor;
}

// ---- out = factors * out + weights x rows: the second product of attention, M query rows at a time ----

// What a kernel that does nothing else meanwhile passes as `meanwhile`.
struct Nothing {
    void operator()() const {}
};

// `meanwhile()` is called once for each row.
template <int M, int V, class T, class Meanwhile>
inline void add_weighted(
    const T* const* rows, int64_t first, int64_t count, const float* weights, int64_t weight_stride,
    const float* factors, float* out, int64_t out_stride, int64_t column, Meanwhile meanwhile
) {
    Floats sum[M][V];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++)
            sum[m][v] = load_vector<Floats>(out + m * out_stride + column + v * LANES) * factors[m];
    for (int64_t j = first; j < count; j++) {
        meanwhile();
        Floats x[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) x[v] = load(rows[j] + column + v * LANES);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            const Floats w = splat(weights[m * weight_stride + j]);
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) sum[m][v] += w * x[v];
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) store(out + m * out_stride + column + v * LANES, sum[m][v]);
}

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int PANEL = 4;  // vectors a micro-kernel holds per query row: 6 x 4 sums in 32 registers
#else
constexpr int PANEL = 2;  // 6 x 2 sums in 16
#endif

// All columns; `dim` is a multiple of LANES. Columns are taken in panels of nearly equal width.
template <int M, class T, class Meanwhile = Nothing>
inline void add_weighted_rows(
    const T* const* rows, int64_t first, int64_t count, const float* weights, int64_t weight_stride,
    const float* factors, float* out, int64_t out_stride, int64_t dim, Meanwhile meanwhile = {}
) {
    for (int64_t left = dim / LANES, column = 0; left > 0;) {
        const int64_t panels = (left + PANEL - 1) / PANEL, width = (left + panels - 1) / panels;
        const auto add = [&](auto v) {
            add_weighted<M, v>(rows, first, count, weights, weight_stride, factors, out, out_stride, column, meanwhile);
        };
        if (width == 1) add(std::integral_constant<int, 1>{});
        else if (PANEL == 2 || width == 2) add(std::integral_constant<int, 2>{});
        else if (width == 3) add(std::integral_constant<int, 3>{});
        else add(std::integral_constant<int, 4>{});
        column += width * LANES;
        left -= width;
    }
}

}  // namespace quire
