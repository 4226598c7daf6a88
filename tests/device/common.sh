# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Sourced by the device scripts: where things are, data made once, rows that are not measured again.
#
#   DATA      where raw data are made (/tmp/loaderd-data)
#   RESULTS   one file a row; a row whose file is there is not run again (FORCE=1: it is)
#   SECONDS_A_RUN, REPEATS
set -euo pipefail
export LC_ALL=C.UTF-8
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PATH=$bundle/bin:$PATH LOADERD_DAEMON=$bundle/bin/loaderd builddir=$bundle
export PYTHONPATH=$bundle/python${PYTHONPATH:+:$PYTHONPATH} LOADERD_LIBRARY=$bundle/lib/libloaderd.so.0
export LOADERD_CUDA_LIBRARY=$bundle/lib/libloaderd-cuda.so.0
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/tmp}
: "${DATA:=/tmp/loaderd-data}" "${RESULTS:=${OUT:-$bundle/results}}" "${SECONDS_A_RUN:=4}" "${REPEATS:=3}"
mkdir -p "$DATA" "$RESULTS"
cpus=$(nproc)

say() { printf '%s\n' "$*"; }

# row NAME: true where NAME has yet to be measured; its lines then go to record(). show NAME prints them.
row() {
    current=$RESULTS/$1.txt
    if [ -s "$current" ] && [ "${FORCE:-}" != 1 ]; then
        return 1
    fi
    : >"$current.part"
}
record() { printf '%s\n' "$*" | tee -a "$current.part"; }
# A row with failures is shown, but measured again the next time.
done_row() {
    if grep -qE 'failed:|FAILED' "$current.part"; then
        cp "$current.part" "${current%.txt}.failed"
    else
        mv "$current.part" "$current"
    fi
}
show() { [ ! -s "$RESULTS/$1.txt" ] || { say "== $1 (measured before)" && cat "$RESULTS/$1.txt"; }; }

# field NAME <JSON: a number or a word. median: of the lines on standard input. calc EXPRESSION. "-" where there is none.
field() {
    python3 -c 'import json, sys
try: print(json.load(sys.stdin).get(sys.argv[1], "-"))
except ValueError: print("-")' "$1"
}
median() {
    python3 -c 'import statistics, sys
numbers = [float(l) for l in sys.stdin if l.strip() not in ("", "-")]
print(f"{statistics.median(numbers):.2f}" if numbers else "-")'
}
calc() {
    python3 -c 'import sys
try: print(f"{float(eval(sys.argv[1])):.2f}")
except (SyntaxError, TypeError, NameError, ZeroDivisionError): print("-")' "$1"
}

# raw_f32: 3x224x224 float32 records, GIB of them (8), in the page cache. raw_u8: 224x224x3 bytes, a quarter.
raw_file() { # NAME ELEMENT-BYTES GIB
    local path=$DATA/$1
    [ -s "$path" ] || python3 - "$path" "$2" "$3" <<'PY'
import sys
import numpy as np
path, element, gib = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
record = 3 * 224 * 224
records = int(gib * 2**30) // (record * element)
rng = np.random.default_rng(1)
block = 128
values = rng.standard_normal((block, record), dtype=np.float32) if element == 4 else rng.integers(0, 256, (block, record), dtype=np.uint8)
with open(path + ".part", "wb") as f:
    for at in range(0, records, block):
        values[:, 0] = np.arange(at, at + block) % 251
        values[: min(block, records - at)].tofile(f)
import os
os.rename(path + ".part", path)
PY
    cat "$path" >/dev/null # into the page cache
    printf '%s\n' "$path"
}

# The carried pictures, linked so often that an epoch has some ten thousand.
picture_folder() {
    local folder=$DATA/pictures copy class file
    if [ ! -d "$folder" ]; then
        if [ ! -d "$bundle/pictures" ]; then # none were carried: procedural ones
            "$bundle/tools/demo-data" --train 60 --validation 1 "$DATA/demo" >&2
            mv "$DATA/demo/train" "$folder.source"
        else
            cp -r "$bundle/pictures" "$folder.source"
        fi
        mkdir "$folder.part"
        for class in "$folder.source"/*; do
            mkdir "$folder.part/${class##*/}"
            for copy in $(seq -w "${COPIES:-40}"); do
                for file in "$class"/*; do
                    ln "$file" "$folder.part/${class##*/}/$copy-${file##*/}"
                done
            done
        done
        mv "$folder.part" "$folder"
    fi
    printf '%s\n' "$folder"
}

# counts N...: those above 0, each once.
counts() { printf '%s\n' "$@" | awk '$1 > 0' | sort -nu; }

# peer LOG ARGUMENT...: the line of peers.py, or that it failed.
peer() {
    local log=$1
    shift
    timeout 120 python3 "$bundle/tests/device/peers.py" "$@" 2>>"$log" || printf 'torch %s failed: %s\n' "$1" "$(tail -n 1 "$log")"
}

machine() {
    say "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || echo 'no GPU'), $cpus CPUs, kernel $(uname -r), $(date -u +%F)"
}
