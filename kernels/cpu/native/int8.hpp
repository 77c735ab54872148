// Linear layers on int8: rows of activations are quantized as they come, each with a scale of its own; weights were
// packed once (kernels/linear_int8.py says how). Integer sums are exact, so every instruction set gives the same.
//
// A tile is up to TILE_ROWS rows times two blocks of 16 outputs; its sums stay in registers while it walks the inputs.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "dtype.hpp"
#include "gate.hpp"
#include "norm.hpp"
#include "parallel.hpp"
#include "simd.hpp"

namespace quire {

constexpr int BLOCK = 16;                   // outputs that lie together in a packed weight
constexpr int GROUP = 4;                    // inputs that lie together: one 32-bit lane
constexpr int BLOCK_VECTORS = BLOCK / LANES;
constexpr int TILE_ROWS = LANES == 16 ? 12 : LANES == 8 ? 2 : 1;  // what the registers hold
constexpr int64_t CHUNK_BYTES = 1 << 18;    // of quantized rows that stay in the second-level cache
constexpr int AHEAD_BYTES = 2048;           // weights are asked for this long before they are used

// `f(0), f(1), ..., f(n - 1)` with constant arguments: what they index can live in registers.
template <class F, int... i> inline __attribute__((always_inline)) void unrolled(
    std::integer_sequence<int, i...>, const F& f
) {
    (f(std::integral_constant<int, i>{}), ...);
}

// sum + (4 products in each lane): weights are 0 to 255, activations -127 to 127.
inline Ints dot(Ints sum, Ints weights, Ints activations) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)activations);
#elif defined(__AVX2__)
    const __m256i w = (__m256i)weights, x = (__m256i)activations;
    const __m256i even = _mm256_madd_epi16(
        _mm256_and_si256(w, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8)
    );
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
    return sum + (Ints)even + (Ints)odd;
#else
    for (int byte = 0; byte < GROUP; byte++)
        sum += (Ints)((Words)weights >> (8 * byte) & 255) * ((activations << (24 - 8 * byte)) >> 24);
    return sum;
#endif
}

// Sums of one tile: x [groups, rows, 4], two blocks [groups, 16, 4] -> sums [rows, 2 * 16].
template <int rows> void tile_sums(
    const int8_t* x, const uint8_t* first, const uint8_t* second, int64_t groups, int32_t* sums
) {
    constexpr int vectors = 2 * BLOCK_VECTORS;
    constexpr std::make_integer_sequence<int, rows> every_row{};
    constexpr std::make_integer_sequence<int, vectors> every_vector{};
    Ints sum[rows][vectors] = {};
    for (int64_t g = 0; g < groups; g++) {
        Ints weights[vectors];
        unrolled(every_vector, [&](auto v) {
            const uint8_t* block = v < BLOCK_VECTORS ? first : second;
            weights[v] = load_vector<Ints>(block + g * BLOCK * GROUP + v % BLOCK_VECTORS * VECTOR_BYTES);
        });
        __builtin_prefetch(first + g * BLOCK * GROUP + AHEAD_BYTES);
        __builtin_prefetch(second + g * BLOCK * GROUP + AHEAD_BYTES);
        unrolled(every_row, [&](auto r) {
            int32_t four;
            std::memcpy(&four, x + (g * rows + r) * GROUP, sizeof four);
            const Ints activations = four - Ints{};
            unrolled(every_vector, [&](auto v) { sum[r][v] = dot(sum[r][v], weights[v], activations); });
        });
    }
    std::memcpy(sums, sum, sizeof sum);
}

using TileSums = void (*)(const int8_t*, const uint8_t*, const uint8_t*, int64_t, int32_t*);

template <int... i> inline TileSums tile_sums_of(int rows, std::integer_sequence<int, i...>) {
    static constexpr TileSums table[] = {tile_sums<i + 1>...};
    return table[rows - 1];
}

// Rows in quantized form, tile after tile: a tile of r rows holds [groups, r, 4].
struct QuantizedRows {
    float* scale;   // [rows]; NaN where a row holds one, or an infinity
    int32_t* excess;  // [rows]; what the weights' zero point of 128 adds to the sums: 128 times the sum of the row
    int8_t* values;
    int64_t rows, groups;

    int64_t tiles() const { return (rows + TILE_ROWS - 1) / TILE_ROWS; }
    int64_t first(int64_t tile) const { return tile * rows / tiles(); }
    int8_t* at(int64_t tile) const { return values + first(tile) * groups * GROUP; }
};

// x [n] as round(x / scale) with scale = max |x| / 127, into every `stride`-th group of `out`.
template <class T> inline void quantize_row(
    const T* x, int64_t n, int8_t* out, int64_t stride, float* scale, int32_t* excess
) {
    Ints most = {};  // bits of the magnitudes: they are ordered like the numbers, infinity and NaN above all
    for (int64_t i = 0; i < n; i += LANES) {
        const Ints bits = bits_of<Ints>(load(x + i, n - i)) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    int32_t top = 0;
    for (int lane = 0; lane < LANES; lane++) top = std::max(top, most[lane]);
    const bool finite = top < 0x7f800000;
    const float step = std::max(finite ? bits_of<float>(top) : 0.f, 1e-30f) / 127.f;
    Ints total = {};
    for (int64_t i = 0; i < n; i += LANES) {
        const Floats magic = splat(0x1.8p23f);  // adding it rounds to the nearest integer, half to even
        const Floats scaled = load(x + i, n - i) / step;
        const Ints q = finite ? bits_of<Ints>(scaled + magic) - bits_of<Ints>(magic) : Ints{};
        total += q;
        int8_t bytes[LANES];
        typedef int8_t Small __attribute__((vector_size(LANES)));
        const Small small = __builtin_convertvector(q, Small);
        std::memcpy(bytes, &small, sizeof bytes);
        for (int g = 0; g < LANES / GROUP && i + g * GROUP < n; g++)
            std::memcpy(out + (i / GROUP + g) * stride * GROUP, bytes + g * GROUP, GROUP);
    }
    int32_t sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += total[lane];
    *excess = 128 * sum;
    *scale = finite ? step : NAN;
}

template <class T> struct Int8Linear {
    // Inputs: x [rows, inputs]; with norm_weight they are normed first, with residual (and total) added before that.
    const T *x, *residual, *norm_weight;
    T* total;  // [rows, inputs]
    int64_t rows, inputs;
    float eps;
    // The layer: weight [blocks, groups, 16, 4], scale [outputs], bias [outputs] or null.
    const uint8_t* weight;
    const float* scale;
    const T* bias;
    int64_t outputs;
    int gate;
    T* out;  // [rows, outputs], with a gate [rows, outputs / 2]
    int threads;

    void run(void* scratch) const {
        const int64_t groups = (inputs + GROUP - 1) / GROUP;
        float* scales = static_cast<float*>(scratch);
        int32_t* excess = reinterpret_cast<int32_t*>(scales + rows);
        const QuantizedRows q{scales, excess, reinterpret_cast<int8_t*>(excess + rows), rows, groups};
        for_rows(q.tiles(), inputs * TILE_ROWS, threads, [=](int64_t tile) {
            const int64_t begin = q.first(tile), end = q.first(tile + 1);
            for (int64_t r = begin; r < end; r++)
                quantize_row(
                    prepared(r), inputs, q.at(tile) + (r - begin) * GROUP, end - begin, q.scale + r, q.excess + r
                );
        });
        const int64_t blocks = (outputs + BLOCK - 1) / BLOCK, pairs = gate == NO_GATE ? (blocks + 1) / 2 : blocks / 2;
        const int64_t chunk = std::max<int64_t>(1, CHUNK_BYTES / (groups * GROUP * TILE_ROWS));
        const int64_t chunks = (q.tiles() + chunk - 1) / chunk;
        const int64_t work = groups * GROUP * 2 * BLOCK * std::max<int64_t>(1, std::min(rows, chunk * TILE_ROWS) / 4);
        for_rows(chunks * pairs, work, threads, [=](int64_t item) {
            const int64_t pair = item % pairs, begin = item / pairs * chunk;
            const int64_t first = gate == NO_GATE ? 2 * pair : pair;
            const int64_t second = gate == NO_GATE ? std::min(first + 1, blocks - 1) : pair + pairs;
            for (int64_t tile = begin; tile < std::min(begin + chunk, q.tiles()); tile++)
                multiply(q, tile, first, second);
        });
    }

    // Row r as it is to be quantized; what is normed lasts until this thread's next row.
    const T* prepared(int64_t r) const {
        static thread_local std::vector<T> normed;
        const T* row = x + r * inputs;
        if (!norm_weight) return row;
        if (residual) {
            const T* other = residual + r * inputs;
            T* sum = total + r * inputs;
            for (int64_t i = 0; i < inputs; i += LANES)
                store(sum + i, load(other + i, inputs - i) + load(row + i, inputs - i), inputs - i);
            row = sum;
        }
        normed.resize(inputs);
        norm_row(row, norm_weight, normed.data(), inputs, eps);
        return normed.data();
    }

    void multiply(const QuantizedRows& q, int64_t tile, int64_t first, int64_t second) const {
        const int64_t begin = q.first(tile), count = q.first(tile + 1) - begin, bytes = q.groups * BLOCK * GROUP;
        int32_t sums[TILE_ROWS][2][BLOCK];
        tile_sums_of(count, std::make_integer_sequence<int, TILE_ROWS>{})(
            q.at(tile), weight + first * bytes, weight + second * bytes, q.groups, sums[0][0]
        );
        for (int64_t i = 0; i < count; i++) {
            const int64_t r = begin + i;
            for (int lane = 0; lane < BLOCK; lane += LANES) {
                const Floats left = product(q, r, sums[i][0] + lane, first * BLOCK + lane);
                if (gate == NO_GATE && second == first) {
                    put(r, first * BLOCK + lane, left);
                    continue;
                }
                const Floats right = product(q, r, sums[i][1] + lane, second * BLOCK + lane);
                if (gate == NO_GATE) {
                    put(r, first * BLOCK + lane, left);
                    put(r, second * BLOCK + lane, right);
                } else {  // with the roundings of a product and an activation that are not joined
                    const Floats opened = rounded<T>(activated(gate, rounded<T>(left)));
                    put(r, first * BLOCK + lane, opened * rounded<T>(right));
                }
            }
        }
    }

    // Sums of outputs `column` and following of row r, as real numbers; `column` may lie behind the last output.
    Floats product(const QuantizedRows& q, int64_t r, const int32_t* sums, int64_t column) const {
        const int64_t left = std::max<int64_t>(0, outputs - column);
        const Ints sum = load_vector<Ints>(sums) - q.excess[r];
        const Floats value = __builtin_convertvector(sum, Floats) * load(scale + column, left) * q.scale[r];
        return bias ? value + load(bias + column, left) : value;
    }

    void put(int64_t r, int64_t column, Floats value) const {
        const int64_t width = gate == NO_GATE ? outputs : outputs / 2;
        if (column < width) store(out + r * width + column, value, width - column);
    }
};

}  // namespace quire

QUIRE_EXPORT void quire_linear_int8(
    int dtype, const void* x, const void* residual, const void* norm_weight, void* total, int64_t rows, int64_t inputs,
    float eps, const void* weight, const void* scale, const void* bias, int64_t outputs, int gate,
    void* out, void* scratch, int threads
) {
    quire::for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::Int8Linear<T>{
            (const T*)x, (const T*)residual, (const T*)norm_weight, (T*)total, rows, inputs, eps,
            (const uint8_t*)weight, (const float*)scale, (const T*)bias, outputs, gate, (T*)out, threads
        }.run(scratch);
    });
}
