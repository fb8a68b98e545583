#!/bin/sh
# Installs Alight from the archives of a release: a program for this machine, checked by its SHA-256, into a folder of yours.
#
#   curl -fsSL ADDRESS/install.sh | sh
#
# ALIGHT_URL          the folder of the web that has SHA256SUMS and the archives (known to the copy that a release has)
# ALIGHT_INSTALL_DIR  where the programs go; ~/.local/bin. If its name ends in /bin, manual pages and completions go beside it.
#
# No root, no package manager, nothing outside these folders. Until everything is downloaded, checked and has run once,
# nothing is put there; a program that is there is replaced by a rename.

set -eu

# `make dist` fills this in.
default_url=''

say() { printf '%s\n' "install: $*" >&2; }
die() { say "$*"; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# The archive of this machine, by what uname says.
target() {
    case "$(uname -s)" in
        Linux) ;;
        *) die "there are programs for Linux only; elsewhere, build from the source (README.md)" ;;
    esac
    case "$(uname -m)" in
        x86_64 | amd64) echo x86_64-unknown-linux-musl ;;
        aarch64 | arm64) echo aarch64-unknown-linux-musl ;;
        *) die "there are programs for x86_64 and aarch64, not for $(uname -m); build from the source (README.md)" ;;
    esac
}

# From an https address, nothing leads to http.
fetch() { # URL FILE
    if has curl; then
        case "$1" in
            https://*) set -- "$1" "$2" --proto-redir =https --tlsv1.2 ;;
            *) set -- "$1" "$2" --proto-redir =http,https ;;
        esac
        from=$1 into=$2
        shift 2
        curl --connect-timeout 30 --speed-limit 1 --speed-time 60 --fail --silent --show-error --location "$@" --output "$into" -- "$from"
    elif has wget; then
        wget -q -t 2 -O "$2" "$1"
    else
        die "neither curl nor wget is here"
    fi
}

sha256() { # FILE
    if has sha256sum; then
        sha256sum <"$1"
    elif has shasum; then
        shasum -a 256 <"$1"
    elif has openssl; then
        openssl dgst -sha256 -r <"$1"
    else
        die "nothing here computes SHA-256 (sha256sum, shasum or openssl)"
    fi | cut -d ' ' -f 1
}

# A file under another name first, then under its own: whoever starts it meanwhile gets the old one or the new one.
put() { # FILE FOLDER MODE
    new="$2/.${1##*/}.new.$$"
    staged="$staged$new
"
    cp "$1" "$new" && chmod "$3" "$new"
}

# Where nobody can leave anything half: the last line calls it, so a script that is cut does nothing.
main() {
    url=${ALIGHT_URL:-$default_url}
    [ -n "$url" ] || die "ALIGHT_URL is not set: the folder of the web that has SHA256SUMS and the archives"
    url=${url%/}
    if [ -n "${ALIGHT_INSTALL_DIR:-}" ]; then
        bin=$ALIGHT_INSTALL_DIR
    else
        [ -n "${HOME:-}" ] || die "neither HOME nor ALIGHT_INSTALL_DIR is set"
        bin=$HOME/.local/bin
    fi
    bin=${bin%/}
    case "$bin" in
        /*) ;;
        *) bin=$PWD/$bin ;;
    esac
    archive="alight-$(target).tar.gz"

    staged=''
    work=$(mktemp -d "${TMPDIR:-/tmp}/alight-install.XXXXXX") || die "no temporary folder"
    trap 'clean' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM

    fetch "$url/SHA256SUMS" "$work/SHA256SUMS" || die "$url/SHA256SUMS could not be downloaded; nothing was installed"
    expected=$(awk -v name="$archive" '$2 == name || $2 == "*" name { print $1; exit }' "$work/SHA256SUMS")
    case "$expected" in
        *[!0-9a-f]* | '') die "$url/SHA256SUMS does not name $archive; nothing was installed" ;;
    esac
    say "downloading $url/$archive"
    fetch "$url/$archive" "$work/$archive" || die "$url/$archive could not be downloaded; nothing was installed"
    got=$(sha256 "$work/$archive")
    [ "$got" = "$expected" ] || die "$archive has the SHA-256 $got, and SHA256SUMS says $expected; nothing was installed"

    mkdir "$work/new"
    tar -xzf "$work/$archive" -C "$work/new" || die "$archive could not be unpacked; nothing was installed"
    top=''
    for folder in "$work"/new/alight-*; do
        [ -f "$folder/bin/alight" ] && top=$folder
    done
    [ -n "$top" ] || die "there is no alight in $archive; nothing was installed"
    # Where /tmp is mounted noexec it cannot run there, and is not tried: it is checked by its hash.
    if "$top/bin/rusage" --version >/dev/null 2>&1; then
        version=$("$top/bin/alight" --version 2>&1) || die "alight does not run on this machine: $version; nothing was installed"
    else
        version="alight ($archive)"
    fi

    mkdir -p "$bin" 2>/dev/null || die "$bin cannot be made; nothing was installed"
    for name in alight rusage; do
        [ ! -d "$bin/$name" ] || die "$bin/$name is a folder; nothing was installed"
        put "$top/bin/$name" "$bin" 755 2>/dev/null || die "$bin cannot be written to, or is full; nothing was installed"
    done
    for name in rusage alight; do
        mv -f "$bin/.$name.new.$$" "$bin/$name" || die "$bin/$name could not be replaced"
    done
    # Its first line; the others name the commit and the CPU.
    say "$(printf '%s\n' "$version" | head -n 1) is in $bin, with rusage"

    case "$bin" in
        */bin) beside "$top/share" "${bin%/bin}/share" || say "manual pages and completions could not be written to ${bin%/bin}/share" ;;
    esac
    case ":${PATH:-}:" in
        *":$bin:"*) ;;
        *) say "$bin is not in your PATH; for this shell:  export PATH=\"$bin:\$PATH\"" ;;
    esac
    found=$(command -v alight 2>/dev/null) || found=$bin/alight
    [ "$found" = "$bin/alight" ] || say "'alight' is $found in your PATH, not the new one"
    say "to remove it: rm $bin/alight $bin/rusage"
}

beside() { # FROM TO
    for page in "$1"/man/man1/*; do
        place "$page" "$2/man/man1" || return 1
    done
    place "$1/completions/bash/alight" "$2/bash-completion/completions" || return 1
    place "$1/completions/zsh/_alight" "$2/zsh/site-functions" || return 1
    place "$1/completions/fish/alight.fish" "$2/fish/vendor_completions.d"
}

place() { # FILE FOLDER
    [ -f "$1" ] || return 0
    mkdir -p "$2" 2>/dev/null && put "$1" "$2" 644 2>/dev/null && mv -f "$2/.${1##*/}.new.$$" "$2/${1##*/}"
}

clean() {
    rm -rf "$work"
    printf '%s' "$staged" | while IFS= read -r file; do
        rm -f "$file"
    done
}

main "$@"
