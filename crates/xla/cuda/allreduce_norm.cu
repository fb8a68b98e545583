// One-shot all-reduce, post-norm, residual and RMSNorm among GPUs, of one process or of several, in one kernel.
//
// What is computed, and where it is rounded, is docs/explanation/collective.md's; the protocol and why it suffices is docs/explanation/cuda.md.
// ALIGHT_HOST makes C++17 of it, with emulated/shim.h before it: the same text is run by threads on a CPU, where the protocol is
// tested. What the two have each of their own is the first section, and that of gpu.h.
//
// Macros choose the one kernel `alight_allreduce_norm`: ALIGHT_ELEMENT and ALIGHT_WEIGHT (Bf16, F16, F32), ALIGHT_VECTORS (1,
// 2, 4: vectors of 16 bytes per thread), ALIGHT_WHOLE (rows of all arrays begin at multiples of 16 bytes) and ALIGHT_POST
// (there is a post-norm). ALIGHT_DELAYS lets a test hold a rank up. ALIGHT_NO_WAIT, ALIGHT_ONE_BUFFER, ALIGHT_NO_RELEASE and
// ALIGHT_EARLY_FLAG break the protocol: a test that does not fail with them shows nothing.

#include "gpu.h"

// --- what a GPU and the emulation do differently --------------------------------------------------------------------

#ifndef ALIGHT_HOST
#define KERNEL(name, element, weight, vectors, whole, post)                                                            \
    extern "C" __global__ void __launch_bounds__(640, 1)  name(const __grid_constant__ Params p) {                     \
        allreduce_norm<element, weight, vectors, whole, post>(p);                                                      \
    }

// All words that ranks share are accessed at system scope: a peer is another GPU.
DEVICE u64 load_relaxed(const u64* at) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}
DEVICE u64 load_acquire(const u64* at) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}
DEVICE void store_relaxed(u64* at, u64 v) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
DEVICE void store_release(u64* at, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
DEVICE u64 exchange(u64* at, u64 v) {
    u64 old;
    asm volatile("atom.relaxed.gpu.global.exch.b64 %0, [%1], %2;" : "=l"(old) : "l"(at), "l"(v) : "memory");
    return old;
}
DEVICE void add(u64* at, u64 v) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}
DEVICE void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
// Nanoseconds; it advances in steps of up to a microsecond.
DEVICE u64 now() {
    u64 v;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
    return v;
}
DEVICE void pause() {}
DEVICE bool barrier_or(bool x) { return __syncthreads_or(x) != 0; }
#endif

// --- what host and kernel share -------------------------------------------------------------------------------------

// Most ranks, most blocks of a grid. crates/xla/src/cuda/kernel.rs says the same.
enum { RANKS = 16, BLOCKS = 64 };
// By how much `Workspace::done` grows in a call: more than any grid has blocks.
constexpr u64 CALL = 1024;

// What lies in front of a rank's workspace, in its GPU's memory. Zeros at first.
struct Workspace {
    u64 done;                   // CALL for every call that has ended, and less for one that is ending
    u64 poison;                 // not 0: no call passes any more
    u64 started[BLOCKS];        // the last call that a block has begun
    u64 arrived[RANKS][BLOCKS]; // by the peers: the last call whose operand is here, by rank and block
    // then 2 buffers of `ranks` slots of `slot` bytes: the operands of the peers
};

struct Params {
    u64 workspace[RANKS];     // addresses of the ranks' workspaces
    u64 partial, residual;    // [rows, hidden]
    u64 weight, post_weight;  // [hidden]
    u64 normed, new_residual; // [rows, hidden]
    u64 report;               // u64[2][ranks] in the host's memory: a rank's error, or 0; whether it has passed no more, for whatever reason
    u64 index;                // of an s32 on the device, the rank's place as the program has it, or 0
    u64 slot;                 // bytes of a slot, a multiple of 16
    u64 limit;                // nanoseconds to wait at most
    u64 stride;               // bytes from a rank's arrays to the next one's, if one GPU plays several (gridDim.y)
    u64 delay;                // nanoseconds (tests only)
    double inverse_hidden;    // 1 / hidden
    u32 rank, ranks, rows, hidden;
    u32 delay_rank, delay_phase;
    float bias, epsilon;
    u32 place, reserved; // what is expected at `index`
};

// Errors, in the highest byte of a report; then the missing rank, the block (16 bits) and the call (32 bits).
enum { TIMED_OUT = 1, IN_FLIGHT = 2, MISPLACED = 4 };
// What is none.
enum { ARRIVED = 0, POISONED = 3 };

// --- rows -----------------------------------------------------------------------------------------------------------

// The elements of vector `i` of a row at `row`; zeros behind its end.
template <class T, bool WHOLE>
DEVICE Vec load(const Params& p, const char* row, u32 i) {
    if (WHOLE) return load16(row + 16ull * i);
    Vec v = {{0, 0, 0, 0}};
    const typename T::Raw* at = reinterpret_cast<const typename T::Raw*>(row);
    UNROLL for (int e = 0; e < Of<T>::VEC; e++) {
        u32 k = i * Of<T>::VEC + e;
        if (k < p.hidden) v.word[e / T::PER_WORD] |= static_cast<u32>(at[k]) << (e % T::PER_WORD * 16);
    }
    return v;
}

template <class T, bool WHOLE>
DEVICE void store(const Params& p, char* row, u32 i, Vec v) {
    if (WHOLE) return store16(row + 16ull * i, v);
    typename T::Raw* at = reinterpret_cast<typename T::Raw*>(row);
    UNROLL for (int e = 0; e < Of<T>::VEC; e++) {
        u32 k = i * Of<T>::VEC + e;
        if (k < p.hidden) at[k] = static_cast<typename T::Raw>(v.word[e / T::PER_WORD] >> (e % T::PER_WORD * 16));
    }
}

// bias + weight, of the elements of vector `i` of a row of T.
template <class T, class W, bool WHOLE>
DEVICE void load_weights(const Params& p, u64 weight, u32 i, float* x) {
    constexpr int PARTS = Of<T>::VEC / Of<W>::VEC;
    UNROLL for (int part = 0; part < PARTS; part++) {
        widen<W>(load<W, WHOLE>(p, reinterpret_cast<const char*>(weight), i * PARTS + part), x + part * Of<W>::VEC);
    }
    UNROLL for (int e = 0; e < Of<T>::VEC; e++) x[e] = p.bias + x[e];
}

// --- the protocol ---------------------------------------------------------------------------------------------------

DEVICE Workspace* workspace(const Params& p, u32 rank) { return reinterpret_cast<Workspace*>(p.workspace[rank]); }

// Where rank `from` puts its operand, in the workspace of rank `to`.
DEVICE char* staging(const Params& p, u32 to, u32 from, u32 buffer) {
    return reinterpret_cast<char*>(p.workspace[to]) + sizeof(Workspace) + (u64(buffer) * p.ranks + from) * p.slot;
}

// Tells the host, and lets no rank pass any more.
DEVICE void fail(const Params& p, u32 rank, u64 error, u64 missing, u64 block, u64 call) {
    u64 report = error << 56 | missing << 48 | block << 32 | (call / CALL & 0xffffffffu);
    store_release(reinterpret_cast<u64*>(p.report) + rank, report);
    UNROLL_NOT for (u32 q = 0; q < p.ranks; q++) store_relaxed(&workspace(p, q)->poison, 1);
}

// Waits until `other` has arrived at this call, or at the next one, which it may have begun.
DEVICE u32 wait(const Params& p, u32 rank, u32 other, u32 block, u64 call) {
    const Workspace* own = workspace(p, rank);
    u64 start = 0;
    for (u32 turn = 0;; turn++) {
        if (static_cast<i64>(load_acquire(&own->arrived[other][block]) - call) >= 0) return ARRIVED;
        if (turn % 32 == 0) {
            if (load_relaxed(&own->poison) != 0) return POISONED;
            u64 time = now();
            if (start == 0) start = time;
            if (time - start > p.limit) return TIMED_OUT;
        }
        pause();
    }
}

// The last thread comes late: that of another warp than the one that tells the peers.
DEVICE void held_up(const Params& p, u32 rank, u32 phase) {
#ifdef ALIGHT_DELAYS
    if (threadIdx.x == blockDim.x - 1 && p.delay != 0 && p.delay_rank == rank && p.delay_phase == phase) {
        for (u64 start = now(); now() - start < p.delay;) pause();
    }
#endif
}

// 1 / sqrt(mean of squares + epsilon), in f64, rounded to f32 once: the same on all threads of the block.
DEVICE float inverse(const Params& p, double squares, double* partials, u32 threads) {
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = squares;
    barrier();
    u32 lane = threadIdx.x % 32;
    squares = warp_sum(lane < (threads + 31) / 32 ? partials[lane] : 0.0);
    return static_cast<float>(rsqrt(squares * p.inverse_hidden + static_cast<double>(p.epsilon)));
}

// A square of an f32 is exact in f64, so that this rounds once, as a multiplication and an addition would.
template <class T>
DEVICE double square(double squares, Vec v) {
    float x[Of<T>::VEC];
    widen<T>(v, x);
    UNROLL for (int e = 0; e < Of<T>::VEC; e++) {
        squares = fma(static_cast<double>(x[e]), static_cast<double>(x[e]), squares);
    }
    return squares;
}

// round(v · scale · (bias + weight)), each operation rounded to f32.
template <class T, class W, bool WHOLE>
DEVICE Vec normalised(const Params& p, Vec v, float scale, u64 weight, u32 i) {
    float x[Of<T>::VEC], w[Of<T>::VEC];
    widen<T>(v, x);
    load_weights<T, W, WHOLE>(p, weight, i, w);
    UNROLL for (int e = 0; e < Of<T>::VEC; e++) x[e] = x[e] * scale * w[e];
    return narrow<T>(x);
}

// round(residual + v).
template <class T, bool WHOLE>
DEVICE Vec added(const Params& p, Vec v, const char* residual, u32 i) {
    float x[Of<T>::VEC], r[Of<T>::VEC];
    widen<T>(v, x);
    widen<T>(load<T, WHOLE>(p, residual, i), r);
    UNROLL for (int e = 0; e < Of<T>::VEC; e++) x[e] = r[e] + x[e];
    return narrow<T>(x);
}

// round(x₀ + x₁ + …) in the order of the ranks. Loads of eight ranks are under way at once.
template <class T, bool WHOLE>
DEVICE Vec summed(const Params& p, u32 rank, u32 buffer, const char* partial, u64 row, u32 i) {
    // Adding to it changes no number, not even a zero's sign.
    float sum[Of<T>::VEC];
    UNROLL for (int e = 0; e < Of<T>::VEC; e++) sum[e] = -0.0f;
    constexpr u32 AT_ONCE = WHOLE ? 8 : 1;
    UNROLL_NOT for (u32 base = 0; base < p.ranks; base += AT_ONCE) {
        Vec part[AT_ONCE];
        UNROLL for (u32 j = 0; j < AT_ONCE; j++) {
            u32 from = base + j;
            if (from < p.ranks) {
                part[j] = load<T, WHOLE>(p, from == rank ? partial : staging(p, rank, from, buffer) + row, i);
            }
        }
        UNROLL for (u32 j = 0; j < AT_ONCE; j++) {
            if (base + j >= p.ranks) break;
            float x[Of<T>::VEC];
            widen<T>(part[j], x);
            UNROLL for (int e = 0; e < Of<T>::VEC; e++) sum[e] = sum[e] + x[e];
        }
    }
    return narrow<T>(sum);
}

// gridDim.x blocks share the rows; gridDim.y is the number of ranks that this GPU plays, usually one.
template <class T, class W, int VECTORS, bool WHOLE, bool POST>
DEVICE void allreduce_norm(const Params& p) {
    SHARED(double, partials, [2][32]);
    const u32 thread = threadIdx.x, threads = blockDim.x, block = blockIdx.x, blocks = gridDim.x;
    const u32 rank = p.rank + blockIdx.y;
    const u64 shift = blockIdx.y * p.stride;
    const char* partial = reinterpret_cast<const char*>(p.partial + shift);
    const char* residual = reinterpret_cast<const char*>(p.residual + shift);
    char* normed = reinterpret_cast<char*>(p.normed + shift);
    char* new_residual = reinterpret_cast<char*>(p.new_residual + shift);
    const u64 pitch = u64(p.hidden) * sizeof(typename T::Raw);
    const u32 vectors = (p.hidden + Of<T>::VEC - 1) / Of<T>::VEC;
    Workspace* own = workspace(p, rank);

    // The number of this call, a multiple of CALL: the same for every block of it, since `done` reaches it when all have ended.
    const u64 call = (load_relaxed(&own->done) & ~(CALL - 1)) + CALL;
    bool failed = load_relaxed(&own->poison) != 0;
    u32 error = 0, missing = rank; // what this thread finds
#ifdef ALIGHT_ONE_BUFFER
    const u32 buffer = 0;
#else
    const u32 buffer = call / CALL & 1;
#endif

    // 1. The operand goes to all peers, beginning with the next one, so that they are not all written to in the same order.
    held_up(p, rank, 0);
    if (!failed) {
        UNROLL_NOT for (u32 row = block; row < p.rows; row += blocks) {
            UNROLL_NOT for (u32 i = thread; i < vectors; i += threads) {
                Vec v = load<T, WHOLE>(p, partial + row * pitch, i);
                for (u32 q = 1; q < p.ranks; q++) {
                    u32 to = rank + q < p.ranks ? rank + q : rank + q - p.ranks;
                    store<T, WHOLE>(p, staging(p, to, rank, buffer) + row * pitch, i, v);
                }
            }
        }
#ifdef ALIGHT_EARLY_FLAG
        UNROLL_NOT for (u32 q = thread; q < p.ranks; q += threads) {
            if (q != rank) store_release(&workspace(p, q)->arrived[rank][block], call);
        }
#endif
    }
    // What is needed after the wait comes near meanwhile.
    if (WHOLE) {
        UNROLL_NOT for (u32 i = thread; i < vectors; i += threads) {
            prefetch(residual + block * pitch + 16ull * i);
            prefetch(reinterpret_cast<const char*>(p.weight) + 16ull * i * (sizeof(typename W::Raw) / sizeof(typename T::Raw)));
        }
    }
    held_up(p, rank, 1);
    if (thread == 0 && exchange(&own->started[block], call) == call) {
        error = IN_FLIGHT;
    }
    if (thread == 0 && error == 0 && p.index != 0 && *reinterpret_cast<const u32*>(p.index) != p.place) error = MISPLACED;

    // 2. All threads have written; one for each peer says so, at system scope, and waits for the peer's.
    failed = barrier_or(failed || error != 0);
    if (!failed) {
#ifndef ALIGHT_EARLY_FLAG
        UNROLL_NOT for (u32 q = thread; q < p.ranks; q += threads) {
            if (q == rank) continue;
#ifdef ALIGHT_NO_RELEASE
            store_relaxed(&workspace(p, q)->arrived[rank][block], call);
#else
            store_release(&workspace(p, q)->arrived[rank][block], call);
#endif
        }
#endif
#ifndef ALIGHT_NO_WAIT
        UNROLL_NOT for (u32 q = thread; q < p.ranks; q += threads) {
            if (q == rank || error != 0) continue;
            error = wait(p, rank, q, block, call);
            missing = q;
        }
#endif
    }
    if (error == TIMED_OUT || error == IN_FLIGHT || error == MISPLACED) fail(p, rank, error, missing, block, call);
    failed = barrier_or(failed || error != 0);
    // Who gave up may be of another process, whose report this one's host does not see.
    if (failed && thread == 0) store_relaxed(reinterpret_cast<u64*>(p.report) + p.ranks + rank, 1);
    held_up(p, rank, 2);

    // 3. Every rank computes everything for itself. After an error the rows are not a number, so that nobody takes them for
    // results, also where a graph is replayed and no host looks.
    u32 turn = 0;
    UNROLL_NOT for (u32 row = block; row < p.rows; row += blocks) {
        const u64 at = row * pitch;
        if (failed) {
            Vec none;
            UNROLL for (int i = 0; i < 4; i++) {
                none.word[i] = T::PER_WORD == 2 ? T::NOT_A_NUMBER * 0x10001u : T::NOT_A_NUMBER;
            }
            UNROLL_NOT for (u32 i = thread; i < vectors; i += threads) {
                store<T, WHOLE>(p, normed + at, i, none);
                store<T, WHOLE>(p, new_residual + at, i, none);
            }
            continue;
        }
        // Always what has been rounded: first the sum, then the new residual.
        Vec v[VECTORS];
        double squares = 0.0;
        UNROLL for (int k = 0; k < VECTORS; k++) {
            const u32 i = thread + k * threads;
            if (i < vectors) v[k] = summed<T, WHOLE>(p, rank, buffer, partial + at, at, i);
        }
        UNROLL for (int k = 0; k < VECTORS; k++) {
            const u32 i = thread + k * threads;
            if (i < vectors) {
                if (!POST) {
                    v[k] = added<T, WHOLE>(p, v[k], residual + at, i);
                    store<T, WHOLE>(p, new_residual + at, i, v[k]);
                }
                squares = square<T>(squares, v[k]);
            }
        }
        if (POST) {
            const float scale = inverse(p, squares, partials[turn++ & 1], threads);
            squares = 0.0;
            UNROLL for (int k = 0; k < VECTORS; k++) {
                const u32 i = thread + k * threads;
                if (i < vectors) {
                    v[k] = added<T, WHOLE>(p, normalised<T, W, WHOLE>(p, v[k], scale, p.post_weight, i), residual + at, i);
                    store<T, WHOLE>(p, new_residual + at, i, v[k]);
                    squares = square<T>(squares, v[k]);
                }
            }
        }
        const float scale = inverse(p, squares, partials[turn++ & 1], threads);
        UNROLL for (int k = 0; k < VECTORS; k++) {
            const u32 i = thread + k * threads;
            if (i < vectors) store<T, WHOLE>(p, normed + at, i, normalised<T, W, WHOLE>(p, v[k], scale, p.weight, i));
        }
    }

    // 4. The block has ended. With the last one `done` has grown by CALL, without anybody having to wait for an answer.
    held_up(p, rank, 3);
    if (thread == 0) add(&own->done, block == 0 ? CALL - (blocks - 1) : 1);
}

#ifndef ALIGHT_HOST
KERNEL(alight_allreduce_norm, ALIGHT_ELEMENT, ALIGHT_WEIGHT, ALIGHT_VECTORS, ALIGHT_WHOLE, ALIGHT_POST)
#endif
