#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# (f) compute-sanitizer over the device tests: memcheck over all of them, the other tools over those with kernels.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
sanitizer=$(command -v compute-sanitizer || find /usr/local/cuda*/bin /opt -name compute-sanitizer -type f 2>/dev/null | head -n 1)
[ -n "$sanitizer" ] || { say "no compute-sanitizer here" && exit 77; }

check() { # TOOL CASE
    local log=$RESULTS/f-$1-$2.log
    if (cd "$DATA" && LOADERD_TEST_BATCHES=200 CK_FORK=no CK_RUN_CASE=$2 timeout 150 "$sanitizer" --target-processes application-only --tool "$1" \
        --error-exitcode 9 "$bundle/tests/check_cuda_device") >"$log" 2>&1; then
        record "$1 $2: $(grep -o 'ERROR SUMMARY.*\|RACECHECK SUMMARY.*' "$log" | tail -n 1)"
    else
        record "$1 $2: FAILED, see $log: $(grep -m 1 '=========' "$log" || tail -n 1 "$log")"
    fi
}

if row f-sanitizer; then
    record "# $(machine)"
    for case in whole_epochs slow_kernels attach_detach captured_stream manual_copies killed_daemon \
        finishing_equals_the_daemon finishing_shapes; do
        check memcheck $case
    done
    for tool in racecheck initcheck synccheck; do
        check $tool finishing_shapes
        check $tool whole_epochs
    done
    done_row
else
    show f-sanitizer
fi
