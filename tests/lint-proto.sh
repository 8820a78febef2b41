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
        if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
            echo "python3-venv is missing; installing it with apt-get" >&2
            as_root=""
            [ "$(id -u)" = 0 ] || as_root="sudo -n"
            { $as_root apt-get update -q && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy python3-venv; } >&2 || {
                echo "error: could not install python3-venv: install it, or buf, and run this again" >&2
                exit 1
            }
        fi
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check "buf-bin==$BUF_VERSION"
    fi
    buf="$venv/bin/buf"
fi
"$buf" lint proto
