#include "library.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
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

static bool has_bf16() {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}
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
