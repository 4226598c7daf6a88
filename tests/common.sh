# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# What scripts of tests begin with; sourced. `root` is the source tree, `work` a folder that goes at the end, with the
# process `daemon` where a script sets one. fail SENTENCE... counts in `failures` and goes on.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
: "${builddir:=$root/build}"
: "${LOADERCTL:=$builddir/loaderctl}"
: "${LOADERD_DAEMON:=$builddir/loaderd}"
[ -x "$LOADERCTL" ] || {
    echo "no program $LOADERCTL: build first" >&2
    exit 1
}
work=$(mktemp -d)
daemon=
finish() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
export LC_ALL=C
failures=0

fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}
