// Loops over torch's own pool of threads: torch loads its OpenMP runtime first, and this library finds it there.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace quire {

// Least number of elements that is worth a second thread: a team costs a few microseconds.
constexpr int64_t ELEMENTS_PER_THREAD = 1 << 15;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Returns when is_so() is true. Who makes it true may be waiting for this core.
template <class IsSo> inline void wait_until(const IsSo& is_so) {
    constexpr int TURNS = 1 << 10;
    for (int turns = 1; !is_so(); turns++) {
        if (turns % TURNS == 0) sched_yield();
        pause();
    }
}

// Threads that make the same calls one after another: of every loop each takes the pieces that nobody else has taken,
// and none goes on before all are done. A thread whose core another process has taken holds up the piece it works on,
// and not the loops after it, as it would if each began and ended a parallel region.
class Team {
public:
    explicit Team(int64_t most_loops) : loops(most_loops) {}

    template <class Body> void share(int64_t number, int64_t count, int64_t piece, const Body& body) {
        Loop& loop = loops.at(number);
        for (;;) {
            const int64_t first = loop.taken.fetch_add(piece, std::memory_order_relaxed);
            if (first >= count) break;
            const int64_t last = std::min(first + piece, count);
            for (int64_t i = first; i < last; i++) body(i);
            loop.done.fetch_add(last - first, std::memory_order_release);
        }
        wait_until([&] { return loop.done.load(std::memory_order_acquire) >= count; });
    }

    float* common = nullptr;  // memory that one thread has got for all, in the call that runs

private:
    struct alignas(64) Loop {
        std::atomic<int64_t> taken{0}, done{0};
    };
    std::vector<Loop> loops;
};

// What a thread is while it runs in a team.
struct Member {
    Team* team = nullptr;
    int64_t loop = 0;  // number of the next one

    template <class Body> void share(int64_t count, int64_t piece, const Body& body) {
        team->share(loop++, count, piece, body);
    }
};
inline thread_local Member member;

// Two let a thread that another process holds up hand over what it has not begun; eight cost 5 to 15 % at 16 rows.
constexpr int64_t PIECES_PER_THREAD = 2;
// About a millisecond of a prompt's products: longer pieces wait for a thread that is held up more than they save.
constexpr int64_t MOST_ELEMENTS_PER_PIECE = 1 << 24;

// body(i) for i in [0, count), each `elements` of work, in pieces. Results must not depend on who does which.
template <class Body> inline void for_rows(int64_t count, int64_t elements, int threads, const Body& body) {
    const bool alone = count * elements / ELEMENTS_PER_THREAD <= 1;
    int64_t piece = count;
    if (!alone) piece = std::min(count / (PIECES_PER_THREAD * threads), MOST_ELEMENTS_PER_PIECE / elements);
    piece = std::max<int64_t>(1, piece);
    if (member.team) return member.share(count, piece, body);
    if (alone || threads <= 1) {
        for (int64_t i = 0; i < count; i++) body(i);
        return;
    }
    // always the whole team: the runtime ends the threads that a smaller one leaves over, and starts them again after it
#pragma omp parallel for num_threads(threads) schedule(dynamic, piece)
    for (int64_t i = 0; i < count; i++) body(i);
}

// body(i) for i in [0, count), each taken by the thread that is free: for items of unequal and large work.
template <class Body> inline void for_items(int64_t count, int threads, const Body& body) {
    if (member.team) return member.share(count, 1, body);
    if (threads <= 1 || count <= 1) {
        for (int64_t i = 0; i < count; i++) body(i);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) body(i);
}

// body(), which writes what others read, by one thread.
template <class Body> inline void once(const Body& body) {
    if (member.team) member.share(1, 1, [&](int64_t) { body(); });
    else body();
}

// calls() by `threads` threads together; they make at most `most_loops` loops.
template <class Calls> inline void together(int threads, int64_t most_loops, const Calls& calls) {
    if (threads <= 1) return calls();
    Team team(most_loops);
#pragma omp parallel num_threads(threads)
    {
        member = {&team, 0};
        calls();
        member = {};
    }
}

}  // namespace quire
