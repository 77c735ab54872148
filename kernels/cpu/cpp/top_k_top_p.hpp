// Truncation: the least logit of each row that min_p, top_k and top_p leave; see kernels/sampling/top_k_top_p.py.
#pragma once

#include <functional>
#include <vector>

#include "sample.hpp"

namespace quire {

// Memory of a thread's rows: it would be asked for, and given back, with each of them.
struct Workspace {
    std::vector<float> tops, order, values, weights;
    std::vector<int32_t> buckets;
};

// One row. Few of its logits are kept as a rule: the greatest of each tile says where those are, so that only what may
// be kept is sorted, and the whole row is read once or twice.
template <class T> class Truncation {
public:
    Truncation(const T* row, int64_t n, float temperature, Workspace& memory)
        : row(row), n(n), temperature(temperature), tops(memory.tops), order(memory.order), values(memory.values),
          weights(memory.weights), buckets(memory.buckets) {
        tops.clear();
        for (int64_t first = 0; first < n; first += TILE_TOKENS) {
            Floats most = splat(-INFINITY);
            for (int64_t i = first; i < end_of(first); i += LANES) most = larger(logits_at(row, i, n), most);
            tops.push_back(max_of(most));
        }
        high = *std::max_element(tops.begin(), tops.end());
    }

    // Minus infinity for a row that is not finite.
    float least(int64_t top_k, float top_p, float min_p) {
        float floor = -INFINITY;
        if (!(std::fabs(high) < INFINITY)) return floor;
        if (min_p > 0.0f) floor = least_likely(std::log(min_p));
        if (top_k > 0 && top_k < n) floor = std::max(floor, greatest_but(top_k));
        if (top_p < 1.0f) floor = std::max(floor, nucleus(top_p, floor));
        return floor;
    }

private:
    static constexpr int64_t SORTED = 128, BUCKETS = 1024, FEW_TILES = 64;

    const T* row;
    int64_t n;
    float temperature, high;
    std::vector<float>&tops, &order, &values, &weights;
    std::vector<int32_t>& buckets;

    int64_t end_of(int64_t first) const { return std::min(first + TILE_TOKENS, n); }
    Floats scaled(Floats x) const { return (x - high) / temperature; }

    // The least logit whose scaled one is no less than `bound`.
    float least_likely(float bound) const {
        Floats least = splat(INFINITY);
        for (int64_t i = 0; i < n; i += LANES) {
            if (i % TILE_TOKENS == 0)
                while (i < n && !(scaled(splat(tops[i / TILE_TOKENS]))[0] >= bound)) i += TILE_TOKENS;
            if (i >= n) break;
            const Floats x = logits_at(row, i, n), kept = scaled(x) < splat(bound) ? splat(INFINITY) : x;
            least = kept < least ? kept : least;
        }
        return fold(least, [](Floats a, Floats b) { return a < b ? a : b; });
    }

    // The k-th of the row's logits, the greatest first.
    float greatest_but(int64_t k) {
        gather(top(k));
        if (int64_t(values.size()) < k) return -INFINITY;
        std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
        return values[k - 1];
    }

    // The k-th of the tiles' greatest: so many logits at least are no less. Minus infinity where there are fewer tiles.
    float top(int64_t k) {
        if (k >= int64_t(tops.size())) return -INFINITY;
        order = tops;
        std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<>());
        return order[k - 1];
    }

    // Puts the finite logits that are no less than `bound` into `values`.
    void gather(float bound) {
        values.resize(n + LANES);
        float* to = values.data();
        for (size_t tile = 0; tile < tops.size(); tile++) {
            if (!(tops[tile] >= bound)) continue;
            const int64_t first = tile * TILE_TOKENS;
            for (int64_t i = first; i < end_of(first); i += LANES) {
                const Floats x = logits_at(row, i, n);
                for (int lane = 0; lane < LANES; lane++) {
                    *to = x[lane];
                    to += x[lane] >= bound && x[lane] > -INFINITY;
                }
            }
        }
        values.resize(to - values.data());
    }

    // The least of the likeliest logits that together have `top_p` of the mass of all that are no less than `floor`.
    float nucleus(float top_p, float floor) {
        if (floor > -INFINITY) {
            gather(floor);
            return least_of(double(top_p) * weigh());
        }
        double mass = 0;
        for (int64_t first = 0; first < n; first += TILE_TOKENS) {
            Floats sum = {};
            for (int64_t i = first; i < end_of(first); i += LANES) sum += exp(scaled(logits_at(row, i, n)));
            mass += sum_of(sum);
        }
        const double target = double(top_p) * mass;
        for (int64_t tiles = FEW_TILES;; tiles *= 8) {
            const float bound = top(tiles);
            gather(bound);
            if (bound == -INFINITY || weigh() > target * (1 + 1e-6)) return least_of(target);
        }
    }

    // Puts the masses of `values` into `weights` -> their sum.
    double weigh() {
        const int64_t count = values.size();
        weights.resize(count);
        double mass = 0;
        for (int64_t i = 0; i < count; i += LANES) {
            const Floats weight = exp(scaled(load(values.data() + i, count - i)));
            store(weights.data() + i, weight, count - i);
            for (int64_t lane = 0; lane < std::min<int64_t>(LANES, count - i); lane++) mass += weight[lane];
        }
        return mass;
    }

    // The value with which the sum of the weights of `values`, the greatest first, reaches `target`; else the least.
    float least_of(double target) {
        while (int64_t(values.size()) > SORTED) {
            const auto [low, top] = bounds();
            const float scale = (BUCKETS - 1) / (top - low);
            if (!(scale < INFINITY)) break;  // they are equal, or as good as that
            weigh();
            deal(top, scale);
            double masses[BUCKETS] = {};
            for (size_t i = 0; i < values.size(); i++) masses[buckets[i]] += weights[i];
            int chosen = 0;
            while (chosen < BUCKETS && masses[chosen] < target) target -= masses[chosen++];
            if (chosen == BUCKETS) return low;
            float* to = values.data();
            for (size_t i = 0; i < values.size(); i++) {
                *to = values[i];
                to += buckets[i] == chosen;
            }
            values.resize(to - values.data());
        }
        std::sort(values.begin(), values.end(), std::greater<>());
        weigh();
        for (size_t i = 0; i < values.size(); i++) {
            target -= weights[i];
            if (target <= 0) return values[i];
        }
        return values.back();
    }

    // The least and the greatest of `values`, which are more than a vector.
    std::pair<float, float> bounds() const {
        Floats low = load(values.data()), top = low;
        for (int64_t i = 0, last = values.size() - LANES;; i = std::min(i + LANES, last)) {
            const Floats x = load(values.data() + i);
            low = x < low ? x : low;
            top = larger(x, top);
            if (i == last) break;
        }
        return {fold(low, [](Floats a, Floats b) { return a < b ? a : b; }), max_of(top)};
    }

    // Puts the bucket of each value, the greatest in the first one, into `buckets`.
    void deal(float top, float scale) {
        const int64_t count = values.size();
        buckets.resize(count + LANES);
        for (int64_t i = 0; i < count; i += LANES) {
            const Floats place = (top - load(values.data() + i, count - i)) * scale;
            const Ints bucket = __builtin_convertvector(place, Ints);
            std::memcpy(buckets.data() + i, &bucket, sizeof bucket);
        }
    }
};

}  // namespace quire

// logits [rows, stride], of which `vocab` count; all others [rows] -> floor [rows], minus infinity where nothing is cut.
QUIRE_EXPORT void quire_top_k_top_p(
    int dtype, const void* logits, int64_t stride, int64_t rows, int64_t vocab, const float* temperature,
    const int64_t* top_k, const float* top_p, const float* min_p, float* floor, int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::for_rows(rows, vocab, threads, [=](int64_t r) {
            const bool cuts = (top_k[r] > 0 && top_k[r] < vocab) || top_p[r] < 1.0f || min_p[r] > 0.0f;
            floor[r] = -INFINITY;
            if (!(temperature[r] > 0.0f) || !cuts) return;
            static thread_local quire::Workspace memory;
            quire::Truncation<T> row(static_cast<const T*>(logits) + r * stride, vocab, temperature[r], memory);
            floor[r] = row.least(top_k[r], top_p[r], min_p[r]);
        });
    });
}
