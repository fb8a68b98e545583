#!/bin/sh
# Checks that what a make target needs is on this machine; says what is missing and how to get it.
#   need.sh rust|rust-tools|python|fuzz|miri ...
# Exit status 1 if anything is missing. Reads nothing from the network. The Makefile calls it before each target.

here=$(dirname "$0")
missing=0

lack() {
    missing=1
    printf '%s\n' "$@" >&2
}

# The least Rust version, as the workspace declares it: one place to change it.
least_rust=$(sed -n 's/^rust-version = "\([0-9.]*\)"/\1/p' "$here/../Cargo.toml")

older() { # older A B: is version A older than B? (two numbers)
    [ "${1%%.*}" -lt "${2%%.*}" ] && return 0
    [ "${1%%.*}" -gt "${2%%.*}" ] && return 1
    a=${1#*.} b=${2#*.}
    [ "${a%%.*}" -lt "${b%%.*}" ]
}

need_rust() {
    if ! command -v cargo >/dev/null 2>&1; then
        lack "missing: a Rust toolchain (cargo), version $least_rust or newer." \
            "  Get it with rustup, Rust's own installer (Debian 13, Ubuntu 24.04: apt install rustup && rustup default stable;" \
            "  macOS: brew install rustup && rustup default stable; elsewhere: see 'Install Rust' on Rust's site)." \
            "  If it is installed already, put it in reach: PATH=\"\$HOME/.cargo/bin:\$PATH\""
    else
        have=$(cargo --version 2>/dev/null | cut -d' ' -f2)
        if [ -z "$have" ]; then
            lack "missing: a Rust toolchain: cargo is there but does not run." "  Install one: rustup default stable"
        elif older "$have" "$least_rust"; then
            lack "too old: Rust $have, needed is $least_rust or newer." "  Get it: rustup update stable"
        fi
    fi
    # All that is missing is said at once.
    if ! command -v cc >/dev/null 2>&1 && ! command -v gcc >/dev/null 2>&1 && ! command -v clang >/dev/null 2>&1; then
        lack "missing: a linker (cc), which every Rust toolchain on this system uses." \
            "  Debian, Ubuntu: apt install gcc libc6-dev   Fedora: dnf install gcc   macOS: xcode-select --install"
    fi
}

need_rust_tools() {
    command -v cargo >/dev/null 2>&1 || return # need_rust has said so
    for tool in fmt clippy; do
        if ! cargo $tool --version >/dev/null 2>&1; then
            case $tool in fmt) name=rustfmt ;; *) name=$tool ;; esac
            lack "missing: $name, a part of the Rust toolchain." "  Get it: rustup component add $name"
        fi
    done
}

need_python() {
    python=$("$here/find_python.sh") || {
        missing=1
        return
    }
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        lack "missing: pip for $python, which fetches the models and the reference libraries." \
            "  Debian, Ubuntu: apt install python3-pip   Fedora: dnf install python3-pip" \
            "  elsewhere: $python -m ensurepip --user"
    fi
}

need_nightly() { # need_nightly WHAT: says that WHAT needs it
    cargo +nightly --version >/dev/null 2>&1 && return
    lack "missing: a nightly Rust toolchain, which $1 needs." "  Get it: rustup toolchain install nightly"
}

need_miri() {
    command -v cargo >/dev/null 2>&1 || return # need_rust has said so
    need_nightly Miri
    if ! cargo +nightly miri --version >/dev/null 2>&1; then
        lack "missing: Miri, which runs programs step by step and sees undefined behaviour." \
            "  Get it: rustup component add miri rust-src --toolchain nightly"
    fi
}

need_fuzz() {
    command -v cargo >/dev/null 2>&1 || return
    need_nightly "the fuzzer's instrumentation"
    if ! cargo fuzz --version >/dev/null 2>&1; then
        lack "missing: cargo-fuzz." "  Get it: cargo install cargo-fuzz --locked"
    fi
    if ! command -v c++ >/dev/null 2>&1 && ! command -v g++ >/dev/null 2>&1 && ! command -v clang++ >/dev/null 2>&1; then
        lack "missing: a C++ compiler, which builds the fuzzing engine." \
            "  Debian, Ubuntu: apt install g++   Fedora: dnf install gcc-c++"
    fi
}

for thing in "$@"; do
    case $thing in
        rust) need_rust ;;
        rust-tools) need_rust_tools ;;
        python) need_python ;;
        fuzz) need_fuzz ;;
        miri) need_miri ;;
        *)
            echo "need.sh: what is '$thing'?" >&2
            exit 2
            ;;
    esac
done
exit $missing
