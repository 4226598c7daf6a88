#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# (a) float32 3x224x224 records from the page cache into device memory, batch 64 and 256, by workers; PyTorch's DataLoader
# over a memory map of the same file beside it.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
file=$(raw_file raw_f32 4 "${GIB:-8}")

bench() { # BATCH WORKERS [OPTION...]
    local batch=$1 workers=$2
    shift 2
    loaderctl bench "$file" --record 'image:f32[3,224,224]' --shuffle full --batch "$batch" --workers "$workers" --device 0 \
        --seconds "$SECONDS_A_RUN" --json "$@" 2>>"$RESULTS/a.log"
}

for batch in 64 256; do
    name=a-f32-$batch
    row $name || { show $name && continue; }
    record "# $(machine)"
    record "batch workers engine GB/s bus-GB/s percent bound"
    best=0 best_workers=1
    for workers in $(counts 4 8 $((cpus - 4)) $((cpus - 2)) $((cpus - 1)) "$cpus"); do
        json=$(bench $batch "$workers") || { record "$batch $workers failed: $(tail -n 1 "$RESULTS/a.log")" && continue; }
        rate=$(calc "$(field bytes_per_s <<<"$json") / 1e9")
        record "$batch $workers auto $rate $(calc "$(field bus_bytes_per_s <<<"$json") / 1e9") $(field bus_percent <<<"$json") $(field bound_by <<<"$json")"
        if [ "$(calc "$rate > $best")" = 1.00 ]; then best=$rate best_workers=$workers; fi
    done
    for engine in uring mmap pread; do
        json=$(bench $batch "$best_workers" --engine $engine) || continue
        record "$batch $best_workers $engine $(calc "$(field bytes_per_s <<<"$json") / 1e9") $(calc "$(field bus_bytes_per_s <<<"$json") / 1e9") $(field bus_percent <<<"$json") $(field bound_by <<<"$json")"
    done
    runs=$(for _ in $(seq "$REPEATS"); do bench $batch "$best_workers" | field bytes_per_s; done)
    record "median of $REPEATS at $best_workers workers: $(calc "$(median <<<"$runs") / 1e9") GB/s"
    done_row
done

if row a-torch; then
    record "# $(machine)"
    for batch in 64 256; do
        record "$(peer "$RESULTS/a.log" memmap --path "$file" --batch $batch --workers 16 --seconds 8)"
    done
    done_row
else
    show a-torch
fi
