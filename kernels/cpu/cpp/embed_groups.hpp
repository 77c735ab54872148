// Rows of the vocabulary, out of codes that lie as products read them: a tied embedding is held once.
#pragma once

#include "groups.hpp"

// Row ids[t] - first of the weight for ids in [first, first + count), zeros for all others: the first `width` of its
// `inputs`. The weight is that of quire_linear_groups.
QUIRE_EXPORT void quire_embed_groups(
    int dtype, const int64_t* ids, const void* weight, int64_t inputs, int bits, int table, int scale_dtype,
    const void* scale, int kind, const void* offset, int64_t groups, const void* unit, int64_t units, int64_t outputs,
    int64_t first, int64_t count, int64_t width, void* out, int64_t tokens, int threads
) {
    const quire::FloatGroups codes{{}, {
        scale, offset, scale_dtype, quire::Offset(kind), unit, outputs, inputs, groups, units,
        units ? groups / units : 1, bits, quire::Table(table)
    }};
    quire::for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::for_rows(tokens, width, threads, [=](int64_t n) {
            const int64_t row = ids[n] - first;
            T* const to = (T*)out + n * width;
            if (row < 0 || row >= count) std::memset(to, 0, width * sizeof(T));
            else codes.output((const int32_t*)weight, row, width, to);
        });
    });
}
