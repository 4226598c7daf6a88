#!/bin/bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2317,SC2059 # rounds call the functions by name; the formats are constants of this file
# Every figure beside its ceiling, as a Markdown table: each the median of three rounds, the rounds interleaved, so that
# other load and the machine's moods meet all alike. Run by `make bench`.
#
#   tests/bench/run.sh [FOLDER-OF-PICTURES]
#
# In the environment: BUILD (the build directory, .), WORK (files of up to 5 GB, a new folder in TMPDIR or /tmp),
# WORKERS ("1 2 4 ..." up to the CPUs allowed), ROUNDS (3), SECONDS_EACH (1), COLD_BYTES (4 GiB; 0: no cold reads).
# The folder's pictures lie in sub-folders; without it a demo set is made. fio is used where it is installed.
set -u
build=$(cd "${BUILD:-.}" && pwd)
rounds=${ROUNDS:-3} seconds=${SECONDS_EACH:-1} cold_bytes=${COLD_BYTES:-4294967296}
cpus=$(nproc)
if [ -z "${WORKERS:-}" ]; then
    WORKERS=1
    for n in 2 4 8 12 16 32 64; do [ "$n" -le "$cpus" ] && WORKERS="$WORKERS $n"; done
fi
own_work=
if [ -z "${WORK:-}" ]; then
    WORK=$(mktemp -d "${TMPDIR:-/tmp}/loaderd-bench.XXXXXX") || exit 1
    own_work=yes
fi
values=$(mktemp -d "${TMPDIR:-/tmp}/loaderd-values.XXXXXX") || exit 1
trap 'rm -rf "$values"; [ -z "$own_work" ] || rm -rf "$WORK"' EXIT
trap 'exit 130' INT TERM
export LOADERD_DAEMON=$build/loaderd

# --- values: one file a figure, one line a round --------------------------------------------------------------------
note() { # NAME VALUE
    [ -n "$2" ] && echo "$2" >>"$values/$1"
}
median() { # NAME: the middle one, "-" where there is none
    [ -s "$values/$1" ] || { echo -; return; }
    sort -g "$values/$1" | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'
}
key() { # KEY: its first number in the JSON on stdin
    grep -oE "\"$1\": -?[0-9.]+" | head -n 1 | sed 's/.*: //'
}
figure() { # FORMAT NAME: median, printed so
    local m
    m=$(median "$2")
    [ "$m" = - ] && echo - || printf "$1" "$m"
}
ratio() { # of two medians
    awk -v a="$(median "$1")" -v b="$(median "$2")" 'BEGIN {if (a == "-" || b == "-" || b + 0 == 0) print "-"; else printf "%.2f", a / b}'
}
line() { printf '| %s | %s | %s | %s | %s |\n' "$@"; }
ours() { # arguments of bench: its JSON
    "$build/loaderctl" bench "$@" --seconds "$seconds" --json 2>>"$values/errors"
}

# --- data --------------------------------------------------------------------------------------------------------------
pictures=${1:-}
if [ -z "$pictures" ]; then
    pictures=$WORK/demo/train
    [ -d "$pictures" ] || "$build/tools/demo-data" "$WORK/demo" >/dev/null || exit 1
fi
records=$WORK/raw.f32 record=602112 # 1 GiB of float32 3x224x224
[ -f "$records" ] || head -c $((record * 1783)) /dev/urandom >"$records" || exit 1
cat "$records" >/dev/null
tokens=$WORK/tokens.bin # 32 MiB of ids of 16 bits
[ -f "$tokens" ] || head -c 33554432 /dev/urandom >"$tokens" || exit 1
cold=$WORK/cold.bin cold_record=110592
if [ "$cold_bytes" -gt 0 ] && [ ! -f "$cold" ]; then
    head -c $((cold_bytes / cold_record * cold_record)) /dev/zero | tr '\0' 'x' >"$cold" && sync "$cold" || exit 1
fi

# --- rounds ------------------------------------------------------------------------------------------------------------
jpeg_keys=(--image 224 --augment "random-resized-crop,flip" --batch 64 --shuffle full)
simd=$("$build/tests/bench/parts" resample | sed -n '1s/ .*//p')
case $simd in avx512) twins="avx512 avx2 scalar" ;; avx2) twins="avx2 scalar" ;; *) twins=scalar ;; esac

round_jpeg() {
    local json
    for n in $WORKERS; do
        json=$(ours "$pictures" "${jpeg_keys[@]}" --workers "$n")
        note "jpeg.$n" "$(key samples_per_s <<<"$json")"
        note "together.$n" "$(key decode_together_per_s <<<"$json")"
        [ "$n" = 1 ] || continue
        note jpeg.whole "$(key decode_full_per_s <<<"$json")"
        note jpeg.region "$(key decode_region_per_s <<<"$json")"
        note jpeg.outside "$(key outside_decode_transform_percent <<<"$json")"
        note jpeg.first "$(key first_batch_ms <<<"$json")"
        note jpeg.open "$(key open_ms <<<"$json")"
    done
    json=$(ours "$pictures" "${jpeg_keys[@]}" --batch 16)
    note gap "$(grep -oE '"epoch_gap_ms": {[^}]*}' <<<"$json" | key mean)"
    note between "$(grep -oE '"ms_per_batch": {[^}]*}' <<<"$json" | key mean)"
}
round_resample() {
    local out
    for twin in $twins; do
        out=$(LOADERD_SIMD=$twin "$build/tests/bench/parts" resample)
        note "resample.$twin" "$(awk 'NR == 1 {print $2}' <<<"$out")"
        note resample.plain "$(awk '/^plain/ {print $2}' <<<"$out")"
    done
}
round_raw() {
    local json
    for n in $WORKERS; do
        json=$(ours "$records" --record "x:f32[3,224,224]" --shuffle full --batch 64 --workers "$n")
        note "raw.$n" "$(key bytes_out_per_s <<<"$json")"
        note "copy.$n" "$(key copy_bytes_per_s <<<"$json")"
    done
}
round_cold() {
    [ "$cold_bytes" -gt 0 ] || return
    local json cpu # fio where the worker was: a disk that interrupts another CPU must wake it there, too
    for depth in 1 16 64; do
        json=$(ours "$cold" --record "x:u8[$cold_record]" --shuffle full --direct yes --workers 1 --depth "$depth" \
            --batch 32 --slots 16 --max-ring-bytes 512M)
        note "cold.$depth" "$(key bytes_in_per_s <<<"$json")"
        note "alone.$depth" "$(key device_bytes_per_s <<<"$json")"
        command -v fio >/dev/null || continue
        cpu=$(key cpu <<<"$json")
        [ "${cpu:--1}" -ge 0 ] || cpu= # it was not pinned
        json=$(fio --name=cold --filename="$cold" --rw=randread --bs="$cold_record" --direct=1 --ioengine=io_uring ${cpu:+--cpus_allowed="$cpu"} \
            --iodepth="$depth" --runtime="$(awk -v s="$seconds" 'BEGIN {printf "%d", s < 1 ? 1 : s}')" --time_based --readonly --output-format=json 2>>"$values/errors")
        note "fio.$depth" "$(grep -oE '"bw_bytes" : [0-9]+' <<<"$json" | head -n 1 | sed 's/.*: //')"
    done
}
round_ring() {
    local out
    out=$("$build/tests/bench/pop" 2>>"$values/errors")
    note pop "$(awk '/^next \+ release, ready/ {print $5}' <<<"$out")"
    note pop.p99 "$(awk '/^next \+ release, ready/ {print $8}' <<<"$out")"
    for n in $WORKERS; do
        out=$("$build/tests/bench/claims" "$n" "$seconds" 2>>"$values/errors")
        note "claims.$n" "$(sed -nE 's/.*: ([0-9.]+) million claims.*/\1/p' <<<"$out")"
    done
}
round_tokens() {
    local json
    json=$(ours "$tokens" --format tokens --token-dtype u16 --tokens 1024 --batch 4 --shuffle full --workers 1 --slots 64)
    note tokens "$(key batches_per_s <<<"$json")"
    note widen "$("$build/tests/bench/parts" widen | awk '{print $2}')"
}

for ((round = 1; round <= rounds; round++)); do
    for part in jpeg resample raw cold ring tokens; do
        echo "round $round of $rounds: $part" >&2
        "round_$part"
    done
done

# --- the table ---------------------------------------------------------------------------------------------------------
mega() { awk -v x="$(median "$1")" 'BEGIN {if (x == "-") print x; else printf "%.2f GB/s", x / 1e9}'; }
model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
echo "$cpus CPUs (${model:-unknown}), Linux $(uname -r), $(date -I), $("$build/loaderctl" version | sed -n 's/^codec *//p')"
echo
line figure here "beside it, same run" ratio wanted
line --- --- --- --- ---
line "JPEG RRC-224 u8, samples/s, 1 worker, against whole decode + the same resize" "$(figure %.0f jpeg.1)" \
    "$(figure %.0f jpeg.whole)" "$(ratio jpeg.1 jpeg.whole)" "≥ 1.25"
line "the same, against the bare loop of region decode + resize" "$(figure %.0f jpeg.1)" "$(figure %.0f jpeg.region)" \
    "$(ratio jpeg.1 jpeg.region)" "≥ 0.95"
line "worker time outside decode and resample" "$(figure '%.1f %%' jpeg.outside)" - - "≤ 5 %"
for n in $WORKERS; do
    [ "$n" = 1 ] && continue
    eff=$(awk -v a="$(median "jpeg.$n")" -v b="$(median jpeg.1)" -v n="$n" \
        'BEGIN {if (a == "-" || b == "-" || b == 0) print "-"; else printf "%.2f", a / b / n}')
    line "JPEG, $n workers against $n times one" "$(figure %.0f "jpeg.$n")" "$(figure %.0f jpeg.1)" "$eff" \
        "$([ "$n" -le 8 ] && echo "≥ 0.9" || echo "≥ 0.8")"
    line "the same, against $n bare loops of region decode + resize at once" "$(figure %.0f "jpeg.$n")" \
        "$(figure %.0f "together.$n")" "$(ratio "jpeg.$n" "together.$n")" "≥ 0.95"
done
line "first batch with a warm index, ms (of that, to open the dataset)" "$(figure %.1f jpeg.first)" \
    "$(figure %.1f jpeg.open)" - -
line "last batch of an epoch to the first of the next, ms, against other batches" "$(figure %.2f gap)" \
    "$(figure %.2f between)" "$(ratio gap between)" "about 1"
for twin in $twins; do
    wanted=-
    [ "$twin" = avx512 ] && wanted="≤ 0.20"
    [ "$twin" = avx2 ] && wanted="≤ 0.30"
    line "resample 343x257 to 224x224, µs, $twin against a plain loop" "$(figure %.0f "resample.$twin")" \
        "$(figure %.0f resample.plain)" "$(ratio "resample.$twin" resample.plain)" "$wanted"
done
for n in $WORKERS; do
    line "raw float32 records from the page cache, $n workers, against the best copy loop" "$(mega "raw.$n")" \
        "$(mega "copy.$n")" "$(ratio "raw.$n" "copy.$n")" "≥ 0.9"
done
if [ "$cold_bytes" -gt 0 ]; then
    for depth in 1 16 64; do
        if [ -s "$values/fio.$depth" ]; then
            line "random records of 110 KB, O_DIRECT, depth $depth, against fio" "$(mega "cold.$depth")" \
                "$(mega "fio.$depth")" "$(ratio "cold.$depth" "fio.$depth")" "≥ 0.9"
        fi
        line "the same, against bare reads" "$(mega "cold.$depth")" "$(mega "alone.$depth")" \
            "$(ratio "cold.$depth" "alone.$depth")" -
    done
fi
line "next + release, batch ready, ns (99th percentile beside)" "$(figure %.0f pop)" "$(figure %.0f pop.p99)" - "≤ 200"
for n in $WORKERS; do
    line "claims, millions a second, $n threads" "$(figure %.2f "claims.$n")" - - \
        "$([ "$n" = 16 ] && echo "≥ 5" || echo -)"
done
line "tokens B=4 T=1024, batches/s, 1 worker, against a bare widening loop" "$(figure %.0f tokens)" "$(figure %.0f widen)" \
    "$(ratio tokens widen)" "≥ 0.5"
[ -s "$values/errors" ] && grep -E "^loaderctl: [^p]|^fio: |^pop: |^claims: " "$values/errors" | sort | uniq -c >&2
exit 0
