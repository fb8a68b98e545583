// The kernels and their broken variants, each in a namespace, and how they are found by their name and NVRTC's options.
#pragma once

#include <cstddef>
#include <string>

namespace right {
#define ALIGHT_DELAYS
#include "../allreduce_norm.cu"
} // namespace right
namespace no_wait {
#define ALIGHT_NO_WAIT
#include "../allreduce_norm.cu"
#undef ALIGHT_NO_WAIT
} // namespace no_wait
namespace one_buffer {
#define ALIGHT_ONE_BUFFER
#include "../allreduce_norm.cu"
#undef ALIGHT_ONE_BUFFER
} // namespace one_buffer
namespace no_release {
#define ALIGHT_NO_RELEASE
#include "../allreduce_norm.cu"
#undef ALIGHT_NO_RELEASE
} // namespace no_release
namespace early_flag {
#define ALIGHT_EARLY_FLAG
#include "../allreduce_norm.cu"
#undef ALIGHT_EARLY_FLAG
} // namespace early_flag

namespace matmul {
#include "../matmul.cu"
} // namespace matmul
namespace matmul_no_wait {
#define ALIGHT_NO_WAIT
#include "../matmul.cu"
#undef ALIGHT_NO_WAIT
} // namespace matmul_no_wait
namespace matmul_swapped {
#define ALIGHT_SWAPPED
#include "../matmul.cu"
#undef ALIGHT_SWAPPED
} // namespace matmul_swapped
namespace matmul_by_tokens {
#define ALIGHT_BY_TOKENS
#include "../matmul.cu"
#undef ALIGHT_BY_TOKENS
} // namespace matmul_by_tokens
namespace matmul_any_slot {
#define ALIGHT_ANY_SLOT
#include "../matmul.cu"
#undef ALIGHT_ANY_SLOT
} // namespace matmul_any_slot
namespace matmul_one_x {
#define ALIGHT_ONE_X
#include "../matmul.cu"
#undef ALIGHT_ONE_X
} // namespace matmul_one_x

using right::Params;
using right::u64;
using right::Workspace;
typedef void (*Kernel)(const void*);

#define AS(space) *static_cast<const space::Params*>(p)
#define BROKEN(space)                                                                                                  \
    inline void run_##space(const void* p) {                                                                           \
        space::allreduce_norm<space::F32, space::F32, 1, true, false>(AS(space));                                      \
    }
BROKEN(no_wait)
BROKEN(one_buffer)
BROKEN(no_release)
BROKEN(early_flag)

template <class T, class W, int VECTORS, bool WHOLE, bool POST>
void run_right(const void* p) {
    right::allreduce_norm<T, W, VECTORS, WHOLE, POST>(AS(right));
}

template <class T, class W, int VECTORS>
Kernel shaped(bool whole, bool post) {
    if (whole) return post ? run_right<T, W, VECTORS, true, true> : run_right<T, W, VECTORS, true, false>;
    return post ? run_right<T, W, VECTORS, false, true> : run_right<T, W, VECTORS, false, false>;
}

template <class T, class W>
Kernel typed(const std::string& options) {
    auto has = [&](const char* option) { return options.find(option) != std::string::npos; };
    const bool whole = has("-DALIGHT_WHOLE=true"), post = has("-DALIGHT_POST=true");
    if (has("-DALIGHT_VECTORS=1")) return shaped<T, W, 1>(whole, post);
    if (has("-DALIGHT_VECTORS=2")) return shaped<T, W, 2>(whole, post);
    if (has("-DALIGHT_VECTORS=4")) return shaped<T, W, 4>(whole, post);
    return nullptr;
}

inline Kernel find_collective(const std::string& options) {
    auto has = [&](const char* option) { return options.find(option) != std::string::npos; };
    // The broken ones are there for f32 alone.
    if (has("-DALIGHT_NO_WAIT")) return run_no_wait;
    if (has("-DALIGHT_ONE_BUFFER")) return run_one_buffer;
    if (has("-DALIGHT_NO_RELEASE")) return run_no_release;
    if (has("-DALIGHT_EARLY_FLAG")) return run_early_flag;
    const bool wide = has("-DALIGHT_WEIGHT=F32");
    if (has("-DALIGHT_ELEMENT=Bf16")) return wide ? typed<right::Bf16, right::F32>(options) : typed<right::Bf16, right::Bf16>(options);
    if (has("-DALIGHT_ELEMENT=F16")) return wide ? typed<right::F16, right::F32>(options) : typed<right::F16, right::F16>(options);
    return has("-DALIGHT_ELEMENT=F32") ? typed<right::F32, right::F32>(options) : nullptr;
}

// --- products and rows of blocks ---

#define PRODUCT(space, W, X, TOKENS) [](const void* p) { space::matvec<space::W, space::X, TOKENS>(AS(space)); }
#define CHOSEN(space, W, X, Pairs)                                                                                     \
    [](const void* p) { space::chosen<space::W, space::X>(*static_cast<const space::Pairs*>(p)); }
#define ROWS(W, Out) [](const void* p) { matmul::dequantize<matmul::W, matmul::Out>(AS(matmul)); }
#define PRODUCTS(W, X)                                                                                                 \
    if (has("-DALIGHT_TYPE=" #W) && has("-DALIGHT_X=" #X)) {                                                           \
        if (has("-DALIGHT_TOKENS=1")) return PRODUCT(matmul, W, X, 1);                                                 \
        if (has("-DALIGHT_TOKENS=2")) return PRODUCT(matmul, W, X, 2);                                                 \
        if (has("-DALIGHT_TOKENS=4")) return PRODUCT(matmul, W, X, 4);                                                 \
        if (has("-DALIGHT_TOKENS=8")) return PRODUCT(matmul, W, X, 8);                                                 \
    }
#define ALL_CHOSEN(W, X, Pairs)                                                                                        \
    if (has("-DALIGHT_TYPE=" #W) && has("-DALIGHT_X=" #X) && has("-DALIGHT_CHOSEN=" #Pairs)) return CHOSEN(matmul, W, X, Pairs);
// The broken ones are there for one type and two numbers of tokens, or pairs that are counted.
#define BROKEN_PRODUCTS(space, mistake)                                                                                \
    if (has(mistake)) {                                                                                                \
        if (has("-DALIGHT_TOKENS=1")) return PRODUCT(space, Q4_0, F32, 1);                                             \
        if (has("-DALIGHT_TOKENS=8")) return PRODUCT(space, Q4_0, F32, 8);                                             \
    }
#define OF_TYPE(W)                                                                                                     \
    PRODUCTS(W, Bf16)                                                                                                  \
    PRODUCTS(W, F32)                                                                                                   \
    ALL_CHOSEN(W, Bf16, Listed)                                                                                        \
    ALL_CHOSEN(W, F32, Listed)                                                                                         \
    ALL_CHOSEN(W, Bf16, Counted)                                                                                       \
    ALL_CHOSEN(W, F32, Counted)                                                                                        \
    if (has("-DALIGHT_TYPE=" #W) && has("-DALIGHT_OUT=Bf16")) return ROWS(W, Bf16);                                    \
    if (has("-DALIGHT_TYPE=" #W) && has("-DALIGHT_OUT=F32")) return ROWS(W, F32);

inline Kernel find_of_blocks(const std::string& options) {
    auto has = [&](const char* option) { return options.find(option) != std::string::npos; };
    BROKEN_PRODUCTS(matmul_no_wait, "-DALIGHT_NO_WAIT")
    BROKEN_PRODUCTS(matmul_swapped, "-DALIGHT_SWAPPED")
    BROKEN_PRODUCTS(matmul_by_tokens, "-DALIGHT_BY_TOKENS")
    if (has("-DALIGHT_ANY_SLOT")) return CHOSEN(matmul_any_slot, Q4_0, F32, Counted);
    if (has("-DALIGHT_ONE_X")) return CHOSEN(matmul_one_x, Q4_0, F32, Counted);
    OF_TYPE(Q4_0)
    OF_TYPE(Q4_1)
    OF_TYPE(Q8_0)
    OF_TYPE(MXFP4)
    OF_TYPE(Q4_K)
    OF_TYPE(Q5_K)
    OF_TYPE(Q6_K)
    return nullptr;
}

// With the size of its argument.
struct Found {
    Kernel kernel;
    size_t size;
    bool collective;
};

inline Found find_kernel(const std::string& name, const std::string& options) {
    if (name == "alight_allreduce_norm") return {find_collective(options), sizeof(Params), true};
    auto has = [&](const char* option) { return options.find(option) != std::string::npos; };
    if (name == "alight_chosen") {
        const size_t size = has("-DALIGHT_CHOSEN=Listed") ? sizeof(matmul::Listed) : sizeof(matmul::Counted);
        return {find_of_blocks(options), size, false};
    }
    const bool product = has("-DALIGHT_TOKENS");
    if (name == (product ? "alight_matvec" : "alight_dequantize")) return {find_of_blocks(options), sizeof(matmul::Params), false};
    return {nullptr, 0, false};
}
