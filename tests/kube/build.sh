#!/bin/sh
# Finds or builds the control plane that the tests run against, and prints (stdout, last line) the
# folder that holds etcd, kube-apiserver, kube-controller-manager and kube-scheduler.
#
# Order: $KUBEBUILDER_ASSETS (if all four are there), target/kube/<key>/, the user's cache, a build.
# <key> is the hash of what is built, so a change here builds afresh and an old checkout keeps its own.
# A build from nothing takes about nine minutes on two cores, 1 GB of modules and 3 GB of build cache.
# Progress goes to stderr. Safe to call from several processes at once, and cheap when all is there.
set -eu

here=$(cd "$(dirname "$0")" && pwd -P)
target=${GPUHEAL_TARGET_DIR:-${CARGO_TARGET_DIR:-$here/../../target}}
kubernetes=1.36.3
parts="etcd kube-apiserver kube-controller-manager kube-scheduler"

say() { echo "control plane: $*" >&2; }
. "$here/go.sh"

complete() {
    for part in $parts; do [ -x "$1/$part" ] || return 1; done
}

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
    if complete "$KUBEBUILDER_ASSETS"; then
        echo "$KUBEBUILDER_ASSETS"
        exit 0
    fi
    say "KUBEBUILDER_ASSETS lacks one of: $parts; using our own"
fi

key=$(cat "$here/controlplane/main.go" "$here/controlplane/go.mod" "$here/controlplane/go.sum" | sha256sum | cut -c1-16)
out=$target/kube/$key
cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/gpu-selfhealing/kube/$key

if complete "$out"; then
    (cd "$out" && pwd)
    exit 0
fi

mkdir -p "$target/kube"
exec 9>"$target/kube/.lock"
flock 9 || { say "cannot lock $target/kube/.lock"; exit 1; }

# place FILE: the four names beside one file, put there by rename so that nobody sees half of it.
place() {
    mkdir -p "$out"
    ln -f "$1" "$out/.incoming" 2>/dev/null || cp "$1" "$out/.incoming"
    mv -f "$out/.incoming" "$out/gpuheal-controlplane"
    for part in $parts; do ln -sf gpuheal-controlplane "$out/$part"; done
}

if ! complete "$out" && [ -x "$cache/gpuheal-controlplane" ]; then
    say "taking Kubernetes $kubernetes from $cache"
    place "$cache/gpuheal-controlplane"
fi

if ! complete "$out"; then
    find_go
    say "building Kubernetes $kubernetes with $("$go" env GOVERSION); about nine minutes from nothing"
    mkdir -p "$out"
    began=$(date +%s)
    ( while sleep 60 >/dev/null 2>&1; do say "still building, $(( ($(date +%s) - began) / 60 )) min"; done ) >/dev/null 9>&- &
    ticker=$!
    trap 'kill $ticker 2>/dev/null || true' EXIT
    (cd "$here/controlplane" && GOFLAGS= GOTOOLCHAIN=local CGO_ENABLED=0 nice -n 10 "$go" build \
        -trimpath -buildvcs=false -mod=readonly \
        -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$kubernetes" \
        -o "$out/.built" . >&2)
    place "$out/.built"
    rm -f "$out/.built"
    if mkdir -p "$cache" 2>/dev/null; then
        cp "$out/gpuheal-controlplane" "$cache/.incoming" && mv -f "$cache/.incoming" "$cache/gpuheal-controlplane"
    fi
    say "built in $(( ($(date +%s) - began) )) s"
fi

(cd "$out" && pwd)
