// The kernel and its broken variants, each in a namespace, and how they are found by NVRTC's options.
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

using right::Params;
using right::u64;
using right::Workspace;
typedef void (*Kernel)(const Params&);

#define AS(space) reinterpret_cast<const space::Params&>(p)
#define BROKEN(space)                                                                                                  \
    inline void run_##space(const Params& p) {                                                                         \
        space::allreduce_norm<space::F32, space::F32, 1, true, false>(AS(space));                                      \
    }
BROKEN(no_wait)
BROKEN(one_buffer)
BROKEN(no_release)
BROKEN(early_flag)

template <class T, class W, int VECTORS, bool WHOLE, bool POST>
void run_right(const Params& p) {
    right::allreduce_norm<T, W, VECTORS, WHOLE, POST>(p);
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

inline Kernel find_kernel(const std::string& options) {
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
