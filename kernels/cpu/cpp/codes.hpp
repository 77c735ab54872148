// Codes of 4, 5, 6 or 8 bits in registers, four inputs in a lane: a block of 16 outputs is WORDS times 64 bytes for each
// STEP inputs (kernels/linear/linear_groups.py packs). Bits above the fourth lie apart, behind the halves of bytes. With
// a table codes of 4 bits become codes of 8: what they stand for, and 128 more.
#pragma once

#include <algorithm>

#include "simd.hpp"
#include "tile.hpp"

namespace quire {

// What codes stand for; the order of Table in kernels/linear/code_tables.py.
enum Table : int { THEMSELVES = 0, E2M1 = 1, IQ4_NL = 2 };

alignas(16) constexpr uint8_t TABLES[][16] = {
    {},
    {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116},  // halves
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},
};
constexpr float TABLE_UNITS[] = {1.f, .5f, 1.f};

template <int bits, Table table = THEMSELVES> struct Codes {
    static constexpr int BITS = bits, TOP = bits == 8 ? 0 : bits - 4;
    static constexpr int STEP = bits == 8 ? 4 : TOP ? 32 / TOP : 8, PARTS = STEP / 4, WORDS = STEP * bits / 32;

    // Vector v of the codes that meet a row's lane `part` of a step.
    static Ints weights(int part, const int32_t* step, int v) {
        if constexpr (bits == 8) return load_vector<Ints>(step + v * LANES);
        const auto word = [=](int w) { return load_vector<Words>(step + w * BLOCK + v * LANES); };
        const Words low = word(part / 2) >> (part % 2 * 4) & 0x0f0f0f0f;
        if constexpr (table != THEMSELVES) return (Ints)looked_up(low, TABLES[table]);
        else if constexpr (TOP == 0) return (Ints)low;
        else {
            const int left = 4 - part * TOP;  // in one shift to where they belong
            const Words top = left > 0 ? word(PARTS / 2) << left : word(PARTS / 2) >> -left;
            return (Ints)(low | (top & 0x01010101 * ((1 << TOP) - 1) << 4));
        }
    }
};

// f(Codes) of so many bits.
template <class F> inline void for_codes(int bits, Table table, const F& f) {
    if (table == E2M1) return f(Codes<4, E2M1>{});
    if (table == IQ4_NL) return f(Codes<4, IQ4_NL>{});
    switch (bits) {
        case 4: return f(Codes<4>{});
        case 5: return f(Codes<5>{});
        case 6: return f(Codes<6>{});
        default: return f(Codes<8>{});
    }
}

// Meaning of an offset.
enum Offset : int { SYMMETRIC = 0, ZERO_POINTS = 1, MINIMA = 2 };

// Scales and offsets of a weight, in blocks of [groups, 16], of the last one as many as there are.
struct GroupScales {
    const void *scale, *offset;
    int scale_dtype;
    Offset kind;
    const void* unit;  // what scales, and behind them minima, are multiples of; or null
    int64_t outputs, inputs, groups, units, of_unit;  // of_unit: groups that share one
    int bits;
    Table table;

    int64_t group_size() const { return inputs / groups; }
    int64_t lanes_of_block(int64_t inputs) const { return inputs * bits / 32 * BLOCK; }
    int value_bits() const { return table ? 8 : bits; }
    float middle() const { return float(1 << (value_bits() - 1)); }
    // Inputs that are summed before they are scaled: a group is one such or several.
    int64_t side() const { return bits == 6 || group_size() % 32 ? 16 : 32; }

    // Groups [first, last) of a block. A thread mostly goes on with those that are `next` blocks behind.
    struct Span { int64_t block, next, first, last; };

    // Of these groups, [groups, 16]: the scales, and what goes off their products with codes, or with codes of which the
    // middle is off. Of symmetric ones nothing does: a line of zeros stands for all groups.
    void put(const Span& span, bool centred, float* factor, float* least) const {
        put_stored(scale, 0, TABLE_UNITS[table], span, factor);
        if (kind == SYMMETRIC) return (void)std::fill_n(least, BLOCK, 0.f);
        if (kind == MINIMA) put_stored(offset, 1, 1, span, least);
        else put_scaled(static_cast<const uint8_t*>(offset), NO_UNITS, 1, span, least);
        if (kind == MINIMA && !centred) return;  // as they are stored: a zero keeps its sign
        const Floats off = splat(centred ? middle() : 0);
        for (int64_t i = 0; i < (span.last - span.first) * BLOCK; i += LANES) {
            const Floats by = load_vector<Floats>(factor + i), stored = load_vector<Floats>(least + i);
            store(least + i, kind == ZERO_POINTS ? by * (stored - off) : stored - by * off);
        }
    }

private:
    static constexpr const float* NO_UNITS = nullptr;

    void put_stored(const void* from, int which, float by, const Span& span, float* to) const {
        const auto put = [&](auto* stored, auto* units) { put_scaled(stored, units, by, span, to); };
        switch (scale_dtype) {
            case BF16: return put(static_cast<const Bf16*>(from), NO_UNITS);
            case FP16: return put(static_cast<const F16*>(from), NO_UNITS);
            case F32: return put(static_cast<const float*>(from), NO_UNITS);
            case POWERS: return put(static_cast<const E8m0*>(from), NO_UNITS);
            case FP8: return put(static_cast<const Fp8*>(from), static_cast<const float*>(unit));
        }
        put(static_cast<const I8*>(from), static_cast<const F16*>(unit) + which * outputs * units);
    }

    // Stored numbers times their units, if they have some, and `by`.
    template <class T, class U> void put_scaled(
        const T* from, const U* units_from, float by, const Span& span, float* to
    ) const {
        const int64_t before = span.block * BLOCK, width = std::min<int64_t>(BLOCK, outputs - before);
        const int64_t sharing = units_from ? of_unit : groups;
        const T* stored = from + (before * groups + span.first * width);
        for (int64_t group = span.first; group < span.last;) {
            const int64_t number = uint32_t(group) / uint32_t(sharing);
            const int64_t end = std::min(span.last, (number + 1) * sharing);
            const U* const shared = units_from + before * units + number * width;
            Floats unit[BLOCK_VECTORS];
            for (int v = 0; v < BLOCK_VECTORS; v++)
                unit[v] = units_from ? load_lanes(shared, v, width) * by : splat(by);
            for (; group < end; group++, stored += width) {
                __builtin_prefetch(stored + span.next * groups * width);
                for (int v = 0; v < BLOCK_VECTORS; v++, to += LANES) store(to, load_lanes(stored, v, width) * unit[v]);
            }
        }
    }

    template <class T> static Floats load_lanes(const T* from, int v, int64_t width) {
        return load(from + v * LANES, std::max<int64_t>(0, width - v * LANES));
    }
};

}  // namespace quire
