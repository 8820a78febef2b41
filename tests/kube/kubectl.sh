#!/bin/sh
# Finds or builds kubectl of the very release that the tests' control plane is of, and prints (stdout, last line) its path.
#
# Order: target/kube/kubectl-<key>/, the user's cache, a build. <key> is the hash of what is built. A build of its own and
# not a fifth part of the control plane, so that whoever has that one cached builds this alone: under two minutes on two
# cores. Progress goes to stderr. Safe to call from several processes at once, and cheap when it is there.
set -eu

here=$(cd "$(dirname "$0")" && pwd -P)
target=${GPUHEAL_TARGET_DIR:-${CARGO_TARGET_DIR:-$here/../../target}}
kubernetes=1.36.3

say() { echo "kubectl: $*" >&2; }
. "$here/go.sh"

key=$(cat "$here/kubectl/main.go" "$here/kubectl/go.mod" "$here/kubectl/go.sum" | sha256sum | cut -c1-16)
out=$target/kube/kubectl-$key
cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/gpu-selfhealing/kube/kubectl-$key

found() {
    [ -x "$out/kubectl" ] || return 1
    echo "$(cd "$out" && pwd)/kubectl"
    exit 0
}

found || true
mkdir -p "$out"
exec 9>"$out/.lock"
flock 9 || { say "cannot lock $out/.lock"; exit 1; }
found || true

if [ -x "$cache/kubectl" ]; then
    say "taking it from $cache"
    cp "$cache/kubectl" "$out/.incoming"
else
    find_go
    say "building v$kubernetes with $("$go" env GOVERSION); under two minutes from nothing"
    began=$(date +%s)
    (cd "$here/kubectl" && GOFLAGS= GOTOOLCHAIN=local CGO_ENABLED=0 nice -n 10 "$go" build \
        -trimpath -buildvcs=false -mod=readonly \
        -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$kubernetes" \
        -o "$out/.incoming" . >&2)
    if mkdir -p "$cache" 2>/dev/null; then
        cp "$out/.incoming" "$cache/.incoming" && mv -f "$cache/.incoming" "$cache/kubectl"
    fi
    say "built in $(( $(date +%s) - began )) s"
fi
mv -f "$out/.incoming" "$out/kubectl"
found
