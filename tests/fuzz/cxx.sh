#!/usr/bin/env bash
# Makes sure that a C++ compiler is on this machine, which libFuzzer is compiled with; installs Debian's when there is none, and says
# so first.
set -eu -o pipefail

command -v "${CXX:-c++}" >/dev/null 2>&1 && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "error: no C++ compiler was found, and this system has no apt-get to install one with; install g++ or clang, then again" >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "error: a C++ compiler is missing and installing it needs root: run 'apt-get install g++' as root, then again" >&2
        exit 1
    fi
    as_root="sudo"
fi
echo "a C++ compiler is missing: installing Debian's package g++ (apt-get install g++)" >&2
$as_root apt-get update -qq >&2
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends g++ >&2
