#!/usr/bin/env bash
# Brings a bare Debian 12 or Ubuntu 24.04 to the point where loafc runs from .venv: system packages (only those
# that are missing), a virtual environment with pinned packages, and loafc itself, Python's and the command line's, built in release mode.
# Run again, it does only what is still to do.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly LLVM_PREFIX="${LLVM_SYS_191_PREFIX:-/usr/lib/llvm-19}"
readonly VENV=.venv
readonly MIN_RUST=1.90

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

die() {
    printf 'bootstrap: %s\n' "$*" >&2
    exit 1
}

# "1.9.0" as a number that compares.
version_key() { awk -F. '{ printf "%d%03d", $1, $2 }' <<<"$1"; }

find_python() {
    local python="${PYTHON:-python3}"
    command -v "$python" >/dev/null || die "no '$python' found; install Python 3.10 or newer, or name one: PYTHON=/path/to/python3 make demo"
    local version
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if (( $(version_key "$version") < $(version_key 3.10) )); then
        die "$(command -v "$python") is Python $version; loafc needs 3.10 or newer. Name another one: PYTHON=/path/to/python3 make demo"
    fi
    echo "$python"
}

check_rust() {
    command -v cargo >/dev/null || die "no cargo found; install Rust with rustup: https://rustup.rs"
    local version
    version=$(rustc --version | awk '{ print $2 }')
    if (( $(version_key "$version") < $(version_key "$MIN_RUST") )); then
        die "rustc is $version; loafc needs $MIN_RUST or newer: rustup update stable"
    fi
}

# Prints the Debian packages that are missing, one a line.
missing_packages() {
    local python=$1
    [[ -x "$LLVM_PREFIX/bin/llvm-config" && -e "$LLVM_PREFIX/include/llvm-c/Core.h" ]] || echo llvm-19-dev
    compgen -G "$LLVM_PREFIX/lib/libPolly*" >/dev/null || echo libpolly-19-dev
    header zlib.h || echo zlib1g-dev
    header zstd.h || echo libzstd-dev
    header libxml2/libxml/parser.h || echo libxml2-dev
    header ffi.h || echo libffi-dev
    # Rust links with the C compiler driver, and LLVM's library needs libstdc++ then.
    if ! command -v cc >/dev/null || [[ "$(cc -print-file-name=libstdc++.so)" == libstdc++.so ]]; then echo g++; fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

header() { compgen -G "/usr/include/$1" >/dev/null || compgen -G "/usr/include/*-linux-gnu/$1" >/dev/null; }

install_packages() {
    local python=$1 missing
    missing=$(missing_packages "$python" | tr '\n' ' ')
    missing=${missing% }
    [[ -n "$missing" ]] || return 0
    if [[ $(id -u) != 0 ]]; then
        die "missing system packages, and installing them needs root. Run: sudo apt-get update && sudo apt-get install -y $missing"
    fi
    command -v apt-get >/dev/null || die "missing, and there is no apt-get here. Install what corresponds to Debian's: $missing"
    say "installing $missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of names
    apt-get install -y -qq --no-install-recommends $missing </dev/null >/dev/null
    missing=$(missing_packages "$python" | tr '\n' ' ')
    [[ -z "$missing" ]] || die "still missing after installation: $missing"
}

install_python_packages() {
    local python=$1 stamp="$VENV/requirements.sha256" sum
    if [[ ! -x $VENV/bin/python ]]; then
        say "making $VENV with $("$python" --version)"
        "$python" -m venv "$VENV"
    fi
    sum=$(cat requirements/*.txt | sha256sum)
    if [[ -f $stamp && "$(<"$stamp")" == "$sum" ]]; then return 0; fi
    say "installing Python packages (PyTorch is large: minutes)"
    "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off -r requirements/dev.txt </dev/null |
        grep --line-buffered -E '^(Collecting|Installing|Successfully)' || true
    "$VENV/bin/python" -m pip install --disable-pip-version-check -q -r requirements/dev.txt </dev/null
    echo "$sum" >"$stamp"
}

build_loafc() {
    say "building loafc (release)"
    # maturin installs into the environment that VIRTUAL_ENV names; conda's would be refused beside it.
    env -u CONDA_PREFIX VIRTUAL_ENV="$PWD/$VENV" LLVM_SYS_191_PREFIX="$LLVM_PREFIX" \
        "$VENV/bin/maturin" develop --release --locked </dev/null
    LLVM_SYS_191_PREFIX="$LLVM_PREFIX" cargo build --release --locked -p loafc-cli </dev/null
}

main() {
    local python
    python=$(find_python)
    check_rust
    install_packages "$python"
    install_python_packages "$python"
    build_loafc
    say "loafc is ready in $VENV"
}

main
