// The choice of experts of each token, by the scores of its logits.
#pragma once

#include <algorithm>
#include <cmath>

#include "dtype.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace quire {

constexpr int64_t MOST_EXPERTS = 1024;

struct Route {
    const float* bias;  // [experts], for the choice alone, or null
    int64_t experts, k;
    bool sigmoid, renormalize;
    float scale;
    int64_t groups, top_groups;

    static constexpr float LEAST = -INFINITY;

    // logits [experts] -> ids [k], weights [k]
    template <class T> void row(const T* logits, int32_t* ids, float* weights) const {
        float scores[MOST_EXPERTS], choice[MOST_EXPERTS];
        for (int64_t i = 0; i < experts; i += LANES) store(scores + i, load(logits + i, experts - i), experts - i);
        if (sigmoid) to_sigmoids(scores);
        else to_softmax(scores);
        for (int64_t i = 0; i < experts; i++) {
            const float one = bias ? scores[i] + bias[i] : scores[i];
            choice[i] = one == one ? one : LEAST;
        }
        if (groups > 1) leave_groups(choice);
        bool taken[MOST_EXPERTS] = {};
        float total = sigmoid ? 1e-20f : 0.0f;
        for (int64_t j = 0; j < k; j++) {
            const int64_t best = best_of(choice, taken, experts);
            taken[best] = true;
            ids[j] = static_cast<int32_t>(best);
            total += weights[j] = scores[best];
        }
        for (int64_t j = 0; j < k; j++) weights[j] = (renormalize ? weights[j] / total : weights[j]) * scale;
    }

private:
    void to_sigmoids(float* scores) const {
        for (int64_t i = 0; i < experts; i += LANES)
            store(scores + i, 1.0f / (1.0f + exp(-load(scores + i, experts - i))), experts - i);
    }

    void to_softmax(float* scores) const {
        float most = LEAST, sum = 0.0f;
        for (int64_t i = 0; i < experts; i++) most = scores[i] > most ? scores[i] : most;
        for (int64_t i = 0; i < experts; i++) sum += scores[i] = std::exp(scores[i] - most);
        for (int64_t i = 0; i < experts; i++) scores[i] /= sum;
    }

    // Whoever is in none of the best groups counts as the least; a group counts by the sum of its two best.
    void leave_groups(float* choice) const {
        float sums[MOST_EXPERTS];
        bool taken[MOST_EXPERTS] = {};
        const int64_t size = experts / groups;
        for (int64_t g = 0; g < groups; g++) {
            float first = LEAST, second = LEAST;
            for (int64_t i = g * size; i < (g + 1) * size; i++) {
                second = std::max(second, std::min(first, choice[i]));
                first = std::max(first, choice[i]);
            }
            sums[g] = first + second;
        }
        for (int64_t one = 0; one < top_groups; one++) taken[best_of(sums, taken, groups)] = true;
        for (int64_t g = 0; g < groups; g++)
            if (!taken[g]) std::fill_n(choice + g * size, size, LEAST);
    }

    // The first of the largest that are not taken.
    static int64_t best_of(const float* values, const bool* taken, int64_t count) {
        int64_t best = -1;
        for (int64_t i = 0; i < count; i++)
            if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
        return best;
    }
};

}  // namespace quire

// logits [rows, width], width >= experts -> ids, weights [rows, k]; a row whose slot is negative has no experts.
QUIRE_EXPORT void quire_route(
    int dtype, const void* logits, const float* bias, const int64_t* slots, int32_t* ids, float* weights, int64_t rows,
    int64_t width, int64_t experts, int64_t k, int sigmoid, int renormalize, float scale, int64_t groups,
    int64_t top_groups, int threads
) {
    const quire::Route rule{bias, experts, k, sigmoid != 0, renormalize != 0, scale, groups, top_groups};
    quire::for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::for_rows(rows, experts * (k + 8), threads, [=](int64_t r) {
            if (!slots || slots[r] >= 0)
                return rule.row(static_cast<const T*>(logits) + r * width, ids + r * k, weights + r * k);
            std::fill_n(ids + r * k, k, -1);
            std::fill_n(weights + r * k, k, 0.0f);
        });
    });
}
