// Columns of a matrix out of one of its own: products that were made apart, side by side.
#pragma once

#include <cstring>

#include "dtype.hpp"
#include "parallel.hpp"

// from [rows, bytes] -> to, whose rows are `stride` bytes apart.
QUIRE_EXPORT void quire_put_columns(const void* from, int64_t rows, int64_t bytes, void* to, int64_t stride, int threads) {
    quire::for_rows(rows, bytes, threads, [=](int64_t r) {
        std::memcpy(static_cast<char*>(to) + r * stride, static_cast<const char*>(from) + r * bytes, bytes);
    });
}
