// The experts of a layer: their products are those of linear layers, all experts' in one loop.
//
// How often a loop runs hangs on the numbers of tokens and of experts, never on where the tokens go: a thread of a tape
// that comes late to a loop must know its length when the others have sorted the next layer's tokens already. What the
// sort left is read by bodies alone, and nobody goes on before all of them have ended.
#pragma once

#include <algorithm>

#include "linear.hpp"

namespace quire {

// The pairs of a token and one of its k places, expert after expert, as `quire_sort_by_expert` leaves them.
struct Sorted {
    const int32_t* pairs;   // token * k + place
    const int32_t* starts;  // [experts + 1]
    int64_t experts, k;

    int64_t rows(int64_t expert) const { return starts[expert + 1] - starts[expert]; }

    // The next expert that has rows, or `experts`.
    int64_t after(int64_t expert) const {
        do expert++;
        while (expert < experts && rows(expert) == 0);
        return expert;
    }

    // body(expert, begin, end) for pieces of every expert that has rows, about equally many in each of `shares`.
    template <class Pieces, class Body>
    void for_pieces(int64_t shares, int threads, const Pieces& pieces, const Body& body) const {
        for_items(shares, threads, [&, this](int64_t share) {
            int64_t total = 0, at = 0;
            for (int64_t e = 0; e < experts; e++) total += rows(e) ? pieces(e) : 0;
            const int64_t begin = share * total / shares, end = (share + 1) * total / shares;
            for (int64_t e = after(-1); e < experts && at < end; e = after(e)) {
                const int64_t count = pieces(e), first = std::max<int64_t>(0, begin - at), last = std::min(end - at, count);
                if (first < last) body(e, first, last);
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

// The matrix of one expert.
template <class Format_, class T_> struct Matrix {
    using Format = Format_;
    using T = T_;
    Format format;
    const int32_t* weight;
    const T* bias;  // [outputs] or null
    bool woven;
};

// One product of all experts, each of its own rows. `matrix_of(expert)`: a Matrix.
template <class MatrixOf> struct ExpertProducts {
    using Of = std::invoke_result_t<MatrixOf, int64_t>;
    using Format = typename Of::Format;
    using T = typename Of::T;
    MatrixOf matrix_of;
    Sorted sorted;
    int64_t tokens;
    const T* x;  // [tokens, inputs], looked up by pairs; or [pairs, inputs] in their order
    bool looked_up;
    int64_t inputs, outputs;
    int gate;
    T* out;  // [pairs, outputs], with a gate [pairs, outputs / 2]
    char* scratch;  // as for a linear layer of all pairs
    int threads;

    void run() const {
        const int64_t pairs = tokens * sorted.k, work = pairs * inputs;
        sorted.for_pieces(
            shares_of(work, threads), threads, [this](int64_t e) { return packed(linear(e), e).tiles(); },
            [this](int64_t e, int64_t begin, int64_t end) {
                const auto one = linear(e);
                for (int64_t tile = begin; tile < end; tile++) one.pack(packed(one, e), tile);
            }
        );
        sorted.for_pieces(
            shares_of(work * outputs, threads), threads, [this](int64_t e) { return linear(e).items(packed(linear(e), e)); },
            [this](int64_t e, int64_t begin, int64_t end) {
                const auto one = linear(e);
                const auto rows = packed(one, e);
                for (int64_t item = begin; item < end; item++) one.multiply(rows, item);
            }
        );
    }

private:
    Linear<Format, T> linear(int64_t e) const {
        const int64_t first = sorted.starts[e], next = sorted.after(e);
        const Of matrix = matrix_of(e);
        return {
            matrix.format, looked_up ? x : x + first * inputs, nullptr, nullptr, nullptr, sorted.rows(e), inputs, 0.0f,
            matrix.weight, matrix.bias, outputs, gate, out + first * (gate == NO_GATE ? outputs : outputs / 2), threads,
            looked_up ? sorted.pairs + first : nullptr, sorted.k, matrix.woven,
            next < sorted.experts ? matrix_of(next).weight : nullptr
        };
    }
    PackedRows<Format> packed(const Linear<Format, T>& one, int64_t e) const {
        const int64_t lanes = (inputs + Format::GROUP - 1) / Format::GROUP * Format::PARTS;
        return one.packed_in(scratch + 4 * sorted.starts[e] * (lanes + one.format.scales(inputs) + 1));
    }
};

// f(the matrix of an expert), of plain weights [experts, outputs / 32, groups, 2, 16] lanes, and biases [experts, outputs]
// or null.
template <class F> inline void for_plain_experts(
    int dtype, const void* weight, const void* bias, int64_t outputs, int64_t inputs, const F& f
) {
    const auto run = [=](auto format, auto* t) {
        using Format = decltype(format);
        using T = std::remove_pointer_t<decltype(t)>;
        f([=](int64_t e) {
            const int32_t* const own = (const int32_t*)weight + e * (outputs * (inputs / Format::GROUP));
            return Matrix<Format, T>{format, own, bias ? (const T*)bias + e * outputs : nullptr, true};
        });
    };
    if (dtype == BF16) run(Bfloat16{}, (Bf16*)nullptr);
    else run(Float32{}, (float*)nullptr);
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

// gated(gate_up @ x) of every pair -> out [pairs, inner]; float32 and bfloat16, the latter of whole 32 inputs.
QUIRE_EXPORT void quire_experts_inner(
    int dtype, const void* x, const int32_t* pairs, const int32_t* starts, int64_t tokens, int64_t experts, int64_t k,
    int64_t hidden, int64_t inner, const void* gate_up, const void* bias, int gate, void* out, void* scratch, int threads
) {
    quire::for_plain_experts(dtype, gate_up, bias, 2 * inner, hidden, [=](auto matrix_of) {
        using Products = quire::ExpertProducts<decltype(matrix_of)>;
        using T = typename Products::T;
        Products{
            matrix_of, {pairs, starts, experts, k}, tokens, (const T*)x, true, hidden, 2 * inner, gate, (T*)out,
            (char*)scratch, threads
        }.run();
    });
}

// The second product of every pair -> results [pairs, hidden].
QUIRE_EXPORT void quire_experts_outer(
    int dtype, const void* inner_rows, const int32_t* pairs, const int32_t* starts, int64_t tokens, int64_t experts,
    int64_t k, int64_t hidden, int64_t inner, const void* down, const void* bias, void* results, void* scratch, int threads
) {
    quire::for_plain_experts(dtype, down, bias, hidden, inner, [=](auto matrix_of) {
        using Products = quire::ExpertProducts<decltype(matrix_of)>;
        using T = typename Products::T;
        Products{
            matrix_of, {pairs, starts, experts, k}, tokens, (const T*)inner_rows, false, inner, hidden, quire::NO_GATE,
            (T*)results, (char*)scratch, threads
        }.run();
    });
}

// results [pairs, hidden], places and weights [tokens, k] -> each token's weighted sum of them, out [tokens, hidden].
QUIRE_EXPORT void quire_experts_sum(
    int dtype, const void* results, const int32_t* places, const float* weights, int64_t tokens, int64_t k,
    int64_t hidden, void* out, int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::sum_experts((const T*)results, places, weights, tokens, k, hidden, (T*)out, threads);
    });
}
