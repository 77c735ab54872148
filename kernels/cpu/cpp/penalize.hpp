// Penalties for the tokens that a row's history holds; see kernels/sampling/penalize.py.
#pragma once

#include <algorithm>
#include <vector>

#include "dtype.hpp"
#include "parallel.hpp"

namespace quire {

struct Penalties {
    float repetition, presence, frequency;

    float of(float logit, int occurrences) const {
        const float x = logit > 0 ? logit / repetition : logit * repetition;
        return x - (frequency * float(occurrences) + (occurrences ? presence : 0.0f));
    }
};

// Of the tokens of one row, `prompt` are the prompt's; ids outside the vocabulary are passed over.
inline void penalize_row(
    float* row, int64_t vocab, const int32_t* tokens, int64_t count, int64_t prompt, const Penalties& penalties
) {
    // occurrences in the output plus one, 0 where a token is not in the history: all 0 again at the end
    static thread_local std::vector<int32_t> noted;
    std::vector<int32_t>& seen = noted;
    if (int64_t(seen.size()) < vocab) seen.resize(vocab);
    const auto is_known = [&](int32_t token) { return token >= 0 && token < vocab; };
    for (int64_t i = 0; i < count; i++)
        if (is_known(tokens[i])) seen[tokens[i]] += (seen[tokens[i]] == 0) + (i >= prompt);
    for (int64_t i = 0; i < count; i++) {
        if (!is_known(tokens[i]) || !seen[tokens[i]]) continue;
        row[tokens[i]] = penalties.of(row[tokens[i]], seen[tokens[i]] - 1);
        seen[tokens[i]] = 0;
    }
}

}  // namespace quire

// logits [.., stride]; tokens [slots, width]; all others [count], for the rows that are changed.
QUIRE_EXPORT void quire_penalize(
    float* logits, int64_t stride, int64_t vocab, const int64_t* rows, int64_t count, const int32_t* tokens,
    int64_t token_stride, int64_t width, const int64_t* slots, const int64_t* num_tokens, const int64_t* num_prompt,
    const float* repetition, const float* presence, const float* frequency, int threads
) {
    quire::for_rows(count, width * 4, threads, [=](int64_t p) {
        quire::penalize_row(
            logits + rows[p] * stride, vocab, tokens + slots[p] * token_stride, std::min(num_tokens[p], width),
            num_prompt[p], {repetition[p], presence[p], frequency[p]}
        );
    });
}
