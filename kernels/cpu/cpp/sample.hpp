// Choosing a token of each row: the likeliest, or the draw in two levels of kernels/sampling/sample.py.
#pragma once

#include <algorithm>
#include <cmath>

#include "best.hpp"

namespace quire {

constexpr int64_t TILE_TOKENS = 128;
enum Stream : uint32_t { TOKENS = 0, TILES = 1 };

// A row's logits from i on, of n; minus infinity behind them.
template <class T> inline Floats logits_at(const T* row, int64_t i, int64_t n) {
    Floats x = load(row + i, n - i);
    for (int64_t lane = std::max<int64_t>(0, n - i); lane < LANES; lane++) x[lane] = -INFINITY;
    return x;
}

// Standard Gumbel noise of a stream's items, a pure function of the three numbers; see kernels/sampling/random.py.
class Gumbel {
public:
    Gumbel(int64_t seed, int64_t position, int64_t output, Stream stream)
        : seed(seed), position(position), output(output), stream(stream) {}

    // Noise of items [4 group, 4 group + 4).
    void operator()(int64_t group, float* noise) const {
        uint32_t words[4] = {position, output, uint32_t(group), stream};
        uint32_t keys[2] = {uint32_t(seed), uint32_t(uint64_t(seed) >> 32)};
        for (int round = 0; round < 10; round++) {
            const uint64_t even = uint64_t(0xD2511F53) * words[0], odd = uint64_t(0xCD9E8D57) * words[2];
            words[0] = uint32_t(odd >> 32) ^ words[1] ^ keys[0];
            words[2] = uint32_t(even >> 32) ^ words[3] ^ keys[1];
            words[1] = uint32_t(odd);
            words[3] = uint32_t(even);
            keys[0] += 0x9E3779B9;
            keys[1] += 0xBB67AE85;
        }
        for (int i = 0; i < 4; i++) noise[i] = -std::log(-std::log((float(words[i] >> 9) + 0.5f) * 0x1p-23f));
    }

private:
    int64_t seed;
    uint32_t position, output;
    Stream stream;
};

// The lowest of the items with the greatest score. NaN is never the greatest.
struct Winner {
    int64_t item = 0;
    float score = -INFINITY;

    void see(int64_t other, float its_score) {
        if (its_score > score) *this = {other, its_score};
    }
};

// A token of softmax(logits / temperature) of the logits not below `floor`; some token of a row that is not finite.
template <class T>
inline int64_t draw(
    const T* row, int64_t vocab, float floor, float temperature, int64_t seed, int64_t position, int64_t output
) {
    Floats most = splat(-INFINITY);
    for (int64_t i = 0; i < vocab; i += LANES) most = larger(logits_at(row, i, vocab), most);
    const float high = max_of(most);
    const Gumbel tile_noise(seed, position, output, TILES), token_noise(seed, position, output, TOKENS);
    float noise[4];
    Winner tile, token;
    for (int64_t first = 0, number = 0; first < vocab; first += TILE_TOKENS, number++) {
        Floats mass = {};
        for (int64_t i = first; i < std::min(first + TILE_TOKENS, vocab); i += LANES) {
            const Floats x = logits_at(row, i, vocab);
            // the exponent is never above 0, so no temperature > 0 is too small for float32
            const Floats weight = exp((x - high) / temperature);
            mass += x < splat(floor) ? Floats{} : weight;
        }
        if (number % 4 == 0) tile_noise(number / 4, noise);
        tile.see(number, std::log(sum_of(mass)) + noise[number % 4]);
    }
    const int64_t first = tile.item * TILE_TOKENS;
    token.item = first;
    for (int64_t i = first; i < std::min(first + TILE_TOKENS, vocab); i++) {
        if (i % 4 == 0) token_noise(i / 4, noise);
        const float x = load(row + i, 1)[0];
        if (!(x < floor)) token.see(i, (x - high) / temperature + noise[i % 4]);
    }
    return token.item;
}

}  // namespace quire

// logits [rows, stride], of which `vocab` count; all others [rows] -> ids [rows]. Temperature 0: the likeliest.
QUIRE_EXPORT void quire_sample(
    int dtype, const void* logits, int64_t stride, int64_t rows, int64_t vocab, const float* floor,
    const float* temperature, const int64_t* seeds, const int64_t* positions, const int64_t* outputs, int64_t* ids,
    int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        const auto* const from = static_cast<const std::remove_pointer_t<decltype(t)>*>(logits);
        quire::for_rows(rows, vocab, threads, [=](int64_t r) {
            const auto* const row = from + r * stride;
            float value;
            if (!(temperature[r] > 0.0f)) quire::best_of_row(row, vocab, &value, ids + r);
            else ids[r] = quire::draw(row, vocab, floor[r], temperature[r], seeds[r], positions[r], outputs[r]);
        });
    });
}
