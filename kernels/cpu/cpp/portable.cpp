#include "library.hpp"

// The best instruction set this processor and its operating system run: 0 portable, 1 AVX2, 2 AVX-512. It stands in the
// portable library, the one that can always be loaded.
QUIRE_EXPORT int quire_best_instruction_set() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vnni");
    return avx2 ? (avx512 ? 2 : 1) : 0;
#else
    return 0;
#endif
}
