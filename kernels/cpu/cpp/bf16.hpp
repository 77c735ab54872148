// Linear layers on bfloat16: a lane of a weight holds two inputs of one output, [outputs / 16, inputs / 2, 16, 2]. Sums
// are float32. Three ways, by what this file is compiled for: AMX, AVX512-BF16, or widening the weights in registers.
#pragma once

#include "amx.hpp"
#include "tile.hpp"

namespace quire {

// Each output's weights of the even and the odd inputs become float32 vectors: any processor, the order of Float32.
struct WidenedBf16 : Float32 {
    using Tile = WidenedBf16;
    using Wide = Float32;
    static constexpr int GROUP = 2, PARTS = 2;

    static Floats weights(int part, const int32_t* group, int v) {
        const Words pair = load_vector<Words>(group + v * LANES);
        return bits_of<Floats>(part == 0 ? pair << 16 : pair & 0xffff0000);
    }
};

#if defined(__AVX512BF16__)
struct PairedBf16 : VectorTiles {
    using Vector = Floats;
    using Tile = PairedBf16;
    static constexpr int GROUP = 2;

    static Floats weights(int, const int32_t* group, int v) { return load_vector<Floats>(group + v * LANES); }
    static Floats dot(Floats sum, Floats weights, Floats x) {
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)x);
    }

    static void pack(const Bf16* x, int64_t n, int32_t* out, float*, int32_t*) { std::memcpy(out, x, n * sizeof *x); }

    template <class Rows> static Floats real(Floats sum, const Rows&, int64_t, int64_t, int64_t) { return sum; }
#if defined(__AMX_BF16__)
    template <int sums, int x, int weights> static void multiply() {  // intrinsics take no template's numbers
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(x), "i"(weights));
    }
#endif
};
template <> constexpr bool LANES_AS_THEY_LIE<PairedBf16, Bf16> = true;
#endif

#if defined(__AMX_BF16__)
using Bfloat16 = InTiles<PairedBf16>;
#elif defined(__AVX512BF16__)
using Bfloat16 = PairedBf16;
#else
using Bfloat16 = WidenedBf16;
#endif

// Stores a sum of products, of which the smallest may become zero as the processor's own products of bfloat16 make them.
template <class T> inline void store_sum(T* to, Floats sum, int64_t n) {
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, Bf16>)
        if (n >= LANES) {
            const auto raw = _mm512_cvtneps_pbh((__m512)sum);
            std::memcpy(to, &raw, sizeof raw);
            return;
        }
#endif
    store(to, sum, n);
}

}  // namespace quire
