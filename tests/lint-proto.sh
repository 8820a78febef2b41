#!/usr/bin/env bash
# Lints the .proto files with buf, fetched as a Python wheel into target/ when it is not on PATH.
set -eu -o pipefail
cd "$(dirname "$0")/.."

BUF_VERSION=1.75.0
buf=$(command -v buf || true)
if [ -z "$buf" ]; then
    venv=target/buf-venv
    if [ ! -x "$venv/bin/buf" ]; then
        echo "buf is missing: fetching buf-bin $BUF_VERSION into $venv" >&2
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check "buf-bin==$BUF_VERSION"
    fi
    buf="$venv/bin/buf"
fi
"$buf" lint proto
