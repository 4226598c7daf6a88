#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# (g) Every device test by itself: attach and detach 50 times, two clients, daemon killed in mid-copy, and the others; the
# example trainer; the time to pin by size of the ring.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
if row g-tests; then
    record "# $(machine)"
    for case in no_device bad_options whole_epochs default_stream_and_close release_order attach_detach pin_alone \
        captured_stream manual_copies killed_daemon lost_daemon forked_child explicit_order synthetic several_devices \
        finishing_equals_the_daemon finishing_shapes slow_kernels; do
        start=$(date +%s%N)
        result=passed
        (cd "$DATA" && CK_RUN_CASE=$case timeout 150 "$bundle/tests/check_cuda_device") >"$RESULTS/g-$case.log" 2>&1 || result=FAILED
        ! grep -q '^skipped' "$RESULTS/g-$case.log" || result=skipped
        record "$case: $result ($((($(date +%s%N) - start) / 1000000)) ms)$([ $result != FAILED ] || printf ' %s' "$(tail -n 1 "$RESULTS/g-$case.log")")"
    done
    done_row
else
    show g-tests
fi

if row g-trainer; then
    record "# $(machine)"
    [ -d "$DATA/trainer/train" ] || "$bundle/tools/demo-data" "$DATA/trainer" >/dev/null 2>&1
    record "$(cuda_trainer "$DATA/trainer/train" 20 2>&1 | tail -n 3)"
    done_row
else
    show g-trainer
fi

if row g-pin; then
    record "# $(machine)"
    record "ring-MB pin-ms ms-a-GiB"
    for slots in 8 64 400; do # of 40 MB
        json=$(loaderctl bench synthetic:100000x10000000:f32 --batch 1 --slots $slots --max-ring-bytes 32G --device 0 \
            --seconds 0.3 --json 2>>"$RESULTS/g.log") || { record "$slots slots: $(tail -n 1 "$RESULTS/g.log")" && continue; }
        pin=$(field pin_ms <<<"$json")
        record "$((slots * 40)) $pin $(calc "$pin / ($slots * 40e6 / 2**30)")"
    done
    done_row
else
    show g-pin
fi
