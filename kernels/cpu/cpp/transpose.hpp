// Rows and columns changed over, in registers.
#pragma once

#include "simd.hpp"

namespace quire {

// Exchange rows and columns of a square of vectors.
template <int step, int... i> inline void exchange(Floats& a, Floats& b, std::integer_sequence<int, i...>) {
    const Floats top = __builtin_shufflevector(a, b, (i & step ? LANES + i - step : i)...);
    b = __builtin_shufflevector(a, b, (i & step ? LANES + i : i + step)...);
    a = top;
}

template <int step = LANES / 2> inline void transpose(Floats (&square)[LANES]) {
    if constexpr (step > 0) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & step)) exchange<step>(square[i], square[i + step], std::make_integer_sequence<int, LANES>{});
        transpose<step / 2>(square);
    }
}

// The first `count` > 0 lanes of x, or all.
inline void store_lanes(int32_t* to, Floats x, int64_t count) {
    if (count >= LANES) {
        std::memcpy(to, &x, sizeof x);
        return;
    }
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (1u << count) - 1, (__m512)x);
#else
    const Ints bits = bits_of<Ints>(x);
    for (int lane = 0; lane < count; lane++) to[lane] = bits[lane];
#endif
}

// rows [count, n], `stride` apart and readable to the next whole vector -> [n, count]. What is stored beyond a column's
// lanes, whole vectors being quicker, is stored over by the columns after it: the last lanes come first.
inline void interleave(const int32_t* rows, int64_t count, int64_t n, int64_t stride, int32_t* out) {
    for (int64_t i = 0; i < n; i += LANES)
        for (int64_t first = (count - 1) / LANES * LANES; first >= 0; first -= LANES) {
            Floats square[LANES];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++)
                square[r] = first + r < count ? load_vector<Floats>(rows + (first + r) * stride + i) : Floats{};
            transpose(square);
#pragma GCC unroll 16
            for (int column = 0; column < LANES; column++) {
                if (i + column >= n) break;
                const int64_t to = (i + column) * count + first;
                store_lanes(out + to, square[column], to + LANES <= n * count ? LANES : count - first);
            }
        }
}

}  // namespace quire
