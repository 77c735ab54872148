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
        else return (Ints)(low | (word(PARTS / 2) >> (part * TOP) & 0x01010101 * ((1 << TOP) - 1)) << 4);
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

    // Columns of a group: of its scale, and of the unit of that.
    struct Group { int64_t scale, unit; };
    Group group(int64_t number) const { return {number, units ? uint32_t(number) / uint32_t(of_unit) : 0}; }

    int64_t group_size() const { return inputs / groups; }
    int64_t lanes_of_block(int64_t inputs) const { return inputs * bits / 32 * BLOCK; }
    int value_bits() const { return table ? 8 : bits; }
    float middle() const { return float(1 << (value_bits() - 1)); }
    // Inputs that are summed before they are scaled: a group is one such or several.
    int64_t side() const { return bits == 6 || group_size() % 32 ? 16 : 32; }

    // Of a vector of outputs, from `lane` of their block on. GCC would call these: a file has many uses of them.
    inline __attribute__((always_inline)) Floats factors(int64_t block, Group group, int lane) const {
        return floats_of(scale, 0, block, group, lane) * TABLE_UNITS[table];
    }

    // What goes off a product of these factors with codes, and with codes of which the middle is off.
    inline __attribute__((always_inline)) Floats minima(Floats factors, int64_t block, Group group, int lane) const {
        if (kind == SYMMETRIC) return factors * middle();
        if (kind == MINIMA) return floats_of(offset, 1, block, group, lane);
        return factors * some(static_cast<const uint8_t*>(offset), groups, block, group.scale, lane);
    }
    inline __attribute__((always_inline)) Floats excess(Floats factors, int64_t block, Group group, int lane) const {
        if (kind == SYMMETRIC) return Floats{};
        return minima(factors, block, group, lane) - factors * middle();
    }

private:
    inline __attribute__((always_inline)) Floats floats_of(
        const void* from, int which, int64_t block, Group group, int lane
    ) const {
        switch (scale_dtype) {
            case BF16: return some(static_cast<const Bf16*>(from), groups, block, group.scale, lane);
            case FP16: return some(static_cast<const F16*>(from), groups, block, group.scale, lane);
            case F32: return some(static_cast<const float*>(from), groups, block, group.scale, lane);
            case POWERS: return some(static_cast<const E8m0*>(from), groups, block, group.scale, lane);
            case FP8: {
                const Floats units_of = some(static_cast<const float*>(unit), units, block, group.unit, lane);
                return some(static_cast<const Fp8*>(from), groups, block, group.scale, lane) * units_of;
            }
        }
        const F16* const shared = static_cast<const F16*>(unit) + which * outputs * units;
        const Floats units_of = some(shared, units, block, group.unit, lane);
        return some(static_cast<const I8*>(from), groups, block, group.scale, lane) * units_of;
    }
    template <class T> inline __attribute__((always_inline)) Floats some(
        const T* from, int64_t columns, int64_t block, int64_t column, int lane
    ) const {
        const int64_t first = block * BLOCK, width = std::min<int64_t>(BLOCK, outputs - first);
        return load(from + first * columns + column * width + lane, std::max<int64_t>(0, width - lane));
    }
};

}  // namespace quire
