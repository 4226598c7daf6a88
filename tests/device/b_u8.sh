#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# (b) The same records as u8, finished on the device: one byte a value over the bus.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
file=$(raw_file raw_u8 1 "${GIB_U8:-2}")

for finish in f32,nchw,imagenet f32,imagenet bf16,imagenet; do
    name=b-u8-${finish//,/-}
    row "$name" || { show "$name" && continue; }
    record "# $(machine)"
    record "finish batch workers G-values/s bus-GB/s-used bus-GB/s as-f32-GB/s bound"
    for batch in 64 256; do
        for workers in $(counts 8 $((cpus - 1))); do
            runs=()
            for _ in $(seq "$REPEATS"); do
                json=$(loaderctl bench "$file" --record 'image:u8[224,224,3]' --record-layout nhwc --shuffle full --batch $batch \
                    --workers "$workers" --device 0 --finish "$finish" --seconds "$SECONDS_A_RUN" --json 2>>"$RESULTS/b.log") || {
                    record "$finish $batch $workers failed: $(tail -n 1 "$RESULTS/b.log")"
                    continue 2
                }
                runs+=("$(field values_per_s <<<"$json")")
            done
            values=$(printf '%s\n' "${runs[@]}" | median)
            record "$finish $batch $workers $(calc "$values / 1e9") $(calc "$(field bytes_per_s <<<"$json") / 1e9") $(calc "$(field bus_bytes_per_s <<<"$json") / 1e9") $(calc "$values * 4 / 1e9") $(field bound_by <<<"$json")"
        done
    done
    done_row
done
