// Loops over torch's own pool of threads: torch loads its OpenMP runtime first, and this library finds it there.
#pragma once

#include <cstdint>

namespace quire {

// Least number of elements that is worth a second thread: a team costs a few microseconds.
constexpr int64_t ELEMENTS_PER_THREAD = 1 << 15;

// body(i) for i in [0, count), in equal runs. One element's work is `elements`. Results must not depend on the split.
template <class Body> inline void for_rows(int64_t count, int64_t elements, int threads, const Body& body) {
    const int64_t worth = count * elements / ELEMENTS_PER_THREAD;
    if (worth <= 1 || threads <= 1) {
        for (int64_t i = 0; i < count; i++) body(i);
        return;
    }
    // always the whole team: the runtime ends the threads that a smaller one leaves over, and starts them again after it
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i++) body(i);
}

// body(i) for i in [0, count), each taken by the thread that is free: for items of unequal and large work.
template <class Body> inline void for_items(int64_t count, int threads, const Body& body) {
    if (threads <= 1 || count <= 1) {
        for (int64_t i = 0; i < count; i++) body(i);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) body(i);
}

}  // namespace quire
