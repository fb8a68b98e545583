#!/bin/sh
# RUSTC_WORKSPACE_WRAPPER of `python -m evidence check lints`: a crate of ours is looked at by clippy and not compiled, in a build whose other crates
# are compiled ones (`cargo clippy` looks at these again, which takes as long as ours). Files that cargo expects of a compiler are there, and empty.
case " $* " in
*" --crate-name build_script_build "*) exec clippy-driver "$@" -D warnings ;; # which is run
*" --emit="*) ;;
*) exec "$@" ;; # a question about the compiler
esac
name='' extra='' folder='' kind='' previous='' left=$#
while [ "$left" -gt 0 ]; do
    one=$1
    shift
    left=$((left - 1))
    case $previous in
    --crate-name) name=$one ;;
    --crate-type) kind=$one ;;
    --out-dir) folder=$one ;;
    esac
    previous=$one
    case $one in
    --test) kind=bin ;;
    --emit=*) one=--emit=dep-info,metadata ;;
    extra-filename=*) extra=${one#*=} ;;
    alight_*=*.rlib | rusage=*.rlib) one=${one%.rlib}.rmeta ;;
    esac
    set -- "$@" "$one"
done
clippy-driver "$@" -D warnings || exit
case $kind in
lib) : >"$folder/lib$name$extra.rlib" ;;
cdylib) : >"$folder/lib$name$extra.so" ;;
*) : >"$folder/$name$extra" ;;
esac
