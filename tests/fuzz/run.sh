#!/usr/bin/env bash
# Fuzzes each target for SECONDS_EACH seconds, as many at a time as there are cores, and tells how far each is every ten seconds.
#   TARGET=name     this one alone, or several; name:30 is one for 30 s. With one, INPUT=file tries that input alone: how a finding is
#                   replayed
# What was learned stays in target/fuzzing/<target>/corpus, so that the next run goes on from there. A finding ends the run: its
# input is printed with how to replay it, and belongs into tests/fuzz/found/<target>/, where every test run replays it.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
root=$PWD
seconds=${SECONDS_EACH:-60}
wanted=${TARGET:-}
input=${INPUT:-}

# A try that needs more is a finding: the slowest seed takes 20 ms on one slow core, the largest some 60 MiB.
TRY_SECONDS_MAX=20
MEMORY_MIB_MAX=1024
TELL_EVERY=10
# What libFuzzer ends with when it is interrupted.
INTERRUPTED=72

number() { [[ $1 =~ ^[1-9][0-9]*$ ]] || { echo "error: '$1' is no number of seconds above 0" >&2; exit 2; }; }
number "$seconds"
if [ -n "$input" ] && [ ! -f "$input" ]; then
    echo "error: INPUT=$input is no file" >&2
    exit 2
fi

tests/fuzz/cxx.sh
echo "building for fuzzing (some minutes the first time)"
RUSTC_WORKSPACE_WRAPPER="$root/tests/fuzz/instrument.sh" \
    cargo build --quiet --profile fuzz --package gpuheal-fuzz --features engine --bin gpuheal-fuzz
built=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
engine="$built/fuzz/gpuheal-fuzz"
work="$built/fuzzing"
mkdir -p "$work"

# It warns of sanitizers' functions that nobody here needs.
all=$("$engine" 2>"$work/list.log") || { cat "$work/list.log" >&2; exit 1; }
known=""
for entry in ${wanted:-$(cut -d' ' -f1 <<<"$all")}; do
    name=${entry%%:*}
    [ "$name" = "$entry" ] || number "${entry#*:}"
    line=$(grep "^$name " <<<"$all") || { echo "error: no fuzz target $name; there are: $(cut -d' ' -f1 <<<"$all" | xargs)" >&2; exit 2; }
    known+="$line $([ "$name" = "$entry" ] && echo "$seconds" || echo "${entry#*:}")"$'\n'
done
if [ -n "$input" ]; then
    [ "$(wc -l <<<"${known%$'\n'}")" = 1 ] || { echo "error: INPUT needs the one TARGET that it is for" >&2; exit 2; }
    GPUHEAL_FUZZ_TARGET=${known%% *} exec "$engine" -timeout=$TRY_SECONDS_MAX -rss_limit_mb=$MEMORY_MIB_MAX "$input"
fi

# The last line that libFuzzer wrote of its progress, short enough for 60 columns.
progress() {
    grep -aE '^#[0-9]+.* exec/s: [0-9]+ ' "$1" 2>/dev/null | tail -1 | awk '{
        for (i = 2; i < NF; i++) { if ($i == "cov:") edges = $(i + 1); if ($i == "exec/s:") rate = $(i + 1) }
        printf "%9d tries %6d/s %5d edges", substr($1, 2), rate, edges
    }'
}

fuzz() {
    local name=$1 bytes_max=$2 seconds=$3 dir="$work/$1"
    local log="$dir/log" found="$root/tests/fuzz/found/$1"
    mkdir -p "$dir/corpus" "$dir/seeds" "$dir/findings" "$dir/none"
    [ -d "$found" ] || found="$dir/none"
    # What asks for more memory than this at once gets none, and that is a finding too.
    ( ulimit -v $((MEMORY_MIB_MAX * 4096)); GPUHEAL_FUZZ_TARGET=$name GPUHEAL_FUZZ_SEEDS="$dir/seeds" exec "$engine" \
        -max_total_time="$seconds" -max_len="$bytes_max" -timeout=$TRY_SECONDS_MAX -rss_limit_mb=$MEMORY_MIB_MAX \
        -use_value_profile=1 -reload=0 -print_final_stats=1 -artifact_prefix="$dir/findings/" \
        "$dir/corpus" "$dir/seeds" "$found" ) >"$log" 2>&1 </dev/null &
    local engine_pid=$! waited=0 ended=0
    trap 'kill $engine_pid 2>/dev/null || true; exit 130' TERM
    while kill -0 $engine_pid 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        [ $((waited % TELL_EVERY)) != 0 ] || printf '%-13s %4ds %s\n' "$name" "$waited" "$(progress "$log")"
    done
    wait $engine_pid || ended=$?
    if [ $ended = 0 ]; then
        printf '%-13s held  %s\n' "$name" "$(progress "$log")"
        return 0
    fi
    [ $ended != $INTERRUPTED ] || return 130
    local input
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -1)
    {
        echo "error: fuzz target $name broke; the end of $log:"
        # What was promised and what was found; then the end, without the stack's tail, which is libFuzzer's own.
        grep -a -A3 ' panicked at ' "$log" | cut -c1-1000
        grep -aE 'ERROR:|SUMMARY:|Test unit written|in gpuheal|stat::' "$log" | tail -12
        if [ -n "$input" ]; then
            input=${input#"$root/"}
            echo "  to replay: make fuzz TARGET=$name INPUT=$input"
            echo "  to keep:   mkdir -p tests/fuzz/found/$name && cp $input tests/fuzz/found/$name/what-was-wrong"
        fi
    } >&2
    return 1
}

running=() failed=0
# Takes those that have ended out of the running.
ended() {
    local still=() job
    for job in "${running[@]}"; do
        if kill -0 "$job" 2>/dev/null; then still+=("$job"); else wait "$job" || failed=1; fi
    done
    running=("${still[@]}")
}
stop() {
    [ ${#running[@]} = 0 ] || kill "${running[@]}" 2>/dev/null || true
    wait
}
trap 'stop; exit 130' INT TERM

jobs_max=$(nproc)
while read -r name bytes_max for_seconds; do
    while [ ${#running[@]} -ge "$jobs_max" ]; do
        sleep 0.3
        ended
    done
    [ $failed = 0 ] || break
    fuzz "$name" "$bytes_max" "$for_seconds" &
    running+=($!)
done <<<"${known%$'\n'}"
while [ ${#running[@]} != 0 ] && [ $failed = 0 ]; do
    sleep 0.3
    ended
done
stop
exit $failed
