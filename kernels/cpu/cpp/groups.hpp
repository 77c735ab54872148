// Linear layers on codes of which the inputs of a group share a scale and an offset for each output; codes.hpp says how
// they lie. Rows become integers: codes are multiplied about the middle of their range, sums of a side of inputs are
// scaled for the output and the row, and what the offset is from the middle goes off them. Or rows stay as they are, and
// codes become float32. A few rows have a loop for each kind of codes, more share that of 8 bits: it takes long to
// compile.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "codes.hpp"
#include "int8.hpp"
#include "linear.hpp"

namespace quire {

constexpr int64_t ROUNDED = 32;  // inputs of a row that share a scale

// What the inputs of a side have in common.
struct Side {
    float scale, excess;  // excess: the sum of the inputs
    int32_t start;        // of their sums with any codes: what takes the codes' middle off
};
constexpr int64_t SIDE_FLOATS = sizeof(Side) / sizeof(float);

// A row's inputs become integers with a scale for each 32.
struct IntegerGroups : VectorTiles, GroupScales {
    using Vector = Floats;
    static constexpr bool GROUPED = true;
    static constexpr int TALL_ROWS = TILE_ROWS;  // sums of one block would leave no registers for what scales them
    static constexpr int GROUP = Int8::GROUP, FOUR_BLOCKS_ROWS = LANES == 16 ? 2 : 1;
    // Up to so many rows, codes are taken apart in registers; beyond, as bytes in memory.
    template <class C> static constexpr int IN_REGISTERS = C::BITS == 4 || TILE_ROWS < 4 ? TILE_ROWS : 4;
    static constexpr int64_t SEGMENT = 128;

    int64_t scales(int64_t n) const { return n / side() * SIDE_FLOATS; }

    template <class T> void pack(const T* x, int64_t n, int32_t* out, float* scale, int32_t*) const {
        const int64_t apart = side();
        for (int64_t i = 0; i < n; i += ROUNDED) {
            const int32_t top = largest_magnitude(x + i, ROUNDED);
            const bool finite = top < 0x7f800000;
            const float most = bits_of<float>(top), step = finite && most >= 1e-30f ? most / 127.f : 1.f;
            for (int64_t at = i; at < i + ROUNDED; at += apart, scale += SIDE_FLOATS) {
                const int32_t sum = Int8::put(x + at, apart, step, finite, out + at / GROUP);
                const Side one{finite ? step : NAN, finite ? step * float(sum) : NAN, -(sum << (value_bits() - 1))};
                std::memcpy(scale, &one, sizeof one);
            }
        }
    }
    template <class Rows> static Floats real(Floats sum, const Rows&, int64_t, int64_t, int64_t) { return sum; }

    // Adds the products of tiles [begin, end), which are `count` rows, with some blocks of outputs. A thread mostly goes
    // on with those that are `next` blocks behind each.
    template <int blocks> void add(
        const PackedRows<IntegerGroups>& packed, int64_t begin, int64_t end, const int32_t* const* weights,
        const std::array<int64_t, blocks>& numbers, int next, int32_t* sums
    ) const {
        const int64_t count = packed.first(end) - packed.first(begin);
        const Tiles<blocks> tiles{packed, begin, end, count, numbers.data(), next};
        for_codes(bits, table, [&](auto codes) {
            using C = decltype(codes);
            if constexpr (C::BITS < 8 && blocks == 2)
                if (tiles.count > IN_REGISTERS<C>) return add_widened<C>(tiles, weights, sums);
            for (int64_t g = 0; g < packed.groups; g += SEGMENT) {
                const int32_t* from[blocks];
                for (int b = 0; b < blocks; b++) from[b] = weights[b] + lanes_of_block(g * GROUP);
                add_segment<C, blocks>(tiles, g, from, AHEAD_LANES, sums);
            }
        });
    }

private:
    template <int blocks> struct Tiles {
        const PackedRows<IntegerGroups>& packed;
        int64_t begin, end, count;
        const int64_t* numbers;  // of the blocks
        int next;
    };
    template <int blocks> struct Piece {
        const int32_t* x;    // [groups, rows]
        const Side* inputs;  // [rows, stride]
        int64_t stride;
        const int32_t* const* weights;
        const float *factor, *least;  // of the first group; those of another block are GROUPS lines further
        int64_t next;                 // from what goes off a group to that of the next one
        int64_t side, end, steps;     // steps of a side
        int64_t ahead, jump;          // lanes: weights are asked for so early, past a block's end so much further
    };
    static constexpr int64_t GROUPS = SEGMENT * GROUP / 16;  // of a segment, at most

    // Segment by segment codes become bytes, for all tiles.
    template <class C> void add_widened(const Tiles<2>& tiles, const int32_t* const* weights, int32_t* sums) const {
        alignas(64) int32_t wide[2][SEGMENT * BLOCK];
        const int32_t* const from[2] = {wide[0], wide[1]};
        const int64_t block = lanes_of_block(inputs), jump = (tiles.next - 1) * block;
        const int64_t segment = lanes_of_block(SEGMENT * GROUP);  // the next one is asked for
        for (int64_t g = 0; g < tiles.packed.groups; g += SEGMENT) {
            const int64_t steps = std::min(SEGMENT, tiles.packed.groups - g) / C::PARTS;
            for (int b = 0; b < 2; b++) {
                const int32_t *codes = weights[b] + lanes_of_block(g * GROUP), *const end = weights[b] + block;
                for (int32_t* to = wide[b]; to < wide[b] + steps * C::PARTS * BLOCK; codes += C::WORDS * BLOCK) {
                    const int32_t* const later = codes + segment + (codes + segment < end ? 0 : jump);
#pragma GCC unroll 5
                    for (int word = 0; word < C::WORDS; word++)
                        __builtin_prefetch(later + word * BLOCK, 0, SECOND_CACHE);
                    for (int part = 0; part < C::PARTS; part++)
                        for (int v = 0; v < BLOCK_VECTORS; v++, to += LANES) {
                            const Ints bytes = C::weights(part, codes, v);
                            std::memcpy(to, &bytes, sizeof bytes);
                        }
                }
            }
            add_segment<Codes<8>, 2>(tiles, g, from, 0, sums);
        }
    }

    template <class C, int blocks> void add_segment(
        const Tiles<blocks>& tiles, int64_t g, const int32_t* const* weights, int64_t ahead, int32_t* sums
    ) const {
        const auto& packed = tiles.packed;
        const int64_t groups = side() / GROUP, last = std::min(g + SEGMENT, packed.groups);
        alignas(64) float factor[blocks][GROUPS][BLOCK], least[blocks][GROUPS][BLOCK];
        const int64_t size = group_size(), first = g * GROUP / size, behind = (last * GROUP + size - 1) / size;
        for (int b = 0; b < blocks; b++)
            put({tiles.numbers[b], tiles.next, first, behind}, true, factor[b][0], least[b][0]);
        const int64_t origin = packed.first(tiles.begin), jump = ahead ? (tiles.next - 1) * lanes_of_block(inputs) : 0;
        for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
            const int64_t r = packed.first(tile), rows = packed.first(tile + 1) - r;
            const auto* const inputs = reinterpret_cast<const Side*>(packed.scale + r * packed.scales);
            const Piece<blocks> piece{
                packed.lanes + r * packed.groups + g * rows, inputs, packed.groups / groups, weights,
                factor[0][0], least[0][0], kind == SYMMETRIC ? 0 : BLOCK,
                g / groups, last / groups, side() / C::STEP, ahead, jump
            };
            constexpr int most = blocks == 4 ? FOUR_BLOCKS_ROWS : C::BITS < 8 ? IN_REGISTERS<C> : TILE_ROWS;
            by_rows<C>(piece, rows, sums + (r - origin) * blocks * BLOCK, std::make_integer_sequence<int, most>{});
        }
    }

    template <class C, int blocks, int... i>
    void by_rows(const Piece<blocks>& piece, int64_t rows, int32_t* sums, std::integer_sequence<int, i...>) const {
        static constexpr void (IntegerGroups::*add[])(const Piece<blocks>&, int32_t*) const = {
            &IntegerGroups::add_piece<C, 1 + i, blocks>...
        };
        (this->*add[rows - 1])(piece, sums);
    }

    template <class C, int rows, int blocks> void add_piece(const Piece<blocks>& piece, int32_t* sums) const {
        constexpr int vectors = blocks * BLOCK_VECTORS, stride = blocks * BLOCK;
        constexpr std::make_integer_sequence<int, rows> every_row{};
        constexpr std::make_integer_sequence<int, vectors> every_vector{};
        const int32_t *at[blocks], *x = piece.x;
        std::copy_n(piece.weights, blocks, at);
        const int64_t sides = group_size() / side(), early = piece.ahead / (piece.steps * C::WORDS * BLOCK);
        const float *factor = piece.factor, *least = piece.least;
        Floats total[rows][vectors], together[rows][vectors] = {};  // of a group, where it has several sides
        unrolled(every_row, [&](auto r) {
            unrolled(every_vector, [&](auto v) { total[r][v] = load_vector<Floats>(sums + r * stride + v * LANES); });
        });
        const auto of_vector = [](const float* lines, int v) {
            return load_vector<Floats>(lines + v / BLOCK_VECTORS * (GROUPS * BLOCK) + v % BLOCK_VECTORS * LANES);
        };
        for (int64_t side = piece.side; side < piece.end; factor += BLOCK, least += piece.next) {
            const int64_t last = std::min(piece.end, (side / sides + 1) * sides), count = last - side;
            const Side* const inputs = piece.inputs + side;
            const auto add = [&](auto r, auto v, Floats sum, float excess) {
                total[r][v] = total[r][v] + sum * of_vector(factor, v) - of_vector(least, v) * excess;
            };
            for (int64_t i = 0; i < count; i++) {
                Ints sum[rows][vectors];
                unrolled(every_row, [&](auto r) {
                    const Ints start = inputs[r * piece.stride + i].start - Ints{};
                    unrolled(every_vector, [&](auto v) { sum[r][v] = start; });
                });
                const bool ends = side + i + early >= piece.stride;
                add_side<C, rows, blocks>(at, x, piece.ahead + (ends ? piece.jump : 0), piece.steps, sum);
                if (sides == 1)
                    unrolled(every_row, [&](auto r) {
                        const Side& row = inputs[r * piece.stride];
                        unrolled(every_vector, [&](auto v) { add(r, v, real_of(sum[r][v]) * row.scale, row.excess); });
                    });
                else
                    unrolled(every_row, [&](auto r) {
                        const float scale = inputs[r * piece.stride + i].scale;
                        unrolled(every_vector, [&](auto v) { together[r][v] += real_of(sum[r][v]) * scale; });
                    });
            }
            side = last;
            if (sides == 1) continue;
            unrolled(every_row, [&](auto r) {
                float excess = 0;
                for (int64_t i = 0; i < count; i++) excess += inputs[r * piece.stride + i].excess;
                unrolled(every_vector, [&](auto v) {
                    add(r, v, together[r][v], excess);
                    together[r][v] = Floats{};
                });
            });
        }
        unrolled(every_row, [&](auto r) {
            unrolled(every_vector, [&](auto v) { store((float*)sums + r * stride + v * LANES, total[r][v]); });
        });
    }

    static Floats real_of(Ints sum) { return __builtin_convertvector(sum, Floats); }

    // Products of a side; weights are asked for so many lanes ahead.
    template <class C, int rows, int blocks> static inline __attribute__((always_inline)) void add_side(
        const int32_t* (&at)[blocks], const int32_t*& x, int64_t ahead, int64_t steps,
        Ints (&sum)[rows][blocks * BLOCK_VECTORS]
    ) {
        constexpr int vectors = blocks * BLOCK_VECTORS;
        constexpr std::make_integer_sequence<int, rows> every_row{};
        constexpr std::make_integer_sequence<int, vectors> every_vector{};
#pragma GCC unroll 1
        for (int64_t step = 0; step < steps; step++, x += C::PARTS * rows) {
#pragma GCC unroll 8
            for (int part = 0; part < C::PARTS; part++) {
                // a loop and no lambda: GCC drops a call of one that does nothing but prefetch
                if (part < C::WORDS)
#pragma GCC unroll 4
                    for (int b = 0; b < blocks; b++)
                        __builtin_prefetch(at[b] + ahead + part * BLOCK, 0, SECOND_CACHE);
                Ints weights[vectors];
                unrolled(every_vector, [&](auto v) {
                    weights[v] = C::weights(part, at[v / BLOCK_VECTORS], v % BLOCK_VECTORS);
                });
                unrolled(every_row, [&](auto r) {
                    const Ints lane = x[part * rows + r] - Ints{};
                    unrolled(every_vector, [&](auto v) { sum[r][v] = Int8::dot(sum[r][v], weights[v], lane); });
                });
            }
#pragma GCC unroll 4
            for (int b = 0; b < blocks; b++) at[b] += C::WORDS * BLOCK;
        }
    }
};

// Rows stay as they are: codes become the weights that are meant, in float32. One row has them in registers, more have
// those of a few inputs laid out for all.
struct FloatGroups : Float32, GroupScales {
    static constexpr bool GROUPED = true;
    static constexpr int FOUR_BLOCKS_ROWS = 1;
    static constexpr int64_t SEGMENT = 128;

    template <int blocks> void add(
        const PackedRows<FloatGroups>& packed, int64_t begin, int64_t end, const int32_t* const* weights,
        const std::array<int64_t, blocks>& numbers, int next, int32_t* sums
    ) const {
        if constexpr (blocks == 4)
            for_codes(bits, table, [&](auto codes) {
                add_row<decltype(codes)>(packed.lanes, weights, numbers, next, sums);
            });
        else add_tiles(packed, begin, end, weights, numbers, next, sums);
    }

    // The first `width` weights of an output.
    template <class T> void output(const int32_t* packed, int64_t number, int64_t width, T* out) const {
        const int64_t block = number / BLOCK, lane = number % BLOCK;
        alignas(64) int32_t wide[SEGMENT * BLOCK];
        alignas(64) int32_t row[SEGMENT] = {};
        for (int64_t i = 0; i < width; i += SEGMENT) {
            const int64_t count = std::min(SEGMENT, inputs - i);
            const int32_t* const codes = packed + block * lanes_of_block(inputs) + lanes_of_block(i);
            Columns columns;
            columns.put(*this, block, 0, i, i + count);
            for_codes(bits, table, [&](auto kind) {
                widen<decltype(kind)>(codes, columns, lane / LANES, i, i + count, wide);
            });
            for (int64_t n = 0; n < count; n++) row[n] = wide[n * BLOCK + lane % LANES];
            for (int64_t n = 0; n < std::min(count, width - i); n += LANES)
                store(out + i + n, load_vector<Floats>(row + n), width - i - n);
        }
    }

private:
    void add_tiles(
        const PackedRows<FloatGroups>& packed, int64_t begin, int64_t end, const int32_t* const* weights,
        const std::array<int64_t, 2>& numbers, int next, int32_t* sums
    ) const {
        alignas(64) int32_t wide[2][SEGMENT * BLOCK];
        const int32_t* const from[2] = {wide[0], wide[1]};
        const int64_t origin = packed.first(begin);
        for (int64_t i = 0; i < inputs; i += SEGMENT) {
            const int64_t count = std::min(SEGMENT, inputs - i);
            Columns columns[2];
            for (int b = 0; b < 2; b++) columns[b].put(*this, numbers[b], next, i, i + count);
            for_codes(bits, table, [&](auto codes) {
                for (int b = 0; b < 2; b++)
                    for (int v = 0; v < BLOCK_VECTORS; v++) {
                        const int32_t* const at = weights[b] + lanes_of_block(i);
                        widen<decltype(codes)>(at, columns[b], v, i, i + count, wide[b] + v * LANES);
                    }
            });
            for (int64_t tile = begin; tile < end; tile++) {
                const int64_t r = packed.first(tile), rows = packed.first(tile + 1) - r;
                int32_t* const to = sums + (r - origin) * 2 * BLOCK;
                sum_tile<Float32, false>(rows, packed.at(tile) + i * rows, from, wide[0], count, BLOCK, nullptr, to);
            }
        }
    }

    // The weights of a vector of outputs.
    struct Meant {
        Floats factor, least, zero;

        Floats weights(Ints codes, int byte) const {
            const Words code = (Words)codes >> (8 * byte) & 255;
            return (__builtin_convertvector((Ints)code, Floats) - zero) * factor - least;
        }
    };
    // Those of a block, [groups, 16].
    struct Columns {
        static constexpr int64_t GROUPS = SEGMENT / 16;
        alignas(64) float factor[GROUPS][BLOCK], least[GROUPS][BLOCK];
        Floats zero;
        int64_t first;
        bool symmetric;

        void put(const GroupScales& scales, int64_t block, int64_t next, int64_t i, int64_t end) {
            const int64_t size = scales.group_size();
            first = i / size, symmetric = scales.kind == SYMMETRIC, zero = splat(symmetric ? scales.middle() : 0);
            scales.put({block, next, first, (end + size - 1) / size}, false, factor[0], least[0]);
        }
        Meant at(int64_t group, int v) const {
            const int64_t n = group - first, line = symmetric ? 0 : n;
            return {load_vector<Floats>(factor[n] + v * LANES), load_vector<Floats>(least[line] + v * LANES), zero};
        }
    };

    // Those of a block's inputs [i, end).
    template <class C> void widen(
        const int32_t* codes, const Columns& columns, int v, int64_t i, int64_t end, int32_t* to
    ) const {
        while (i < end) {
            const int64_t number = i / group_size(), last = std::min(end, (number + 1) * group_size());
            const Meant meant = columns.at(number, v);
            for (; i < last; i += C::STEP, codes += C::WORDS * BLOCK)
                for (int part = 0; part < C::PARTS; part++)
#pragma GCC unroll 4
                    for (int byte = 0; byte < 4; byte++, to += BLOCK) {
                        const Floats weights = meant.weights(C::weights(part, codes, v), byte);
                        std::memcpy(to, &weights, sizeof weights);
                    }
        }
    }

    // The products of a row with four blocks, summed as a tile sums them.
    template <class C> void add_row(
        const int32_t* x, const int32_t* const* weights, const std::array<int64_t, 4>& numbers, int next, int32_t* sums
    ) const {
        for (int64_t i = 0; i < inputs; i += SEGMENT) {
            const int64_t end = std::min(i + SEGMENT, inputs);
            Columns columns[4];
            for (int b = 0; b < 4; b++) columns[b].put(*this, numbers[b], next, i, end);
            for (int v = 0; v < BLOCK_VECTORS; v++) add_segment<C>(x, weights, columns, v, i, end, sums + v * LANES);
        }
    }
    template <class C> void add_segment(
        const int32_t* x, const int32_t* const* weights, const Columns (&columns)[4], int v, int64_t i, int64_t end,
        int32_t* sums
    ) const {
        constexpr std::make_integer_sequence<int, 4> every_block{};
        const int32_t *at[4], *lanes = x + i;
        Floats sum[4];
        unrolled(every_block, [&](auto b) {
            at[b] = weights[b] + lanes_of_block(i);
            sum[b] = load_vector<Floats>(sums + b * BLOCK);
        });
        const int64_t size = group_size();
        while (i < end) {
            const int64_t number = i / size, last = std::min(end, (number + 1) * size);
            Meant meant[4];
            unrolled(every_block, [&](auto b) { meant[b] = columns[b].at(number, v); });
            for (; i < last; i += C::STEP) {
#pragma GCC unroll 4
                for (int b = 0; b < 4; b++)
#pragma GCC unroll 5
                    for (int word = 0; word < C::WORDS; word++)
                        __builtin_prefetch(at[b] + AHEAD_LANES + word * BLOCK, 0, SECOND_CACHE);
#pragma GCC unroll 2
                for (int part = 0; part < C::PARTS; part++, lanes += 4) {
                    Ints codes[4];
                    unrolled(every_block, [&](auto b) { codes[b] = C::weights(part, at[b], v); });
                    unrolled(every_block, [&](auto byte) {
                        const Floats lane = splat(bits_of<float>(lanes[byte]));
                        unrolled(every_block, [&](auto b) {
                            sum[b] = dot(sum[b], meant[b].weights(codes[b], byte), lane);
                        });
                    });
                }
#pragma GCC unroll 4
                for (int b = 0; b < 4; b++) at[b] += C::WORDS * BLOCK;
            }
        }
        unrolled(every_block, [&](auto b) { std::memcpy(sums + b * BLOCK, &sum[b], sizeof sum[b]); });
    }
};

// What becomes of activations; the order of Activations in kernels/linear/linear_groups.py.
enum GroupActivations : int { AS_INTEGERS = 0, AS_FLOATS = 1 };

}  // namespace quire

// `groups`: columns of scale and offset; `kind`: see Offset; `units`: columns of unit, or 0.
QUIRE_EXPORT void quire_linear_groups(
    int dtype, const void* x, const void* residual, const void* norm_weight, void* total, int64_t rows, int64_t inputs,
    float eps, const void* weight, int bits, int table, int scale_dtype, const void* scale, int kind, const void* offset,
    int64_t groups, const void* unit, int64_t units, const void* bias, int64_t outputs, int activations, int gate,
    void* out, void* scratch, int threads
) {
    const quire::GroupScales scales{
        scale, offset, scale_dtype, quire::Offset(kind), unit, outputs, inputs, groups, units,
        units ? groups / units : 1, bits, quire::Table(table)
    };
    const auto run = [=](auto format) {
        quire::for_dtype(dtype, [=](auto* t) {
            using T = std::remove_pointer_t<decltype(t)>;
            quire::Linear<decltype(format), T>{
                format, (const T*)x, (const T*)residual, (const T*)norm_weight, (T*)total, rows, inputs, eps,
                (const int32_t*)weight, (const T*)bias, outputs, gate, (T*)out, threads
            }.run(scratch);
        });
    };
    if (activations == quire::AS_INTEGERS) run(quire::IntegerGroups{{}, scales});
    else run(quire::FloatGroups{{}, scales});
}
