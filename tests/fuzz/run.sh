#!/usr/bin/env bash
# Fuzzes each target for SECONDS_EACH seconds, as many at a time as there are cores, and tells how far each is every ten seconds.
#   TARGET=name     this one alone, and with INPUT=file that one input alone: how a finding is replayed
# What was learned stays in target/fuzzing/<target>/corpus, so that the next run goes on from there. A finding ends the run: its
# input is printed with how to replay it, and belongs into tests/fuzz/found/<target>/, where every test run replays it.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
root=$PWD
seconds=${SECONDS_EACH:-60}
target=${TARGET:-}
input=${INPUT:-}

# A try that needs more is a finding: the slowest seed takes 20 ms on one slow core, the largest some 60 MiB.
TRY_SECONDS_MAX=20
MEMORY_MIB_MAX=1024
TELL_EVERY=10

tests/fuzz/cxx.sh
export RUSTC_WORKSPACE_WRAPPER="$root/tests/fuzz/instrument.sh"
cargo build --quiet --profile fuzz --package gpuheal-fuzz --features engine --bin gpuheal-fuzz
unset RUSTC_WORKSPACE_WRAPPER
built=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
engine="$built/fuzz/gpuheal-fuzz"
work="$built/fuzzing"

known=$("$engine")
if [ -n "$target" ]; then
    known=$(grep "^$target " <<<"$known") || { echo "error: no fuzz target $target; there are: $("$engine" | cut -d' ' -f1 | xargs)" >&2; exit 2; }
fi
if [ -n "$input" ]; then
    [ -n "$target" ] || { echo "error: INPUT needs the TARGET that it is for" >&2; exit 2; }
    GPUHEAL_FUZZ_TARGET=$target exec "$engine" -timeout=$TRY_SECONDS_MAX -rss_limit_mb=$MEMORY_MIB_MAX "$input"
fi

# The last line that libFuzzer wrote of its progress: tries, branches seen, inputs kept, tries a second.
progress() { grep -aE '^#[0-9]+' "$1" 2>/dev/null | tail -1 | sed -E 's/\t+/ /g; s/lim: [0-9]+ //; s/ L: .*//'; }

fuzz() {
    local name=$1 bytes_max=$2 dir="$work/$1"
    local log="$dir/log" found="$root/tests/fuzz/found/$1"
    mkdir -p "$dir/corpus" "$dir/seeds" "$dir/findings" "$dir/none"
    [ -d "$found" ] || found="$dir/none"
    # What asks for more memory than this at once gets none, and that is a finding too.
    ( ulimit -v $((MEMORY_MIB_MAX * 4096)); GPUHEAL_FUZZ_TARGET=$name GPUHEAL_FUZZ_SEEDS="$dir/seeds" exec "$engine" \
        -max_total_time="$seconds" -max_len="$bytes_max" -timeout=$TRY_SECONDS_MAX -rss_limit_mb=$MEMORY_MIB_MAX \
        -use_value_profile=1 -reload=0 -print_final_stats=1 -artifact_prefix="$dir/findings/" \
        "$dir/corpus" "$dir/seeds" "$found" ) >"$log" 2>&1 &
    local engine_pid=$! waited=0
    while kill -0 $engine_pid 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        [ $((waited % TELL_EVERY)) != 0 ] || echo "fuzz: $name ${waited}s $(progress "$log")"
    done
    if wait $engine_pid; then
        echo "fuzz: $name held: $(progress "$log")"
        return 0
    fi
    local input
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
    {
        echo "error: fuzz target $name broke; the end of $log:"
        grep -avE '^#[0-9]+|^NEW_FUNC|^INFO' "$log" | tail -30
        if [ -n "$input" ]; then
            echo "  to replay: make fuzz TARGET=$name INPUT=$input"
            echo "  to keep:   mkdir -p tests/fuzz/found/$name && cp $input tests/fuzz/found/$name/what-was-wrong"
        fi
    } >&2
    return 1
}

jobs_max=$(nproc)
running=() failed=0
while read -r name bytes_max; do
    if [ ${#running[@]} -ge "$jobs_max" ]; then
        wait "${running[0]}" || failed=1
        running=("${running[@]:1}")
    fi
    [ $failed = 0 ] || break
    fuzz "$name" "$bytes_max" &
    running+=($!)
done <<<"$known"
for job in "${running[@]}"; do wait "$job" || failed=1; done
exit $failed
