// The experts of a layer: their products are those of linear layers, all experts' in one loop.
//
// How often a loop runs hangs on the numbers of tokens and of experts, never on where the tokens go: a thread of a tape
// that comes late to a loop must know its length when the others have sorted the next layer's tokens already. What the
// sort left is read by bodies alone, and nobody goes on before all of them have ended.
#pragma once

#include <algorithm>

#include "int8.hpp"
#include "linear.hpp"

namespace quire {

// The pairs of a token and one of its k places, expert after expert, as `quire_sort_by_expert` leaves them.
struct Sorted {
    const int32_t* pairs;   // token * k + place
    const int32_t* starts;  // [experts + 1]
    int64_t experts, k;

    int64_t rows(int64_t expert) const { return starts[expert + 1] - starts[expert]; }

    // body(expert, i) for i in [0, pieces(expert)) of every expert that has rows, about equally many in each of `shares`.
    template <class Pieces, class Body>
    void for_pieces(int64_t shares, int threads, const Pieces& pieces, const Body& body) const {
        for_items(shares, threads, [&, this](int64_t share) {
            int64_t total = 0, at = 0;
            for (int64_t e = 0; e < experts; e++) total += rows(e) ? pieces(e) : 0;
            const int64_t begin = share * total / shares, end = (share + 1) * total / shares;
            for (int64_t e = 0; e < experts && at < end; e++) {
                if (rows(e) == 0) continue;
                const int64_t count = pieces(e), last = std::min(end - at, count);
                for (int64_t i = std::max<int64_t>(0, begin - at); i < last; i++) body(e, i);
                at += count;
            }
        });
    }
};

// Shares of a loop over so many elements of work: a thread takes several, and none is of more than about a millisecond.
inline int64_t shares_of(int64_t elements, int threads) {
    constexpr int64_t MOST_PER_THREAD = 64;  // each share looks at all experts
    if (threads <= 1 || elements / ELEMENTS_PER_THREAD <= 1) return 1;
    const int64_t wanted = std::max(PIECES_PER_THREAD * threads, elements / MOST_ELEMENTS_PER_PIECE);
    return std::min(wanted, MOST_PER_THREAD * threads);
}

// One product of all experts, each of its own rows. `format_of(expert)`: with the scales of its weights.
template <class T, class FormatOf> struct ExpertProducts {
    using Format = std::invoke_result_t<FormatOf, int64_t>;
    FormatOf format_of;
    Sorted sorted;
    int64_t tokens;
    const T* x;  // [tokens, inputs], looked up by pairs; or [pairs, inputs] in their order
    bool looked_up;
    int64_t inputs, outputs;
    const char* weight;  // of an expert [blocks, groups, 16] lanes
    const T* bias;       // [experts, outputs] or null
    int gate;
    T* out;  // [pairs, outputs], with a gate [pairs, outputs / 2]
    char* scratch;  // as for a linear layer of all pairs
    int threads;

    void run() const {
        const int64_t pairs = tokens * sorted.k, work = pairs * inputs;
        sorted.for_pieces(
            shares_of(work, threads), threads, [this](int64_t e) { return packed(linear(e), e).tiles(); },
            [this](int64_t e, int64_t tile) { linear(e).pack(packed(linear(e), e), tile); }
        );
        sorted.for_pieces(
            shares_of(work * outputs, threads), threads, [this](int64_t e) { return linear(e).items(packed(linear(e), e)); },
            [this](int64_t e, int64_t item) { linear(e).multiply(packed(linear(e), e), item); }
        );
    }

private:
    Linear<Format, T> linear(int64_t e) const {
        const int64_t first = sorted.starts[e], blocks = (outputs + BLOCK - 1) / BLOCK;
        const int64_t groups = (inputs + Format::GROUP - 1) / Format::GROUP;
        return {
            format_of(e), looked_up ? x : x + first * inputs, nullptr, nullptr, nullptr, sorted.rows(e), inputs, 0.0f,
            reinterpret_cast<const int32_t*>(weight) + e * blocks * groups * BLOCK, bias ? bias + e * outputs : nullptr,
            outputs, gate, out + first * (gate == NO_GATE ? outputs : outputs / 2), threads,
            looked_up ? sorted.pairs + first : nullptr, sorted.k
        };
    }
    PackedRows<Format> packed(const Linear<Format, T>& one, int64_t e) const {
        const int64_t row = 4 * ((inputs + Format::GROUP - 1) / Format::GROUP * Format::PARTS + 2);
        return one.packed_in(scratch + sorted.starts[e] * row);
    }
};

// f(how an expert's weights are multiplied, T*): scale [experts, outputs] of 8-bit integers, or null.
template <class F> inline void for_experts_format(
    int dtype, const float* scale, int64_t outputs, int64_t inputs, int64_t rows_of_expert, const F& f
) {
    if (!scale) {
        if (dtype == BF16) return f([](int64_t) { return Bfloat16{}; }, (Bf16*)nullptr);
        return f([](int64_t) { return Float32{}; }, (float*)nullptr);
    }
    for_dtype(dtype, [=](auto* t) {
#if defined(__AMX_INT8__)
        if (rows_of_expert > 8 && inputs % (Int8::GROUP * TILE) == 0)
            return f([=](int64_t e) {
                InTiles<Int8> format;
                format.scale = scale + e * outputs;
                return format;
            }, t);
#endif
        f([=](int64_t e) { return Int8{{}, scale + e * outputs}; }, t);
    });
}

// The weighted sum of each token's results, in the order of its experts.
template <class T> inline void sum_experts(
    const T* results, const int32_t* places, const float* weights, int64_t tokens, int64_t k, int64_t hidden, T* out,
    int threads
) {
    for_rows(tokens, hidden * k, threads, [=](int64_t t) {
        for (int64_t i = 0; i < hidden; i += LANES) {
            Floats sum{};
            for (int64_t j = t * k; j < (t + 1) * k; j++)
                if (places[j] >= 0) sum += weights[j] * load(results + places[j] * hidden + i, hidden - i);
            store(out + t * hidden + i, sum, hidden - i);
        }
    });
}

}  // namespace quire

// ids [tokens, k] of experts -> the pairs (token * k + place) of each expert first..first + experts - 1 in their order,
// where they begin [experts + 1], and the place of each pair [tokens, k] among them, -1 for one of any other expert.
QUIRE_EXPORT void quire_sort_by_expert(
    const int32_t* ids, int64_t tokens, int64_t k, int64_t first, int64_t experts, int32_t* pairs, int32_t* starts,
    int32_t* places
) {
    quire::once([=] {
        std::fill_n(starts, experts + 1, 0);
        const auto own = [=](int64_t i) { return ids[i] >= first && ids[i] < first + experts; };
        for (int64_t i = 0; i < tokens * k; i++)
            if (own(i)) starts[ids[i] - first + 1]++;
        for (int64_t e = 0; e < experts; e++) starts[e + 1] += starts[e];
        for (int64_t i = 0; i < tokens * k; i++) {  // the starts move on to the next expert's, and are put back
            places[i] = own(i) ? starts[ids[i] - first]++ : -1;
            if (places[i] >= 0) pairs[places[i]] = static_cast<int32_t>(i);
        }
        for (int64_t e = experts; e > 0; e--) starts[e] = starts[e - 1];
        starts[0] = 0;
    });
}

// gated(gate_up @ x) of every pair -> out [pairs, inner]; float32 and bfloat16, the latter of whole 32 inputs, or any
// dtype with the scales [experts, 2 * inner] of 8-bit integers.
QUIRE_EXPORT void quire_experts_inner(
    int dtype, const void* x, const int32_t* pairs, const int32_t* starts, int64_t tokens, int64_t experts, int64_t k,
    int64_t hidden, int64_t inner, const void* gate_up, const float* scale, const void* bias, int gate, void* out,
    void* scratch, int threads
) {
    quire::for_experts_format(dtype, scale, 2 * inner, hidden, tokens * k / experts, [=](auto format_of, auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::ExpertProducts<T, decltype(format_of)>{
            format_of, {pairs, starts, experts, k}, tokens, (const T*)x, true, hidden, 2 * inner, (const char*)gate_up,
            (const T*)bias, gate, (T*)out, (char*)scratch, threads
        }.run();
    });
}

// The second product of every pair -> results [pairs, hidden], and each token's sum of them -> out [tokens, hidden].
QUIRE_EXPORT void quire_experts_outer(
    int dtype, const void* inner_rows, const int32_t* pairs, const int32_t* starts, const int32_t* places,
    const float* weights, int64_t tokens, int64_t experts, int64_t k, int64_t hidden, int64_t inner, const void* down,
    const float* scale, const void* bias, void* results, void* out, void* scratch, int threads
) {
    quire::for_experts_format(dtype, scale, hidden, inner, tokens * k / experts, [=](auto format_of, auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::ExpertProducts<T, decltype(format_of)>{
            format_of, {pairs, starts, experts, k}, tokens, (const T*)inner_rows, false, inner, hidden,
            (const char*)down, (const T*)bias, quire::NO_GATE, (T*)results, (char*)scratch, threads
        }.run();
        quire::sum_experts((const T*)results, places, weights, tokens, k, hidden, (T*)out, threads);
    });
}
