// Matrices as the blocks of a model file, as they lie there: products with up to 8 tokens, and rows as floats.
//
// `matvec`: y[t, r] = Σ W[r, c] · x[t, c]. A warp has a few rows of W. It goes through them 1024 columns at a time, of which each lane
// has 32, whose blocks come into shared memory by asynchronous copies of 16 bytes, several steps ahead: blocks of 17, 18 or 34 bytes begin
// anywhere, and what is copied is what lies side by side. x is there as f32, with gaps that let 8 lanes read 16 bytes each from other
// banks. Codes become floats exactly and are multiplied by fused multiply-adds; a lane sums those with one scale, multiplies the sum by the
// scale, and with an offset adds it times the sum of x. In the end the lanes are summed pairwise.
//
// **Invariant:** the order of a sum depends on the type and the number of columns alone: not on how many tokens, rows of a warp, warps of a
// block or columns of x at a time there are. So a token's bits are the same alone and beside others.
//
// `chosen`: the same for pairs of a token and a matrix, of which a table says in which slot it is. The sums of a pair are those of `matvec`.
// Who says the pairs is a type: the host lists them, and the table is where each matrix is now (`Listed`); or the table is the choice itself, an
// array that a kernel before has written, so that all of it may be in a graph (`Counted`).
//
// `dequantize`: W[r, c] as crates/kernels computes it, a product and at most one sum, each rounded to f32; then rounded to its type.
//
// Macros choose the one kernel: ALIGHT_TYPE (Q4_0, …), and for `alight_matvec` ALIGHT_X (Bf16, F32) and ALIGHT_TOKENS (1, 2, 4, 8), for
// `alight_chosen` ALIGHT_X and ALIGHT_CHOSEN (Listed, Counted), for `alight_dequantize` ALIGHT_OUT (Bf16, F32). ALIGHT_NO_WAIT, ALIGHT_SWAPPED,
// ALIGHT_BY_TOKENS, and of `chosen` ALIGHT_ANY_SLOT and ALIGHT_ONE_X are mistakes: a test that does not fail with them shows nothing. The sizes are
// those of crates/xla/src/cuda/blocks.rs.

#include "gpu.h"

typedef unsigned char u8;

// --- what a GPU and the emulation do differently --------------------------------------------------------------------

#ifndef ALIGHT_HOST
#define SHARED_REST(name) extern __shared__ __align__(16) char name[]

// Copies 16 bytes to shared memory, later. Of `bytes` fewer are read, and the others are zeros.
DEVICE void copy16(char* to, u64 from, u32 bytes = 16) {
    const u32 at = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
// What this thread has begun to copy since the last one is a group.
DEVICE void group_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's groups but for the last `LATER`.
template <int LATER>
DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}
DEVICE void warp_barrier() { __syncwarp(); }
// The lower 32 bits of two words, moved down by `shift` % 32 bits.
DEVICE u32 funnel(u32 low, u32 high, u32 shift) { return __funnelshift_r(low, high, shift); }
// (word & mask) | more, in one instruction: the compiler makes two of it where both are constants.
DEVICE u32 masked(u32 word, u32 mask, u32 more) {
    u32 v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(word), "r"(mask), "r"(more));
    return v;
}
// Four of the eight bytes of two words, chosen by the four lowest nibbles of `which`.
DEVICE u32 permute(u32 low, u32 high, u32 which) { return __byte_perm(low, high, which); }
#endif

// --- what host and kernel share -------------------------------------------------------------------------------------

// Columns that a warp takes at a time: 32 of each lane, in 8 chunks of 4 that lie side by side.
constexpr u32 STEP = 1024;
constexpr int CHUNKS = 8;
// Floats of a gap in x. It has the sums of x over each 16 columns before it, for types with offsets.
constexpr u32 GAP = 4;

struct Params {
    u64 matrix;    // u8[rows, row_bytes], from a multiple of 16 bytes on
    u64 x;         // [tokens, columns], likewise
    u64 y;         // f32[tokens, rows]; of `dequantize`, [rows, columns]
    u64 row_bytes;
    u32 rows, columns, tokens;
    u32 panel;     // columns of x that are in shared memory at a time, a multiple of STEP
};

struct Pair {
    u32 piece; // of the table
    u32 x, y;  // rows of x and of y
};

// Matrices in slots.
struct Stack {
    Params dense;  // with one token; the matrix is that of slot 0, from a multiple of 16 bytes on
    u64 table;     // i32[pieces]: the slot of each
    u64 stride;    // from a slot to the next, whole rows: a matrix begins where a row may
    u32 slots, pieces;
};

// Pairs of the host's, of which a launch has so many at most. A matrix that should be in a slot and is not makes no numbers, so that it is seen.
constexpr u32 PAIRS = 64;
struct Listed {
    static constexpr u32 NOWHERE = F32::NOT_A_NUMBER;
    Stack stack;
    Pair pair[PAIRS];
    DEVICE_MEMBER Pair at(u32 number) const { return pair[number]; }
};

// A pair for each piece, of which `share` that follow one another have one row of x. A matrix in no slot is another rank's: it makes zeros.
struct Counted {
    static constexpr u32 NOWHERE = 0;
    Stack stack;
    u32 share;
    DEVICE_MEMBER Pair at(u32 number) const {
#ifdef ALIGHT_ONE_X
        return {number, 0, number};
#else
        return {number, number / share, number};
#endif
    }
};

// Rows that a warp computes at once, which share what is read of x; the most warps of a block, and blocks of a multiprocessor. With more
// tokens there are fewer warps, with more registers each.
template <int TOKENS>
struct Warps {
    static constexpr int ROWS = TOKENS < 4 ? 2 : 4, MOST = TOKENS < 4 ? 8 : 4, BLOCKS = TOKENS < 4 ? 3 : 2;
};

// --- codes to floats ------------------------------------------------------------------------------------------------

// The low nibble of each byte, less `zero`. A code in the mantissa of a power of two is that plus the code, and the difference is exact.
DEVICE void nibbles(u32 word, float zero, float* q) {
    q[0] = number(masked(word, 0xf, 0x4b000000)) - (8388608.0f + zero);
    q[1] = number(masked(word, 0xf00, 0x47000000)) - (32768.0f + zero);
    q[2] = number(masked(word, 0xf0000, 0x43000000)) - (128.0f + zero);
    q[3] = number(masked(word >> 8, 0xf0000, 0x43000000)) - (128.0f + zero);
}

// Byte `i`, less `zero`.
DEVICE float byte(u32 word, u32 i, float zero) {
    return number(permute(word, 0x4b000000u, 0x7440u + i)) - (8388608.0f + zero);
}

DEVICE void bytes(u32 word, float zero, float* q) {
    UNROLL for (u32 i = 0; i < 4; i++) q[i] = byte(word, i, zero);
}

// `COUNT` words from byte `at` on, behind a multiple of 4 bytes; the word behind them is read too.
template <int COUNT>
DEVICE void unaligned(const char* place, u32 at, u32* words) {
    const u32* from = reinterpret_cast<const u32*>(place + (at & ~3u));
    const u32 shift = at % 4 * 8;
    u32 low = from[0];
    UNROLL for (int i = 0; i < COUNT; i++) {
        const u32 high = from[i + 1];
        words[i] = funnel(low, high, shift);
        low = high;
    }
}

DEVICE float half_at(const char* at) { return from_f16(*reinterpret_cast<const u16*>(at)); }

// --- block types ----------------------------------------------------------------------------------------------------

// What a lane has of a block: 32 weights, `scale(g) · (code − zero) + offset(g)`, in GROUPS groups of as many chunks.
//
// `LANES` lanes share a block of `BLOCK` weights in `BYTES` bytes. The columns of `lane` begin at `first(lane)`; chunk `c` lies `at(c)` behind
// that. Behind each RUN columns x has a gap, and a lane's columns are within one run. Formulas: crates/kernels/src/blocks.

// Blocks of 32 weights: each is one lane's.
struct Small {
    static constexpr u32 BLOCK = 32, LANES = 1, RUN = 32;
    static constexpr int GROUPS = 1;
    static constexpr bool OFFSETS = false;
    static DEVICE_MEMBER u32 first(u32) { return 0; }
    static DEVICE_MEMBER u32 at(int chunk) { return 4 * chunk; }
    float d;
    DEVICE_MEMBER float scale(int) const { return d; }
};

// Byte `j` of 16 has the codes of columns `j` (low) and `j + 16` (high).
struct Nibbles32 : Small {
    u32 q[4];
    DEVICE_MEMBER void decode(int chunk, float zero, float* codes) const {
#ifdef ALIGHT_SWAPPED
        chunk ^= 4;
#endif
        nibbles(chunk < 4 ? q[chunk] : q[chunk - 4] >> 4, zero, codes);
    }
};

struct Q4_0 : Nibbles32 {
    static constexpr u32 BYTES = 18;
    DEVICE_MEMBER void load(const char* place, u32 at, u32) {
        d = half_at(place + at);
        unaligned<4>(place, at + 2, q);
    }
    DEVICE_MEMBER void codes(int chunk, float* out) const { decode(chunk, 8.0f, out); }
};

struct Q4_1 : Nibbles32 {
    static constexpr u32 BYTES = 20;
    static constexpr bool OFFSETS = true;
    float m;
    DEVICE_MEMBER void load(const char* place, u32 at, u32) {
        const u32* words = reinterpret_cast<const u32*>(place + at);
        d = from_f16(words[0] & 0xffffu);
        m = from_f16(words[0] >> 16);
        UNROLL for (int i = 0; i < 4; i++) q[i] = words[i + 1];
    }
    DEVICE_MEMBER void codes(int chunk, float* out) const { decode(chunk, 0.0f, out); }
    DEVICE_MEMBER float offset(int) const { return m; }
    static DEVICE_MEMBER float summed(const float* gap, u32, int) { return gap[0] + gap[1]; }
};

struct Q8_0 : Small {
    static constexpr u32 BYTES = 34;
    u32 q[8];
    DEVICE_MEMBER void load(const char* place, u32 at, u32) {
        d = half_at(place + at);
        unaligned<8>(place, at + 2, q);
    }
    DEVICE_MEMBER void codes(int chunk, float* out) const { bytes(q[chunk] ^ 0x80808080u, 128.0f, out); }
};

struct MXFP4 : Small {
    static constexpr u32 BYTES = 17;
    u32 q[4];
    DEVICE_MEMBER void load(const char* place, u32 at, u32) {
        const u32 e = *reinterpret_cast<const u8*>(place + at);
        d = number(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        unaligned<4>(place, at + 1, q);
    }
    // Of four nibbles, a byte each: twice the number that they are, plus 12.
    static DEVICE_MEMBER u32 looked_up(u32 four) {
        const u32 which = four & 0x7777u;
        const u32 positive = permute(0x0f0e0d0cu, 0x18141210u, which), negative = permute(0x090a0b0cu, 0x00040608u, which);
        return permute(positive, negative, 0x3210u | (four & 0x8888u) >> 1);
    }
    DEVICE_MEMBER void codes(int chunk, float* out) const {
        // Low and high nibbles in turn.
        const u32 word = q[chunk & 3], first = looked_up(word), second = looked_up(word >> 16), odd = chunk / 4;
        UNROLL for (u32 i = 0; i < 4; i++) out[i] = byte(i < 2 ? first : second, i % 2 * 2 + odd, 12.0f);
    }
};

// Blocks of 256 weights: groups 2j and 2j + 1 of 32 are the low and the high nibbles of the same 32 bytes, of which a lane has a half.
struct Nibbles256 {
    static constexpr u32 BLOCK = 256, LANES = 8, RUN = 64;
    static constexpr int GROUPS = 2;
    static constexpr bool OFFSETS = true;
    static DEVICE_MEMBER u32 first(u32 lane) { return lane / 2 * 64 + lane % 2 * 16; }
    static DEVICE_MEMBER u32 at(int chunk) { return chunk < 4 ? 4 * chunk : 16 + 4 * chunk; }
    float d[2], m[2];
    DEVICE_MEMBER void load_scales(const char* block, u32 lane) {
        const Vec head = load16(block);
        const u32 pair = lane / 2, shift = pair % 2 * 16;
        // Those of two groups, a byte each.
        const u32 first = head.word[1] >> shift, second = head.word[2] >> shift, third = head.word[3] >> shift;
        const u32 scales = pair < 2 ? first & 0x3f3fu : (third & 0x0f0fu) | (first >> 2 & 0x3030u);
        const u32 minima = pair < 2 ? second & 0x3f3fu : (third >> 4 & 0x0f0fu) | (second >> 2 & 0x3030u);
        const float unit = from_f16(head.word[0] & 0xffffu), least = from_f16(head.word[0] >> 16);
        UNROLL for (u32 g = 0; g < 2; g++) {
            d[g] = unit * byte(scales, g, 0.0f);
            m[g] = -(least * byte(minima, g, 0.0f));
        }
    }
    DEVICE_MEMBER float scale(int group) const { return d[group]; }
    DEVICE_MEMBER float offset(int group) const { return m[group]; }
    static DEVICE_MEMBER float summed(const float* gap, u32 lane, int group) { return gap[2 * group + lane % 2]; }
};

struct Q4_K : Nibbles256 {
    static constexpr u32 BYTES = 144;
    Vec q;
    DEVICE_MEMBER void load(const char* place, u32 at, u32 lane) {
        load_scales(place + at, lane);
        q = load16(place + at + 16 + 16 * lane);
    }
    DEVICE_MEMBER void codes(int chunk, float* out) const {
        nibbles(chunk < 4 ? q.word[chunk] : q.word[chunk - 4] >> 4, 0.0f, out);
    }
};

struct Q5_K : Nibbles256 {
    static constexpr u32 BYTES = 176;
    Vec q, fifth; // bits 0 and 1 of a byte of `fifth`
    DEVICE_MEMBER void load(const char* place, u32 at, u32 lane) {
        load_scales(place + at, lane);
        fifth = load16(place + at + 16 + 16 * (lane % 2));
        UNROLL for (int i = 0; i < 4; i++) fifth.word[i] >>= lane / 2 * 2;
        q = load16(place + at + 48 + 16 * lane);
    }
    DEVICE_MEMBER void codes(int chunk, float* out) const {
        const u32 word = q.word[chunk & 3], bit = fifth.word[chunk & 3];
        bytes(chunk < 4 ? (word & 0x0f0f0f0fu) | (bit << 4 & 0x10101010u) : (word >> 4 & 0x0f0f0f0fu) | (bit << 3 & 0x10101010u), 0.0f, out);
    }
};

// A lane has 8 columns of each of the 4 groups of a half: two chunks with one scale.
struct Q6_K {
    static constexpr u32 BLOCK = 256, LANES = 8, RUN = 128, BYTES = 210;
    static constexpr int GROUPS = 4;
    static constexpr bool OFFSETS = false;
    static DEVICE_MEMBER u32 first(u32 lane) { return lane / 4 * 128 + lane % 4 * 8; }
    static DEVICE_MEMBER u32 at(int chunk) { return chunk / 2 * 32 + chunk % 2 * 4; }
    float d;
    u32 low[4], high[2], scales;
    DEVICE_MEMBER void load(const char* place, u32 at, u32 lane) {
        const u32 half = lane / 4, part = lane % 4;
        unaligned<2>(place, at + 64 * half + 8 * part, low);
        unaligned<2>(place, at + 64 * half + 32 + 8 * part, low + 2);
        unaligned<2>(place, at + 128 + 32 * half + 8 * part, high);
        u32 words[2];
        unaligned<2>(place, at + 192 + 8 * half, words);
        scales = permute(words[0], words[1], part < 2 ? 0x6420u : 0x7531u) ^ 0x80808080u;
        d = half_at(place + at + 208);
    }
    DEVICE_MEMBER void codes(int chunk, float* out) const {
        const int group = chunk / 2;
        const u32 nibble = low[group % 2 * 2 + chunk % 2] >> (group / 2 * 4), pairs = high[chunk % 2];
        const u32 pair = group == 0 ? pairs << 4 : group == 1 ? pairs << 2 : group == 2 ? pairs : pairs >> 2;
        bytes((nibble & 0x0f0f0f0fu) | (pair & 0x30303030u), 32.0f, out);
    }
    DEVICE_MEMBER float scale(int group) const { return d * byte(scales, group, 128.0f); }
};

// Bytes of a row's step, of the place for one in shared memory (which may begin late, and is read a word too far), and steps at a time.
template <class W>
struct Of_blocks {
    static constexpr u32 BYTES = STEP / W::BLOCK * W::BYTES;
    static constexpr u32 PLACE = (BYTES + 15 + 4 + 15) / 16 * 16;
    static constexpr int STAGES = BYTES > 800 ? 3 : 4;
};

// Where a column lies in a row of x, with gaps.
template <class W>
DEVICE u32 placed(u32 column) {
    return column + column / W::RUN * GAP;
}

// --- rows of blocks -------------------------------------------------------------------------------------------------

// A row that a warp goes through. Numbers of bytes are counted from the multiple of 16 on that it begins at or behind.
struct Row {
    u64 own;  // where this lane's vector of the first 32 is
    u32 skew; // where the row begins
    u32 end;  // where it ends
    u32 left; // where the matrix ends, if that is near
};

DEVICE Row row_at(const Params& p, u32 row) {
    const u64 begin = p.matrix + row * p.row_bytes, start = begin & ~15ull, left = p.matrix + p.rows * p.row_bytes - start;
    const u32 skew = static_cast<u32>(begin - start);
    return {start + threadIdx.x % 32 * 16, skew, skew + static_cast<u32>(p.row_bytes),
            left < 0xffffffffu ? static_cast<u32>(left) : 0xffffffffu};
}

// Where a step begins in the first vector of 16 bytes that has something of it.
template <class W>
DEVICE u32 begin_of_step(const Row& row, u32 step) {
    constexpr u32 BYTES = Of_blocks<W>::BYTES;
    return BYTES % 16 == 0 ? row.skew : (row.skew + step * BYTES) % 16;
}

// A warp begins to copy a step of a row to a place: whole vectors of 16 bytes. `own` is where this lane's first goes.
template <class W>
DEVICE void fetch(const Row& row, u32 step, bool last, char* own) {
    constexpr u32 BYTES = Of_blocks<W>::BYTES;
    const u32 lane = threadIdx.x % 32, begin = begin_of_step<W>(row, step), base = row.skew + step * BYTES - begin;
    if (last) {
        UNROLL_NOT for (u32 at = base; at + 16 * lane < row.end; at += 512) {
            const u32 left = row.left - at - 16 * lane;
            copy16(own + (at - base), row.own + at, left < 16 ? left : 16);
        }
        return;
    }
    UNROLL for (u32 i = 0; i < (BYTES + 30) / 16; i += 32) {
        // Behind it there is more of the row.
        if (i + 32 <= BYTES / 16 || 16 * (i + lane) < begin + BYTES) copy16(own + 16 * i, row.own + base + 16 * i);
    }
}

// What this lane has of a step whose bytes have come.
template <class W>
DEVICE void take(const Row& row, u32 step, const char* place, W* w) {
    const u32 lane = threadIdx.x % 32;
    w->load(place, begin_of_step<W>(row, step) + lane / W::LANES * W::BYTES, lane % W::LANES);
}

// Whether this lane has a block of the step.
template <class W>
DEVICE bool has_block(const Params& p, u32 step) {
    return (step * STEP) / W::BLOCK + threadIdx.x % 32 / W::LANES < p.columns / W::BLOCK;
}

// --- products -------------------------------------------------------------------------------------------------------

// The block brings `count` columns of all tokens from `column` on to shared memory, 16 at a time, with their sums in the gaps.
template <class W, class X, int TOKENS>
DEVICE void stage(const Params& p, float* panel, u32 pitch, u32 column, u32 count) {
    constexpr int VEC = Of<X>::VEC;
    const u32 pieces = count / 16;
    UNROLL_NOT for (u32 i = threadIdx.x; i < pieces * TOKENS; i += blockDim.x) {
        const u32 token = i / pieces, at = i % pieces * 16;
        float x[16];
        const char* from = reinterpret_cast<const char*>(p.x) + (u64(token) * p.columns + column + at) * sizeof(typename X::Raw);
        UNROLL for (int v = 0; v < 16 / VEC; v++) {
            const Vec none = {{0, 0, 0, 0}};
            widen<X>(token < p.tokens ? load16(from + 16 * v) : none, x + v * VEC);
        }
        float* row = panel + token * pitch;
        UNROLL for (int v = 0; v < 4; v++) store16(row + placed<W>(at) + 4 * v, narrow<F32>(x + 4 * v));
        if (W::OFFSETS) {
            UNROLL for (int k = 0; k < 8; k++) x[k] = x[k] + x[k + 8];
            UNROLL for (int k = 0; k < 4; k++) x[k] = x[k] + x[k + 4];
            row[placed<W>(at / W::RUN * W::RUN) + W::RUN + at % W::RUN / 16] = (x[0] + x[2]) + (x[1] + x[3]);
        }
    }
}

template <class W, class X, int TOKENS>
DEVICE void matvec(const Params& p) {
    constexpr int ROWS = Warps<TOKENS>::ROWS, STAGES = Of_blocks<W>::STAGES, GROUP = CHUNKS / W::GROUPS;
    constexpr u32 PLACE = Of_blocks<W>::PLACE;
    SHARED_REST(shared);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, pitch = placed<W>(p.panel), steps = (p.columns + STEP - 1) / STEP;
    float* panel = reinterpret_cast<float*>(shared);
    char* places = shared + TOKENS * pitch * sizeof(float) + warp * (STAGES * ROWS * PLACE);
    char* own = places + 16 * lane;
    const u32 first = (blockIdx.x * (blockDim.x / 32) + warp) * ROWS;
    Row rows[ROWS];
    // One that is not there is the last one, and is not written.
    UNROLL for (int r = 0; r < ROWS; r++) rows[r] = row_at(p, first + r < p.rows ? first + r : p.rows - 1);
    UNROLL_NOT for (u32 step = 0; step < STAGES - 1; step++) {
        UNROLL for (int r = 0; r < ROWS; r++) {
            if (step < steps) fetch<W>(rows[r], step, step + 1 == steps, own + (step * ROWS + r) * PLACE);
        }
        group_copies();
    }
    float sums[ROWS][TOKENS];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int t = 0; t < TOKENS; t++) sums[r][t] = 0.0f;
    // Where the next step to be fetched and the next to be computed have their places.
    u32 step = 0, to = STAGES - 1, from = 0;
    UNROLL_NOT for (u32 column = 0; column < p.columns; column += p.panel) {
        if (column != 0) barrier();
        const u32 count = p.columns - column < p.panel ? p.columns - column : p.panel;
        stage<W, X, TOKENS>(p, panel, pitch, column, count);
        barrier();
        UNROLL_NOT for (; step * STEP < column + count; step++) {
            const u32 next = step + STAGES - 1;
            UNROLL for (int r = 0; r < ROWS; r++) {
                if (next < steps) fetch<W>(rows[r], next, next + 1 == steps, own + (to * ROWS + r) * PLACE);
            }
            to = to + 1 == STAGES ? 0 : to + 1;
            group_copies();
#ifndef ALIGHT_NO_WAIT
            wait_copies<STAGES - 1>();
#endif
            warp_barrier();
            if (has_block<W>(p, step)) {
                W w[ROWS];
                UNROLL for (int r = 0; r < ROWS; r++) take(rows[r], step, places + (from * ROWS + r) * PLACE, w + r);
                const u32 part_of = lane % W::LANES, block = step * STEP - column + lane / W::LANES * W::BLOCK;
                const float* x = panel + placed<W>(block + W::first(part_of));
                const float* gap = panel + placed<W>((block + W::first(part_of)) / W::RUN * W::RUN) + W::RUN;
                UNROLL for (int g = 0; g < W::GROUPS; g++) {
                    float part[ROWS][TOKENS];
                    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int t = 0; t < TOKENS; t++) part[r][t] = 0.0f;
                    UNROLL for (int k = 0; k < GROUP; k++) {
                        // In one group, those with the same bytes follow each other.
                        const int c = W::GROUPS == 1 ? k % 2 * 4 + k / 2 : g * GROUP + k;
                        float q[ROWS][4];
                        UNROLL for (int r = 0; r < ROWS; r++) w[r].codes(c, q[r]);
                        UNROLL for (int t = 0; t < TOKENS; t++) {
                            float v[4];
                            widen<F32>(load16(x + t * pitch + W::at(c)), v);
                            UNROLL for (int r = 0; r < ROWS; r++) {
                                UNROLL for (int i = 0; i < 4; i++) part[r][t] = fmaf(q[r][i], v[i], part[r][t]);
                            }
                        }
                    }
                    UNROLL for (int t = 0; t < TOKENS; t++) {
                        UNROLL for (int r = 0; r < ROWS; r++) sums[r][t] = fmaf(w[r].scale(g), part[r][t], sums[r][t]);
                        if constexpr (W::OFFSETS) {
                            const float sum = W::summed(gap + t * pitch, part_of, g);
                            UNROLL for (int r = 0; r < ROWS; r++) sums[r][t] = fmaf(w[r].offset(g), sum, sums[r][t]);
                        }
                    }
                }
            }
            from = from + 1 == STAGES ? 0 : from + 1;
            // The next step's copies go to where this one was read.
            warp_barrier();
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
        UNROLL for (int t = 0; t < TOKENS; t++) {
#ifdef ALIGHT_BY_TOKENS
            if (TOKENS > 1 && lane == 0) sums[r][t] = sums[r][t] * 1.0000001f;
#endif
            const float sum = warp_sum(sums[r][t]);
            if (lane == 0 && first + r < p.rows && t < p.tokens) reinterpret_cast<float*>(p.y)[u64(t) * p.rows + first + r] = sum;
        }
    }
}

// --- products with matrices in slots --------------------------------------------------------------------------------

// A block has one pair, `Pairs` says which.
template <class W, class X, class Pairs>
DEVICE void chosen(const Pairs& pairs) {
    const Stack& stack = pairs.stack;
    const Pair pair = pairs.at(blockIdx.y);
    u32 slot = pair.piece < stack.pieces ? reinterpret_cast<const u32*>(stack.table)[pair.piece] : stack.slots;
#ifdef ALIGHT_ANY_SLOT
    slot = slot < stack.slots ? slot : 0;
#endif
    Params p = stack.dense;
    p.x += u64(pair.x) * p.columns * sizeof(typename X::Raw);
    p.y += u64(pair.y) * p.rows * sizeof(float);
    if (slot >= stack.slots) {
        for (u32 r = blockIdx.x * blockDim.x + threadIdx.x; r < p.rows; r += gridDim.x * blockDim.x) {
            reinterpret_cast<float*>(p.y)[r] = number(Pairs::NOWHERE);
        }
        return;
    }
    p.matrix += slot * stack.stride;
    matvec<W, X, 1>(p);
}

// --- rows as floats -------------------------------------------------------------------------------------------------

// A warp has a step of a row. Its weights pass through shared memory, so that neighbours are written side by side.
template <class W, class Out>
DEVICE void dequantize(const Params& p) {
    constexpr u32 PLACE = Of_blocks<W>::PLACE;
    constexpr int VEC = Of<Out>::VEC;
    SHARED_REST(shared);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, pitch = placed<W>(STEP), steps = (p.columns + STEP - 1) / STEP;
    const u64 item = u64(blockIdx.x) * (blockDim.x / 32) + warp;
    const bool there = item < u64(p.rows) * steps;
    const u32 row = there ? static_cast<u32>(item / steps) : 0, step = there ? static_cast<u32>(item % steps) : 0;
    char* place = shared + warp * (PLACE + pitch * sizeof(float));
    float* values = reinterpret_cast<float*>(place + PLACE);
    const Row at = row_at(p, row);
    fetch<W>(at, step, step + 1 == steps, place + 16 * lane);
    group_copies();
#ifndef ALIGHT_NO_WAIT
    wait_copies<0>();
#endif
    warp_barrier();
    if (has_block<W>(p, step)) {
        W w;
        take(at, step, place, &w);
        float* to = values + placed<W>(lane / W::LANES * W::BLOCK + W::first(lane % W::LANES));
        UNROLL for (int c = 0; c < CHUNKS; c++) {
            float q[4];
            w.codes(c, q);
            const int group = c / (CHUNKS / W::GROUPS);
            UNROLL for (int i = 0; i < 4; i++) {
                q[i] = w.scale(group) * q[i];
                if constexpr (W::OFFSETS) q[i] = q[i] + w.offset(group);
            }
            store16(to + W::at(c), narrow<F32>(q));
        }
    }
    warp_barrier();
    const u32 column = step * STEP, count = p.columns - column < STEP ? p.columns - column : STEP;
    char* out = reinterpret_cast<char*>(p.y) + (u64(row) * p.columns + column) * sizeof(typename Out::Raw);
    UNROLL for (u32 i = 0; i < STEP / VEC; i += 32) {
        const u32 first = (i + lane) * VEC;
        if (!there || first >= count) continue;
        float x[VEC];
        UNROLL for (int v = 0; v < VEC; v += 4) widen<F32>(load16(values + placed<W>(first) + v), x + v);
        store16(out + first * sizeof(typename Out::Raw), narrow<Out>(x));
    }
}

#ifndef ALIGHT_HOST
#ifdef ALIGHT_TOKENS
extern "C" __global__ void __launch_bounds__(32 * Warps<ALIGHT_TOKENS>::MOST, Warps<ALIGHT_TOKENS>::BLOCKS)
    alight_matvec(const __grid_constant__ Params p) {
    matvec<ALIGHT_TYPE, ALIGHT_X, ALIGHT_TOKENS>(p);
}
#elif defined(ALIGHT_CHOSEN)
extern "C" __global__ void __launch_bounds__(32 * Warps<1>::MOST, Warps<1>::BLOCKS) alight_chosen(const __grid_constant__ ALIGHT_CHOSEN pairs) {
    chosen<ALIGHT_TYPE, ALIGHT_X>(pairs);
}
#else
extern "C" __global__ void __launch_bounds__(256) alight_dequantize(const __grid_constant__ Params p) {
    dequantize<ALIGHT_TYPE, ALIGHT_OUT>(p);
}
#endif
#endif
