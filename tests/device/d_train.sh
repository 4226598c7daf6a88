#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# (d) Training steps of ResNet-50 (batch 256) and ResNet-18 (batch 512), fed by each loader; train.py keeps its own rows.
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
folder=$(picture_folder)
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$DATA/inductor}

train() { # ARGUMENT...
    timeout 240 python3 "$bundle/tests/device/train.py" --data "$folder" --repeat 1 --output "$RESULTS/d.jsonl" "$@" 2>>"$RESULTS/d.log" ||
        say "train.py $* failed: $(tail -n 1 "$RESULTS/d.log")"
}

for model in "resnet50 256" "resnet18 512"; do
    read -r name batch <<<"$model"
    train --model "$name" --batch "$batch" --row device
    train --model "$name" --batch "$batch" --row synthetic
    for workers in 4 8 12 $((cpus - 1)); do
        train --model "$name" --batch "$batch" --row loaderd --workers "$workers"
    done
    train --model "$name" --batch "$batch" --row torch-pil --workers $((cpus - 1))
    train --model "$name" --batch "$batch" --row torch-io --workers $((cpus - 1))
done
