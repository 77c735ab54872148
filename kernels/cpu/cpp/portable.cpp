#include "library.hpp"

#if defined(__x86_64__)
#include <algorithm>
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// Linux gives a process the memory of tile registers only when it asks; the answer holds for all of its threads.
static bool has_tiles() {
    unsigned a, b, c, d;
    const unsigned tiles = 1u << 24 | 1u << 22 | 1u << 25;  // AMX-TILE, AMX-BF16, AMX-INT8
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & tiles) != tiles) return false;
    constexpr long ask_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, ask_permission, tile_data) == 0;
}

// Products of bfloat16, and the bytes' permutations that widen codes to it.
static bool has_bf16() {
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx512vbmi") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

// Ticks of twelve chains of products, by pairs of bfloat16 or of float32; the least of many tries, as others run here too.
template <bool paired> __attribute__((target("avx512f"))) static uint64_t product_ticks() {
    uint64_t least = ~0ull;
    for (int attempt = 0; attempt < 64; attempt++) {
        __m512 sums[12] = {};
        const __m512 x = {};
        const uint64_t begin = __rdtsc();
        for (int i = 0; i < 64; i++)
#pragma GCC unroll 12
            for (__m512& sum : sums)
                if constexpr (paired) asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sum) : "v"(x));
                else asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sum) : "v"(x));
        least = std::min<uint64_t>(least, __rdtsc() - begin);
    }
    return least;
}

// vdpbf16ps does the work of two float32 products. One processor takes as long for it as for one, another as for four:
// there weights are widened. Nothing lies between, so that no start decides differently from the last.
static bool pairs_are_fast() { return product_ticks<true>() * 2 < product_ticks<false>() * 5; }
#endif

// The best instruction set this processor and its operating system run: 0 portable, 1 AVX2, 2 AVX-512, 3 with bfloat16,
// 4 with AMX. It stands in the portable library, the one that can always be loaded.
QUIRE_EXPORT int quire_best_instruction_set() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni");
    if (!avx2 || !avx512) return avx2;
    return has_bf16() ? (has_tiles() ? 4 : 3) : 2;
#else
    return 0;
#endif
}

// The one to use: the best, but for instructions that are slower than what they replace.
QUIRE_EXPORT int quire_fastest_instruction_set() {
    const int best = quire_best_instruction_set();
#if defined(__x86_64__)
    if (best == 3 && !pairs_are_fast()) return 2;
#endif
    return best;
}
