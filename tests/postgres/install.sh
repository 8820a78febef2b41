#!/usr/bin/env bash
# Makes sure that Postgres server binaries are on this machine; installs Debian's package when they are not, and says so first.
set -eu -o pipefail

found() {
    [ -n "${GPUHEAL_POSTGRES_BIN:-}" ] && [ -x "$GPUHEAL_POSTGRES_BIN/initdb" ] && return 0
    for dir in /usr/lib/postgresql/*/bin; do
        [ -x "$dir/initdb" ] && return 0
    done
    command -v initdb >/dev/null 2>&1
}

found && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    cat >&2 <<'EOF'
error: no Postgres server (initdb, postgres) was found, and this system has no apt-get to install it with.
  what to do: install PostgreSQL 14 or newer, and set GPUHEAL_POSTGRES_BIN to the folder that holds initdb if it is not on PATH.
EOF
    exit 1
fi
as_root=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "error: Postgres is missing and installing it needs root: run 'apt-get install postgresql' as root, then again" >&2
        exit 1
    fi
    as_root="sudo"
fi
echo "Postgres is missing: installing Debian's package postgresql (apt-get install postgresql); no system service of it is used" >&2
$as_root apt-get update -qq >&2
# The package would create and start a cluster of its own; the tests use private ones.
$as_root mkdir -p /etc/postgresql-common
[ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" | $as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql >&2
found
