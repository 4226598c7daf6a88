#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# (e) 10,000 batches with slow work behind every copy, released at once, a ring of three slots and two buffers: every
# checksum made on the device is right.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
if row e-slow; then
    record "# $(machine)"
    start=$SECONDS
    (cd "$DATA" && LOADERD_TEST_BATCHES=${BATCHES:-10000} CK_RUN_CASE=slow_kernels CK_DEFAULT_TIMEOUT=500 \
        timeout 550 "$bundle/tests/check_cuda_device") 2>&1 | tee -a "$current.part"
    record "${BATCHES:-10000} batches in $((SECONDS - start)) s"
    ! grep -q skipped "$current.part" || { say "no device: not a result" && exit 77; }
    done_row
else
    show e-slow
fi
