// What the kernel needs of a GPU, on a CPU: a block is an OS thread, its threads are fibres of that, and what ranks share are
// atomics. Fibres run one after the other between barriers, forwards and backwards in turn, so that a missing barrier shows.
// With ALIGHT_NO_FIBRES a block has one thread, and a thread sanitizer sees all accesses.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sched.h>
#include <vector>

#define ALIGHT_HOST
#define DEVICE static inline
#define DEVICE_MEMBER inline
#define UNROLL
#define UNROLL_NOT
#define SHARED(type, name, size) static thread_local type name size

struct Index {
    unsigned x, y;
};

struct Fibre {
    jmp_buf place;
    ucontext_t start;
    std::unique_ptr<char[]> stack;
    bool ended;
    struct Copy {
        char* to;
        const char* from;
        unsigned bytes;
    };
    std::vector<Copy> copies;   // that have not come yet
    std::vector<size_t> groups; // where they end among them
};

// A block that is running, on its OS thread.
struct Block {
    Index thread, block, threads, blocks;
    void (*run)(void*);
    void* argument;
    std::vector<Fibre> fibres;
    jmp_buf scheduler;
    bool any, any_before; // of `barrier_or`: what is being gathered, and the last result
    double exchange[1024];
    unsigned at_barrier;
};

inline thread_local Block* block_here = nullptr;
#define threadIdx (block_here->thread)
#define blockIdx (block_here->block)
#define blockDim (block_here->threads)
#define gridDim (block_here->blocks)

inline void run_fibre() {
    Block* b = block_here;
    b->run(b->argument);
    b->fibres[b->thread.x].ended = true;
    _longjmp(b->scheduler, 1);
}

// Runs a block to its end.
inline void run_block(Block& b) {
    block_here = &b;
#ifdef ALIGHT_NO_FIBRES
    b.thread = {0, 0};
    b.run(b.argument);
#else
    constexpr size_t STACK = 64 * 1024;
    if (b.fibres.size() < b.threads.x) b.fibres.resize(b.threads.x);
    const int threads = static_cast<int>(b.threads.x);
    b.any = b.any_before = false;
    for (int pass = 0;; pass++) {
        int ended = 0;
        b.at_barrier = 0;
        for (int n = 0; n < threads; n++) {
            const int i = pass % 2 == 0 ? n : threads - 1 - n;
            Fibre& f = b.fibres[i];
            b.thread = {static_cast<unsigned>(i), 0};
            if (_setjmp(b.scheduler) == 0) {
                if (pass == 0) {
                    if (!f.stack) f.stack.reset(new char[STACK]);
                    f.ended = false;
                    f.copies.clear();
                    f.groups.clear();
                    getcontext(&f.start);
                    f.start.uc_stack.ss_sp = f.stack.get();
                    f.start.uc_stack.ss_size = STACK;
                    f.start.uc_link = nullptr;
                    makecontext(&f.start, run_fibre, 0);
                    setcontext(&f.start);
                }
                _longjmp(f.place, 1);
            }
            if (b.fibres[b.thread.x].ended) ended++;
        }
        if (ended == threads) break;
        if (ended != 0) {
            fprintf(stderr, "a barrier is not reached by all threads of the block\n");
            abort();
        }
        b.any_before = b.any;
        b.any = false;
    }
#endif
    block_here = nullptr;
}

static inline void barrier() {
#ifndef ALIGHT_NO_FIBRES
    Block* b = block_here;
    if (_setjmp(b->fibres[b->thread.x].place) == 0) _longjmp(b->scheduler, 1);
#endif
}

static inline bool barrier_or(bool x) {
#ifdef ALIGHT_NO_FIBRES
    return x;
#else
    Block* b = block_here;
    b->any |= x;
    barrier();
    return b->any_before;
#endif
}

// As the kernel does it: i and i + 16, then i and i + 8, …
template <class T>
static inline T warp_sum(T x) {
#ifdef ALIGHT_NO_FIBRES
    return x;
#else
    Block* b = block_here;
    const unsigned i = b->thread.x, warp = i / 32 * 32;
    b->exchange[i] = x;
    barrier();
    T all[32];
    for (int k = 0; k < 32; k++) all[k] = static_cast<T>(b->exchange[warp + k]);
    for (int half = 16; half > 0; half /= 2) {
        for (int k = 0; k < half; k++) all[k] += all[k + half];
    }
    barrier();
    return all[0];
#endif
}

#ifndef ALIGHT_NO_FIBRES
// All barriers are the block's here.
static inline void warp_barrier() { barrier(); }

// What a thread has begun to copy comes when it waits for it, and not before: until then there are other bytes, not a number.
static inline void copy16(char* to, unsigned long long from, unsigned bytes = 16) {
    if (reinterpret_cast<size_t>(to) % 16 != 0 || from % 16 != 0) {
        fprintf(stderr, "a copy of 16 bytes that does not begin at a multiple of 16\n");
        abort();
    }
    memset(to, 0xff, 16);
    block_here->fibres[block_here->thread.x].copies.push_back({to, reinterpret_cast<const char*>(from), bytes});
}
static inline void group_copies() {
    Fibre& f = block_here->fibres[block_here->thread.x];
    f.groups.push_back(f.copies.size());
}
template <int LATER>
static inline void wait_copies() {
    Fibre& f = block_here->fibres[block_here->thread.x];
    if (f.groups.size() <= LATER) return;
    const size_t done = f.groups.size() - LATER, copies = f.groups[done - 1];
    for (size_t i = 0; i < copies; i++) {
        memset(f.copies[i].to, 0, 16);
        memcpy(f.copies[i].to, f.copies[i].from, f.copies[i].bytes);
    }
    f.copies.erase(f.copies.begin(), f.copies.begin() + copies);
    f.groups.erase(f.groups.begin(), f.groups.begin() + done);
    for (size_t& end : f.groups) end -= copies;
}
#endif

// As much as a multiprocessor has. It begins as numbers that are none.
constexpr size_t SHARED_BYTES = 227 * 1024;
alignas(16) inline thread_local char shared_rest[SHARED_BYTES];
#define SHARED_REST(name) char* name = shared_rest

struct alignas(16) Vec {
    unsigned word[4];
};

static inline Vec load16(const void* at) { return *static_cast<const Vec*>(at); }
static inline void store16(void* at, Vec v) { *static_cast<Vec*>(at) = v; }

typedef unsigned long long word;
static inline word load_relaxed(const word* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
static inline word load_acquire(const word* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static inline void store_relaxed(word* at, word v) { __atomic_store_n(at, v, __ATOMIC_RELAXED); }
static inline void store_release(word* at, word v) { __atomic_store_n(at, v, __ATOMIC_RELEASE); }
static inline word exchange(word* at, word v) { return __atomic_exchange_n(at, v, __ATOMIC_RELAXED); }
static inline void add(word* at, word v) { __atomic_fetch_add(at, v, __ATOMIC_RELAXED); }
static inline void prefetch(const void*) {}
static inline word now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// Ranks share cores here.
static inline void pause() { sched_yield(); }
static inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
using std::fma;

static inline unsigned bits(float x) {
    unsigned v;
    memcpy(&v, &x, 4);
    return v;
}
static inline float number(unsigned x) {
    float v;
    memcpy(&v, &x, 4);
    return v;
}

static inline unsigned funnel(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<word>(high) << 32 | low) >> shift % 32);
}
static inline unsigned masked(unsigned x, unsigned mask, unsigned more) { return (x & mask) | more; }
static inline unsigned permute(unsigned low, unsigned high, unsigned which) {
    const word both = static_cast<word>(high) << 32 | low;
    unsigned v = 0;
    for (int i = 0; i < 4; i++) v |= static_cast<unsigned>(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return v;
}

static inline unsigned to_bf16(float x) {
    const unsigned v = bits(x);
    if (x != x) return 0x7fff;
    return (v + 0x7fff + (v >> 16 & 1)) >> 16;
}
static inline unsigned pack_bf16(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }

// Numbers of f16 are multiples of 2^-24.
static inline float from_f16(unsigned x) {
    const unsigned exponent = x >> 10 & 31, fraction = x & 0x3ff;
    float v = exponent == 31 ? (fraction ? NAN : INFINITY)
        : exponent == 0      ? std::ldexp(static_cast<float>(fraction), -24)
                             : std::ldexp(static_cast<float>(fraction | 0x400), static_cast<int>(exponent) - 25);
    return x & 0x8000 ? -v : v;
}
static inline unsigned to_f16(float x) {
    const unsigned sign = bits(x) >> 16 & 0x8000;
    if (x != x) return 0x7fff;
    const float size = std::fabs(x);
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size == 0.0f) return sign;
    int exponent = 0;
    std::frexp(size, &exponent);
    // The distance of neighbours: 11 digits, and at least 2^-24. nearbyint rounds to nearest, ties to even.
    const int unit = exponent - 11 < -24 ? -24 : exponent - 11;
    const unsigned count = static_cast<unsigned>(std::nearbyint(std::ldexp(size, -unit)));
    if (unit == -24) return sign | count;
    // A count of 2048 carries into the exponent, as it should.
    return sign | ((static_cast<unsigned>(unit + 25) << 10) + (count - 1024));
}
static inline unsigned pack_f16(float low, float high) { return to_f16(low) | to_f16(high) << 16; }
