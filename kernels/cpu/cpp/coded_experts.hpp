// One product of experts whose matrices are quantized, each by itself: a line of addresses stands for each.
#pragma once

#include "experts.hpp"
#include "f8.hpp"
#include "groups.hpp"
#include "int8.hpp"

namespace quire {

// A line of the table that kernels/cpu/experts/coded.py makes. Null is what an expert has not.
struct CodedMatrix {
    const int32_t* weight;
    const void *scale, *offset, *unit, *bias;
};

// The product of all experts as it was asked for, whatever the codes.
struct CodedProduct {
    const void* x;
    Sorted sorted;
    int64_t tokens;
    bool looked_up;  // x is [tokens, inputs], looked up by pairs; or [pairs, inputs] in their order
    int64_t inputs, outputs;
    const CodedMatrix* matrices;  // [experts]
    int gate;
    void *out, *scratch;
    int threads;

    // format_of(matrix): with what is its own.
    template <class FormatOf> void run(int dtype, const FormatOf& format_of) const {
        using Format = std::invoke_result_t<FormatOf, const CodedMatrix&>;
        for_dtype(dtype, [&, this](auto* t) {
            using T = std::remove_pointer_t<decltype(t)>;
            const auto matrix_of = [&, this](int64_t e) {
                const CodedMatrix& one = matrices[e];
                return Matrix<Format, T>{format_of(one), one.weight, (const T*)one.bias, false};
            };
            ExpertProducts<std::decay_t<decltype(matrix_of)>>{
                matrix_of, sorted, tokens, (const T*)x, looked_up, inputs, outputs, gate, (T*)out, (char*)scratch, threads
            }.run();
        });
    }
};

}  // namespace quire

QUIRE_EXPORT void quire_experts_int8(
    int dtype, const void* x, const int32_t* pairs, const int32_t* starts, int64_t tokens, int64_t experts, int64_t k,
    int looked_up, int64_t inputs, int64_t outputs, const void* matrices, int gate, void* out, void* scratch, int threads
) {
    const quire::CodedProduct product{
        x, {pairs, starts, experts, k}, tokens, looked_up != 0, inputs, outputs, (const quire::CodedMatrix*)matrices, gate,
        out, scratch, threads
    };
#if defined(__AMX_INT8__)
    if (tokens * k / experts > 8 && inputs % (quire::Int8::GROUP * quire::TILE) == 0)
        return product.run(dtype, [](const quire::CodedMatrix& one) {
            quire::InTiles<quire::Int8> format;
            format.scale = (const float*)one.scale;
            return format;
        });
#endif
    product.run(dtype, [](const quire::CodedMatrix& one) { return quire::Int8{{}, (const float*)one.scale}; });
}

// `blocks`: columns of scale, or 0 where that is one for each output.
QUIRE_EXPORT void quire_experts_f8(
    int dtype, const void* x, const int32_t* pairs, const int32_t* starts, int64_t tokens, int64_t experts, int64_t k,
    int looked_up, int64_t inputs, int64_t outputs, const void* matrices, int64_t blocks, int activations, int gate,
    void* out, void* scratch, int threads
) {
    const quire::CodedProduct product{
        x, {pairs, starts, experts, k}, tokens, looked_up != 0, inputs, outputs, (const quire::CodedMatrix*)matrices, gate,
        out, scratch, threads
    };
    quire::for_f8(dtype, activations, [&](auto base) {
        using Base = decltype(base);
        const auto what = quire::Activations(activations);
        if (blocks)
            return product.run(dtype, [=](const quire::CodedMatrix& one) {
                return quire::F8Blocks<Base>{base, what, (const float*)one.scale};
            });
        product.run(dtype, [=](const quire::CodedMatrix& one) {  // the scale of inputs lies in the place of a unit
            return quire::F8Rows<Base>{base, what, (const float*)one.unit, (const float*)one.scale};
        });
    });
}

// `groups`: columns of scale and offset; `kind`: see Offset; `units`: columns of unit, or 0.
QUIRE_EXPORT void quire_experts_groups(
    int dtype, const void* x, const int32_t* pairs, const int32_t* starts, int64_t tokens, int64_t experts, int64_t k,
    int looked_up, int64_t inputs, int64_t outputs, const void* matrices, int bits, int table, int scale_dtype, int kind,
    int64_t groups, int64_t units, int activations, int gate, void* out, void* scratch, int threads
) {
    const quire::CodedProduct product{
        x, {pairs, starts, experts, k}, tokens, looked_up != 0, inputs, outputs, (const quire::CodedMatrix*)matrices, gate,
        out, scratch, threads
    };
    const auto scales_of = [=](const quire::CodedMatrix& one) {
        return quire::GroupScales{
            one.scale, one.offset, scale_dtype, quire::Offset(kind), one.unit, outputs, inputs, groups, units,
            units ? groups / units : 1, bits, quire::Table(table)
        };
    };
    if (activations == quire::AS_INTEGERS)
        return product.run(dtype, [=](const quire::CodedMatrix& one) { return quire::IntegerGroups{{}, scales_of(one)}; });
    product.run(dtype, [=](const quire::CodedMatrix& one) { return quire::FloatGroups{{}, scales_of(one)}; });
}
