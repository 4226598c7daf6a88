#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The example trainer learns from generated pictures what there is to learn, and nothing where labels are random: so the
# demo's accuracy means that pictures and labels arrive together.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: "${builddir:=build}"

# train DIRECTORY: prints the held-out accuracy in whole percent.
train() {
    "$builddir/client/examples/softmax" "$1/train" "$1/val" --epochs 4 | tee >(cat >&2) |
        sed -n 's/^verdict: \([0-9]*\).*/\1/p'
}

"$builddir/tools/demo-data" --train 60 --validation 30 "$work/true"
"$builddir/tools/demo-data" --train 60 --validation 30 --shuffle-labels "$work/random"

learned=$(train "$work/true")
random=$(train "$work/random")
echo "held out: $learned % right with true labels, $random % with random ones (chance: 17 %)"
[ "$learned" -ge 90 ]
[ "$random" -le 35 ]

batches=$("$builddir/client/examples/pop" "$work/true/train" | grep -c '^step ')
echo "pop: $batches batches"
[ "$batches" -eq $((360 / 64)) ]
