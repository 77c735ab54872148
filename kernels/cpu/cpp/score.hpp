// Log probabilities and ranks of some tokens of each row; and what a mask forbids.
#pragma once

#include "sample.hpp"

namespace quire {

// Of `count` ids: log_softmax of their logits, and one more than the number of strictly greater ones. No log probability
// of a row with NaN or infinity is finite.
template <class T>
inline void score_row(const T* row, int64_t n, const int64_t* ids, int64_t count, float* logprobs, int64_t* ranks) {
    Floats most = splat(-INFINITY);
    Ints unlike = {};
    for (int64_t i = 0; i < n; i += LANES) {
        const Floats x = logits_at(row, i, n);
        most = larger(x, most);
        unlike |= x != x;
    }
    const float high = max_of(most);
    double mass = any((Words)unlike) ? NAN : 0;
    for (int64_t first = 0; first < n; first += TILE_TOKENS) {
        Floats sum = {};
        for (int64_t i = first; i < std::min(first + TILE_TOKENS, n); i += LANES) sum += exp(logits_at(row, i, n) - high);
        mass += sum_of(sum);
    }
    const double whole = high < INFINITY ? high + std::log(mass) : NAN;
    for (int64_t k = 0; k < count; k++) {
        const float value = load(row + ids[k], 1)[0];
        Ints greater = {};
        for (int64_t i = 0; i < n; i += LANES) greater += logits_at(row, i, n) > splat(value);
        logprobs[k] = float(value - whole);
        ranks[k] = 1 - fold(greater, [](Ints a, Ints b) { return a + b; });
    }
}

}  // namespace quire

// logits [rows, stride], of which `vocab` count; ids [rows, count] -> log probabilities, ranks [rows, count].
QUIRE_EXPORT void quire_score(
    int dtype, const void* logits, int64_t stride, int64_t rows, int64_t vocab, const int64_t* ids, int64_t count,
    float* logprobs, int64_t* ranks, int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        const auto* const from = static_cast<const std::remove_pointer_t<decltype(t)>*>(logits);
        quire::for_rows(rows, vocab * (count + 2), threads, [=](int64_t r) {
            quire::score_row(from + r * stride, vocab, ids + r * count, count, logprobs + r * count, ranks + r * count);
        });
    });
}

// logits float32 [.., stride]: minus infinity where a bit of mask [masked, words] is unset, in the row it is for.
QUIRE_EXPORT void quire_mask_tokens(
    float* logits, int64_t stride, int64_t vocab, const int64_t* rows, int64_t masked, const uint32_t* mask,
    int64_t words, int threads
) {
    using namespace quire;
    Words bit;
    for (int lane = 0; lane < LANES; lane++) bit[lane] = 1u << lane;
    for_rows(masked, vocab, threads, [=](int64_t m) {
        float* const row = logits + rows[m] * stride;
        for (int64_t i = 0; i < vocab; i += LANES) {
            const Words bits = (mask[m * words + i / 32] >> i % 32) & bit;
            const Floats x = load(row + i, vocab - i);
            store(row + i, bits != Words{} ? x : splat(-INFINITY), vocab - i);
        }
    });
}
