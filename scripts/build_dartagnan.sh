#!/bin/sh
# Builds Dartagnan, which `python -m evidence check litmus` asks about PTX's memory model.
#
#   build_dartagnan.sh SOURCE     SOURCE: a git repository of Dat3M (github.com/hernanponcedeleon/Dat3M), bare or not
#
# Into target/dat3m (or $DAT3M_DIR). Needs git, Java 17 or newer and Maven, which downloads what Dartagnan depends on, solvers
# included. A few minutes, 300 MB. Not part of make test.
set -eu

# The commit that docs/explanation/cuda.md has results of; DAT3M_COMMIT names another one.
commit=${DAT3M_COMMIT:-30640123b}
root=$(cd "$(dirname "$0")/.." && pwd)
work=${DAT3M_DIR:-${CARGO_TARGET_DIR:-$root/target}/dat3m}

if [ $# -ne 1 ]; then
    echo "usage: build_dartagnan.sh SOURCE, a git repository of Dat3M" >&2
    exit 2
fi
for tool in git java mvn; do
    if ! command -v $tool >/dev/null 2>&1; then
        echo "missing: $tool, to build Dartagnan." >&2
        echo "  Debian, Ubuntu: apt install git openjdk-17-jdk-headless maven   Fedora: dnf install git java-17-openjdk-devel maven" >&2
        exit 1
    fi
done

if [ ! -f "$work/pom.xml" ]; then
    mkdir -p "$(dirname "$work")"
    git clone --quiet --no-checkout "$1" "$work"
fi
git -C "$work" checkout --quiet --detach "$commit"
cd "$work"
mvn --batch-mode --quiet -pl dartagnan -am package -DskipTests >build.log 2>&1 || {
    tail -30 build.log >&2
    exit 1
}
echo "$work/dartagnan/target/dartagnan.jar" >&2
