#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Model-checks the ring's protocol with spin (tests/model/ring.pml): the protocol holds, and each mutant of it fails.
set -euo pipefail
srcdir=${srcdir:-$(dirname "$0")/..}
model=$(cd "$srcdir" && pwd)/tests/model/ring.pml
command -v spin >/dev/null || { echo "check_model: spin is not installed" >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# errors ARGUMENT...: how many errors an exhaustive search of the model finds
errors() {
    rm -f pan*
    spin -a "$@" "$model" >spin.log
    gcc -O2 -w -DSAFETY -DVECTORSZ=2048 -DCOLLAPSE -o pan pan.c
    ./pan -m1000000 -w22 >pan.log 2>&1
    ! grep -q 'max search depth too small' pan.log || { echo "the search was cut short" >&2; return 1; }
    sed -n 's/.*errors: \([0-9]*\)$/\1/p' pan.log
}

failed=0
expect() { # WHAT WANT ARGUMENT...
    local what=$1 want=$2 found
    shift 2
    found=$(errors "$@")
    if [ "$found" = "$want" ]; then
        echo "ok: $what: $found errors in $(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log) states"
    else
        echo "FAILED: $what: $found errors, wanted $want"
        failed=1
    fi
}
expect "one worker, 5 batches in 2 slots" 0 -DWORKERS=1 -DBATCHES=5
expect "two workers, 3 batches in 2 slots" 0 -DWORKERS=2 -DBATCHES=3
expect "two workers that sleep twice, a younger request taken back" 1 -DWORKERS=2 -DBATCHES=4 -DMUTANT_STALE
expect "one worker, two trainers, 3 batches in 2 slots" 0 -DWORKERS=1 -DBATCHES=3 -DTRAINERS=2
expect "mutant FIRST of two trainers" 1 -DWORKERS=1 -DBATCHES=3 -DTRAINERS=2 -DMUTANT_FIRST
for mutant in PUBLISH WAIT RELEASE SLEEP TRUST; do
    expect "mutant $mutant" 1 -DWORKERS=1 -DBATCHES=5 "-DMUTANT_$mutant"
done
exit $failed
