// Ranks on one machine add up tensors through memory that they share. Each writes its own into its slot and says so; when
// all have, each adds all slots up by itself, in the order of the ranks: every rank gets the same bits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "dtype.hpp"
#include "parallel.hpp"

namespace quire {

// What a rank knows of the exchange; kernels/cpu/exchange.py makes it. The shared memory holds a line for each rank,
// with the number of slots it has filled, and behind them two slots for each. Two are enough: a rank that fills its next
// but one has seen all others fill theirs, which they do when they have read all slots before.
struct Exchange {
    struct alignas(64) Line {
        std::atomic<int64_t> filled;
    };

    char* memory;
    int64_t rank, size, slot_bytes, num_filled;
    std::atomic<int64_t> lost;  // a rank has ended: nobody waits any more, and what is summed up means nothing

    char* slot(int64_t rank, int64_t number) const {
        return memory + size * sizeof(Line) + ((number & 1) * size + rank) * slot_bytes;
    }

    // This rank's slot is filled; returns when everybody's is.
    void meet() {
        Line* const lines = reinterpret_cast<Line*>(memory);
        lines[rank].filled.store(++num_filled, std::memory_order_release);
        for (int64_t r = 0; r < size; r++)
            wait_until([&] {
                return lines[r].filled.load(std::memory_order_acquire) >= num_filled || lost.load(std::memory_order_relaxed);
            });
    }
};

constexpr int64_t PIECE_BYTES = 1 << 12;
constexpr int64_t PART_BYTES = 1 << 20;  // stays in the cache until all have read it; on a tape everything goes at once

// body(number of the slots, begin of what they hold, place in it, bytes there) for pieces of `bytes` that all ranks have in
// their slots; this rank fills its own with `data`.
template <class Body>
inline void exchange(Exchange& e, const char* data, int64_t bytes, int threads, const Body& body) {
    const int64_t part = member.team ? e.slot_bytes : PART_BYTES;
    for (int64_t first = 0; first < bytes; first += part) {
        const int64_t count = std::min(part, bytes - first), pieces = (count + PIECE_BYTES - 1) / PIECE_BYTES;
        for_rows(pieces, PIECE_BYTES / sizeof(float), threads, [&, first, count](int64_t piece) {
            const int64_t at = piece * PIECE_BYTES;
            std::memcpy(e.slot(e.rank, e.num_filled) + at, data + first + at, std::min(PIECE_BYTES, count - at));
        });
        once([&] { e.meet(); });
        for_rows(pieces, e.size * PIECE_BYTES / sizeof(float), threads, [&, first, count](int64_t piece) {
            const int64_t at = piece * PIECE_BYTES;
            body(e.num_filled - 1, first, at, std::min(PIECE_BYTES, count - at));
        });
    }
}

template <class T> inline void all_reduce(Exchange& e, T* data, int64_t elements, int threads) {
    const auto add = [&, data](int64_t number, int64_t first, int64_t at, int64_t bytes) {
        const int64_t n = bytes / sizeof(T);
        T* const out = data + (first + at) / sizeof(T);
        for (int64_t i = 0; i < n; i += LANES) {
            Floats sum{};
            for (int64_t r = 0; r < e.size; r++)
                sum += load(reinterpret_cast<const T*>(e.slot(r, number) + at) + i, n - i);
            store(out + i, sum, n - i);
        }
    };
    exchange(e, reinterpret_cast<const char*>(data), elements * sizeof(T), threads, add);
}

}  // namespace quire

// data [rows, n] -> the sum of all ranks' data.
QUIRE_EXPORT void quire_all_reduce(void* exchange, int dtype, void* data, int64_t rows, int64_t n, int threads) {
    quire::for_dtype(dtype, [=](auto* t) {
        using T = std::remove_pointer_t<decltype(t)>;
        quire::all_reduce(*static_cast<quire::Exchange*>(exchange), static_cast<T*>(data), rows * n, threads);
    });
}

// data [bytes] of each rank -> out [size, bytes].
QUIRE_EXPORT void quire_all_gather(void* exchange, const void* data, int64_t bytes, void* out, int threads) {
    quire::Exchange& e = *static_cast<quire::Exchange*>(exchange);
    const auto copy = [&, bytes, out](int64_t number, int64_t first, int64_t at, int64_t count) {
        for (int64_t r = 0; r < e.size; r++)
            std::memcpy(static_cast<char*>(out) + r * bytes + first + at, e.slot(r, number) + at, count);
    };
    quire::exchange(e, static_cast<const char*>(data), bytes, threads, copy);
}
