// What the kernels have in common: what a GPU and the emulation do differently, vectors of 16 bytes, and types of elements.
//
// Nothing else is included, so that NVRTC needs no headers but this one, which it is handed as text. ALIGHT_HOST makes C++17 of it, with
// emulated/shim.h before it. There is no guard: the emulation includes it once for each kernel, in a namespace of its own.

typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;
typedef unsigned short u16;

// --- what a GPU and the emulation do differently --------------------------------------------------------------------

#ifndef ALIGHT_HOST
#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define UNROLL_NOT _Pragma("unroll 1")
#define SHARED(type, name, size) __shared__ type name size

struct alignas(16) Vec {
    u32 word[4];
};

DEVICE Vec load16(const void* at) {
    uint4 v = *static_cast<const uint4*>(at);
    return {{v.x, v.y, v.z, v.w}};
}
DEVICE void store16(void* at, Vec v) {
    *static_cast<uint4*>(at) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}
DEVICE void barrier() { __syncthreads(); }
// The sum over the 32 threads of a warp, pairwise: i and i + 16, then i and i + 8, … the same bits on all of them.
template <class T>
DEVICE T warp_sum(T x) {
    UNROLL for (int half = 16; half > 0; half /= 2) x += __shfl_xor_sync(0xffffffffu, x, half);
    return x;
}
DEVICE u32 bits(float x) { return __float_as_uint(x); }
DEVICE float number(u32 x) { return __uint_as_float(x); }
// Two numbers to their type, to nearest, ties to even; `low` comes first in memory.
DEVICE u32 pack_bf16(float low, float high) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
DEVICE u32 pack_f16(float low, float high) {
    u32 v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
DEVICE float from_f16(u32 x) {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(static_cast<u16>(x)));
    return v;
}
#endif

// --- element types --------------------------------------------------------------------------------------------------

struct Bf16 {
    typedef u16 Raw;
    static constexpr int PER_WORD = 2;
    static constexpr u16 NOT_A_NUMBER = 0x7fc0;
    static DEVICE_MEMBER void unpack(u32 word, float* x) {
        x[0] = number(word << 16);
        x[1] = number(word & 0xffff0000u);
    }
    static DEVICE_MEMBER u32 pack(const float* x) { return pack_bf16(x[0], x[1]); }
};

struct F16 {
    typedef u16 Raw;
    static constexpr int PER_WORD = 2;
    static constexpr u16 NOT_A_NUMBER = 0x7e00;
    static DEVICE_MEMBER void unpack(u32 word, float* x) {
        x[0] = from_f16(word & 0xffffu);
        x[1] = from_f16(word >> 16);
    }
    static DEVICE_MEMBER u32 pack(const float* x) { return pack_f16(x[0], x[1]); }
};

struct F32 {
    typedef u32 Raw;
    static constexpr int PER_WORD = 1;
    static constexpr u32 NOT_A_NUMBER = 0x7fc00000;
    static DEVICE_MEMBER void unpack(u32 word, float* x) { x[0] = number(word); }
    static DEVICE_MEMBER u32 pack(const float* x) { return bits(x[0]); }
};

// Elements of a vector of 16 bytes.
template <class T>
struct Of {
    static constexpr int VEC = 4 * T::PER_WORD;
};

template <class T>
DEVICE void widen(Vec v, float* x) {
    UNROLL for (int i = 0; i < 4; i++) T::unpack(v.word[i], x + i * T::PER_WORD);
}

// Rounds.
template <class T>
DEVICE Vec narrow(const float* x) {
    Vec v;
    UNROLL for (int i = 0; i < 4; i++) v.word[i] = T::pack(x + i * T::PER_WORD);
    return v;
}
