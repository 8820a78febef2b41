#!/usr/bin/env bash
# Compiles our own packages for fuzzing: cargo calls it in rustc's place for members of the workspace (RUSTC_WORKSPACE_WRAPPER),
# and keeps what it makes apart from the usual build, while all other packages are shared with it. The passes are LLVM's own and
# part of the stable compiler: every branch counts and every comparison shows its operands to libFuzzer.
set -eu
rustc=$1
shift
name=""
previous=""
for argument in "$@"; do
    [ "$previous" = --crate-name ] && name=$argument
    previous=$argument
done
case $name in
    gpuheal_*)
        # Code of the cores is what is run a thousand times a second; hub and spoke at large are only linked.
        level=1
        exec "$rustc" "$@" \
            -Cpasses=sancov-module \
            -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
            -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares \
            -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
            -Copt-level=$level \
            -Cdebug-assertions=on -Coverflow-checks=on
        ;;
    *) exec "$rustc" "$@" ;;
esac
