#!/usr/bin/env bash
# Compiles our own packages for fuzzing: cargo calls it in rustc's place for members of the workspace (RUSTC_WORKSPACE_WRAPPER).
# The pass is LLVM's own and part of the stable compiler: every branch counts and every comparison shows its operands to libFuzzer.
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
        exec "$rustc" "$@" \
            -Cpasses=sancov-module \
            -Cllvm-args=-sanitizer-coverage-level=4 \
            -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
            -Cllvm-args=-sanitizer-coverage-pc-table \
            -Cllvm-args=-sanitizer-coverage-trace-compares \
            -Cllvm-args=-simplifycfg-branch-fold-threshold=0
        ;;
    *) exec "$rustc" "$@" ;;
esac
