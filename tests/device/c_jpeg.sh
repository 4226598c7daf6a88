#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# (c) JPEGs, RandomResizedCrop 224 and flips, by workers, into device memory; PyTorch's DataLoader with PIL and with
# torchvision.io beside it; and from how many workers on a GPU of 6,800 images a second would not starve.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
folder=$(picture_folder)

bench() { # WORKERS [OPTION...]
    local workers=$1
    shift
    loaderctl bench "$folder" --image 224 --augment random-resized-crop,flip --shuffle full --batch 256 \
        --workers "$workers" --device 0 --finish bf16,imagenet --seconds "$SECONDS_A_RUN" --json "$@" 2>>"$RESULTS/c.log"
}

if row c-loaderd; then
    record "# $(machine)"
    record "workers samples/s (median of $REPEATS) bound"
    for workers in $(counts 1 2 4 8 $((cpus - 1)) "$cpus"); do
        runs=()
        for _ in $(seq "$REPEATS"); do
            json=$(bench "$workers") || { record "$workers failed: $(tail -n 1 "$RESULTS/c.log")" && continue 2; }
            runs+=("$(field samples_per_s <<<"$json")")
        done
        record "$workers $(printf '%s\n' "${runs[@]}" | median) $(field bound_by <<<"$json")"
    done
    record "with 256 pictures in 37.6 ms (6,800 a second): workers, samples/s, percent starved"
    for workers in $(counts 8 $((cpus - 4)) $((cpus - 1))); do
        json=$(bench "$workers" --step-ms 37.6) || continue
        record "$workers $(field samples_per_s <<<"$json") $(field starved_percent <<<"$json")"
    done
    done_row
else
    show c-loaderd
fi

for loader in pil torchvision; do
    name=c-$loader
    row $name || { show $name && continue; }
    record "# $(machine)"
    for workers in 1 2 4 8 16; do
        record "$(peer "$RESULTS/c.log" $loader --path "$folder" --batch 256 --workers $workers --seconds 6)"
    done
    done_row
done
