// A tape: calls of this library's functions with their arguments, run one after another without the interpreter.
// kernels/cpu/tape.py records it.
#pragma once

#include <utility>

#include "activation.hpp"
#include "add.hpp"
#include "attention.hpp"
#include "coded_experts.hpp"
#include "columns.hpp"
#include "embed_groups.hpp"
#include "embedding.hpp"
#include "exchange.hpp"
#include "experts.hpp"
#include "f8.hpp"
#include "groups.hpp"
#include "int8.hpp"
#include "linear.hpp"
#include "norm.hpp"
#include "part_norm.hpp"
#include "per_token.hpp"
#include "prepare_inputs.hpp"
#include "rope_angles.hpp"
#include "rope_store_kv.hpp"
#include "route.hpp"
#include "scale.hpp"
#include "shared.hpp"
#include "values.hpp"
#include "widen.hpp"

namespace quire {

// An argument out of the 8 bytes in which it was noted: an integer, an address, or a double.
template <class T> inline T noted(int64_t word) {
    if constexpr (std::is_floating_point_v<T>) return static_cast<T>(bits_of<double>(word));
    else if constexpr (std::is_pointer_v<T>) return reinterpret_cast<T>(word);
    else return static_cast<T>(word);
}

template <class... A, size_t... i>
inline void call(void (*function)(A...), const int64_t* arguments, std::index_sequence<i...>) {
    function(noted<A>(arguments[i])...);
}

template <class... A> inline void call(void (*function)(A...), const int64_t* arguments) {
    call(function, arguments, std::index_sequence_for<A...>{});
}

using Noted = void (*)(const int64_t* arguments);

// At most: attention has its shared memory, its items and their merging; a sum of ranks its slot, the meeting and itself.
constexpr int64_t LOOPS_PER_CALL = 3;

}  // namespace quire

// The form in which a tape calls a function.
#define QUIRE_NOTED(function) \
    QUIRE_EXPORT void function##_noted(const int64_t* arguments) { quire::call(function, arguments); }

QUIRE_NOTED(quire_add)
QUIRE_NOTED(quire_add_rms_norm)
QUIRE_NOTED(quire_add_rms_norm_wide)
QUIRE_NOTED(quire_add_shared)
QUIRE_NOTED(quire_all_reduce)
QUIRE_NOTED(quire_count_inputs)
QUIRE_NOTED(quire_embed_groups)
QUIRE_NOTED(quire_embed_shard)
QUIRE_NOTED(quire_experts_f8)
QUIRE_NOTED(quire_experts_groups)
QUIRE_NOTED(quire_experts_inner)
QUIRE_NOTED(quire_experts_int8)
QUIRE_NOTED(quire_experts_outer)
QUIRE_NOTED(quire_experts_sum)
QUIRE_NOTED(quire_gated_activation)
QUIRE_NOTED(quire_linear)
QUIRE_NOTED(quire_linear_bf16)
QUIRE_NOTED(quire_linear_f8)
QUIRE_NOTED(quire_linear_groups)
QUIRE_NOTED(quire_linear_int8)
QUIRE_NOTED(quire_paged_attention)
QUIRE_NOTED(quire_part_norm)
QUIRE_NOTED(quire_part_squares)
QUIRE_NOTED(quire_prepare_inputs)
QUIRE_NOTED(quire_put_columns)
QUIRE_NOTED(quire_query_factors)
QUIRE_NOTED(quire_rms_norm)
QUIRE_NOTED(quire_rms_norm_wide)
QUIRE_NOTED(quire_rope_angles)
QUIRE_NOTED(quire_rope_store_kv)
QUIRE_NOTED(quire_rope_store_kv_wide)
QUIRE_NOTED(quire_route)
QUIRE_NOTED(quire_scale)
QUIRE_NOTED(quire_scale_tokens)
QUIRE_NOTED(quire_scale_weights)
QUIRE_NOTED(quire_sort_by_expert)
QUIRE_NOTED(quire_widen)
QUIRE_NOTED(quire_with_values)

#undef QUIRE_NOTED

// `count` calls, each a line of `width` words: the address of a function's noted form, then its arguments.
QUIRE_EXPORT void quire_replay(const int64_t* calls, int64_t count, int64_t width, int threads) {
    quire::together(threads, count * quire::LOOPS_PER_CALL, [=] {
        for (const int64_t* line = calls; line < calls + count * width; line += width)
            reinterpret_cast<quire::Noted>(line[0])(line + 1);
    });
}
