#!/usr/bin/env bash
# Makes sure that Postgres server binaries are on this machine; with `pooler` also PgBouncer, which tests alone need. Installs Debian's
# packages when they are not, and says so first. No service of the system's is started or used.
set -eu -o pipefail

found() {
    [ -n "${GPUHEAL_POSTGRES_BIN:-}" ] && [ -x "$GPUHEAL_POSTGRES_BIN/initdb" ] && return 0
    for dir in /usr/lib/postgresql/*/bin; do
        [ -x "$dir/initdb" ] && return 0
    done
    command -v initdb >/dev/null 2>&1
}
found_pooler() { [ -x /usr/sbin/pgbouncer ] || command -v pgbouncer >/dev/null 2>&1; }

missing=()
found || missing+=(postgresql)
[ "${1:-}" != pooler ] || found_pooler || missing+=(pgbouncer)
[ ${#missing[@]} != 0 ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    cat >&2 <<END
error: missing here: ${missing[*]}; and this system has no apt-get to install it with.
  what to do: install PostgreSQL 14 or newer (initdb, postgres), and set GPUHEAL_POSTGRES_BIN to the folder that holds initdb if it is
  not on PATH; for the tests also PgBouncer.
END
    exit 1
fi
as_root=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "error: installing what is missing needs root: run 'apt-get install ${missing[*]}' as root, then again" >&2
        exit 1
    fi
    as_root="sudo"
fi
echo "installing what is missing: apt-get install ${missing[*]}; no system service of it is used" >&2
$as_root apt-get update -qq >&2
# The packages would start a server and a pooler of their own; the tests use private ones.
$as_root mkdir -p /etc/postgresql-common
[ -e /etc/postgresql-common/createcluster.conf ] || echo "create_main_cluster = false" | $as_root tee /etc/postgresql-common/createcluster.conf >/dev/null
if [[ " ${missing[*]} " = *" pgbouncer "* ]] && [ -d /etc/systemd/system ] && [ ! -e /etc/systemd/system/pgbouncer.service ]; then
    echo "its service is masked: 'systemctl unmask pgbouncer' gives it back" >&2
    $as_root ln -s /dev/null /etc/systemd/system/pgbouncer.service
fi
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
found
[ "${1:-}" != pooler ] || found_pooler
