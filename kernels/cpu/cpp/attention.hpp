// Attention of a step: rows of one token go to the decode body, longer ones and all that see both ways to the prefill body,
// all as one list of work from which the threads help themselves, the long items first.
#pragma once

#include <vector>

#include "decode.hpp"
#include "prefill.hpp"
#include "prefill_tiles.hpp"

namespace quire {

struct WorkItem {
    int64_t row, first_head, last_head;
    int64_t part;    // prefill: first (token, head) pair; decode: the split
    int64_t parts;   // decode: how many splits the row has; prefill: 0
    int64_t states;  // decode: where the row's states begin, [parts, K * G, state_size]
};

// Heads that decode items take together: all, which reads the cache in the order it lies in, unless that leaves
// threads idle. A head's result does not depend on its company.
inline int64_t heads_together(const Attention& a, int64_t num_splits, int threads) {
    const int64_t wanted = (4 * threads + num_splits - 1) / (num_splits > 0 ? num_splits : 1);
    const int64_t shares = wanted < a.kv_heads ? wanted : a.kv_heads;
    return (a.kv_heads + shares - 1) / shares;
}

inline int64_t splits_of(const Attention& a, int64_t row) {
    const int64_t length = a.seq_lens[row];
    return (length - a.first_seen(length - 1) + SPLIT - 1) / SPLIT;
}

inline std::vector<WorkItem> list_work(const Attention& a, int threads, int64_t& num_states) {
    std::vector<WorkItem> items;
    int64_t num_splits = 0;
    for (int64_t row = 0; row < a.num_rows; row++) {
        if (a.decodes(row)) num_splits += splits_of(a, row);
        if (a.decodes(row) || a.query_len(row) < 1) continue;
        // the last queries see the most keys
        const int64_t pairs = a.query_len(row) * a.groups;
        for (int64_t first = (pairs - 1) / QUERY_TILE * QUERY_TILE; first >= 0; first -= QUERY_TILE)
            for (int64_t k = 0; k < a.kv_heads; k++) items.push_back({row, k, k + 1, first, 0, 0});
    }
    const int64_t together = heads_together(a, num_splits, threads);
    num_states = 0;
    for (int64_t row = 0; row < a.num_rows; row++) {
        if (!a.decodes(row)) continue;
        const int64_t parts = splits_of(a, row);
        for (int64_t part = 0; part < parts; part++)
            for (int64_t k = 0; k < a.kv_heads; k += together) {
                const int64_t last = k + together < a.kv_heads ? k + together : a.kv_heads;
                items.push_back({row, k, last, part, parts, num_states});
            }
        num_states += parts * a.kv_heads * a.groups;
    }
    return items;
}

inline void prefill(const Attention& a, const WorkItem& item) {
#if defined(__AVX512BF16__)
    if (in_tiles(a)) return prefill_in_tiles(a, item.row, item.first_head, item.part);
#endif
    prefill_tile(a, item.row, item.first_head, item.part);
}

inline void attention(const Attention& a, int threads) {
    int64_t num_states;
    const std::vector<WorkItem> items = list_work(a, threads, num_states);
    const int64_t size = state_size(a), per_split = a.kv_heads * a.groups * size;
    float* const states = common_scratch<1>(num_states * size);
    const auto merge = [&](const WorkItem& item) {
        for (int64_t k = item.first_head; k < item.last_head; k++)
            merge_splits(a, item.row, k, states + item.states * size + k * a.groups * size, item.parts, per_split);
    };
    bool split = false;
    for (const WorkItem& item : items) split |= item.parts > 1;
    for_items(static_cast<int64_t>(items.size()), threads, [&](int64_t i) {
        const WorkItem& item = items[i];
        if (item.parts == 0) return prefill(a, item);
        const int64_t length = a.seq_lens[item.row], first = a.first_seen(length - 1) + item.part * SPLIT;
        const int64_t last = first + SPLIT < length ? first + SPLIT : length;
        float* const own = states + item.states * size + item.part * per_split + item.first_head * a.groups * size;
        decode_split(a, item.row, item.first_head, item.last_head, first, last, own);
        if (item.parts == 1) merge(item);
    });
    if (!split) return;
    for_items(static_cast<int64_t>(items.size()), threads, [&](int64_t i) {
        if (items[i].parts > 1 && items[i].part == 0) merge(items[i]);
    });
}

}  // namespace quire

QUIRE_EXPORT void quire_paged_attention(
    const void* query, const void* keys, const void* values, void* out, const int32_t* tables, const int32_t* slots,
    const int32_t* seq_lens, const int32_t* query_starts, const float* sinks, const float* key_scale,
    const float* value_scale, int64_t num_rows, int64_t num_tokens, int64_t kv_heads, int64_t groups, int64_t head_dim,
    int64_t block_size, int64_t table_width, int64_t window, float scale, float soft_cap, int query_dtype,
    int cache_dtype, int threads, int64_t chunk, const int32_t* last_visible
) {
    quire::attention(
        {query,    keys,     values,      out,          tables,      slots,      seq_lens, query_starts, sinks,
         key_scale, value_scale, last_visible, num_rows, num_tokens, kv_heads, groups, head_dim, block_size,
         table_width, window, chunk, scale, soft_cap, query_dtype, cache_dtype},
        threads
    );
}

// qkv [tokens, 3 * heads * head_dim] of one type: of each token its queries, keys and values. starts [rows + 1].
QUIRE_EXPORT void quire_encoder_attention(
    int dtype, const void* qkv, const int32_t* starts, void* out, int64_t rows, int64_t heads, int64_t head_dim,
    float scale, int threads
) {
    const int64_t width = heads * head_dim, bytes = width * quire::format_of(dtype).size;
    const char* const queries = static_cast<const char*>(qkv);
    quire::Attention a{};
    a.query = queries;
    a.keys = queries + bytes;
    a.values = queries + 2 * bytes;
    a.out = out;
    a.query_starts = starts;
    a.num_rows = rows;
    a.kv_heads = heads;
    a.groups = 1;
    a.head_dim = head_dim;
    a.scale = scale;
    a.query_dtype = a.cache_dtype = dtype;
    a.token_stride = 3 * width;
    quire::attention(a, threads);
}
