#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The cache changes no byte of any batch: digests with and without it are the same, when it is filled and when it is used,
# over folders, tars, packs and TFRecords with sound, damaged and unsupported pictures; whatever is done to its files; when
# a picture changes; when the cache cannot be had. And it is used: its counters say so.
set -euo pipefail
# shellcheck source=tests/common.sh
. "$(dirname "$0")/common.sh"

digest() { # the lines of the batches; what else was said is in $work/err
    "$LOADERCTL" digest "$@" --ids 2>"$work/err" | grep -v '^#' || fail "digest $*: $(tail -n 2 "$work/err")"
}

# same WHAT OPTION...: as without a cache, which is in $work/reference.
same() {
    local what=$1
    shift
    digest "$@" >"$work/other"
    cmp -s "$work/reference" "$work/other" || fail "$what: $(diff "$work/reference" "$work/other" | head -n 4)"
}

# counters OPTION...: sets hits, misses, entries, refused, dropped, from a short bench.
counters() {
    local name value
    "$LOADERCTL" bench "$@" --seconds 0.2 --json >"$work/bench" 2>"$work/err" || fail "bench $*: $(tail -n 2 "$work/err")"
    hits=0 misses=0 entries=0 refused=0 dropped=0
    while read -r name value; do
        case $name in
        hits | misses | entries | refused | dropped) printf -v "$name" %s "$value" ;;
        esac
    done < <(grep -o '"cache": {[^}]*}' "$work/bench" | grep -oE '"[a-z]+": [0-9]+' | tr -d '":')
}

# ---- data ----------------------------------------------------------------------------------------------------------
"$builddir/tools/demo-data" --train 12 --validation 1 "$work/data" >&2
folder=$work/data/train
corpus=$root/tests/fuzz/corpus/jpeg
first=("$folder"/*)
cp "$corpus"/{420,440,gray,cmyk,rgb,422-restarts,420-progressive,420-arithmetic,420-arithmetic-progressive,junk,cut}.jpg "${first[0]}"
for n in 5 8; do cp "$corpus/orientation-$n" "${first[1]}/orientation-$n.jpg"; done
pictures=("$folder"/*/*)
head -c 700 "${pictures[20]}" >"$work/cut" && cp "$work/cut" "${pictures[20]}"
printf 'not a picture' >"${pictures[33]}"
printf 'xxxxxxxx' | dd of="${pictures[40]}" bs=1 seek=900 conv=notrunc status=none
cat "${pictures[1]}" "${pictures[2]}" >"$work/two" && cp "$work/two" "${pictures[1]}" # a JPEG and trailing bytes
settle() { find "$@" -exec touch -d '1 hour ago' {} +; } # what was just written is not cached
settle "$folder"
n=0
mkdir "$work/flat"
for picture in "${pictures[@]}"; do
    cp "$picture" "$work/flat/$(printf %04d "$n").jpg"
    printf %d $((n % 7)) >"$work/flat/$(printf %04d "$n").cls"
    n=$((n + 1))
done
tar -C "$work/flat" --sort=name -cf "$work/set.tar" .
"$LOADERCTL" pack "$folder" "$work/set.pack" --on-error keep >"$work/out" 2>&1 ||
    "$LOADERCTL" pack "$folder" "$work/set.pack" >"$work/out" 2>&1 || fail "pack: $(tail -n 2 "$work/out")"
sources=("$folder" "$work/set.tar" "$work/set.pack")
if command -v python3 >/dev/null; then
    python3 - "$work/flat" "$work/set.tfrecord" <<'PYTHON'
import pathlib, struct, sys

TABLE = []
for n in range(256):
    for _ in range(8):
        n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
    TABLE.append(n)

def masked(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])

def message(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data

def feature(name, value):
    return message(1, message(1, name.encode()) + message(2, value))

with open(sys.argv[2], "wb") as out:
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jpg")):
        image, label = path.read_bytes(), int(path.with_suffix(".cls").read_text())
        example = message(1, feature("image/encoded", message(1, message(1, image))) +
                          feature("image/class/label", message(3, message(1, varint(label)))))
        length = struct.pack("<Q", len(example))
        out.write(length + masked(length) + example + masked(example))
PYTHON
    sources+=("$work/set.tfrecord")
    # label pictures beside the pictures: gray PNGs of their size
    python3 - "$folder" "$work/masks" <<'PYTHON'
import pathlib, struct, sys, zlib

def size(data):
    at = 2
    while at + 9 < len(data) and data[at] == 255:
        if 0xC0 <= data[at + 1] <= 0xCF and data[at + 1] not in (0xC4, 0xC8, 0xCC):
            return struct.unpack(">HH", data[at + 5:at + 9])
        at += 2 + struct.unpack(">H", data[at + 2:at + 4])[0]
    return 8, 8

def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

folder, masks = map(pathlib.Path, sys.argv[1:])
for number, path in enumerate(sorted(folder.glob("*/*"))):
    height, width = size(path.read_bytes())
    rows = b"".join(b"\0" + bytes((x * 3 + y + number) % 21 for x in range(width)) for y in range(height))
    target = masks / path.relative_to(folder).with_suffix(".png")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
                       chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
PYTHON
else
    echo "no python3 here: no TFRecord file is made" >&2
fi
settle "$work"/set*

# ---- no byte is changed ---------------------------------------------------------------------------------------------
look=(--image 40x48 --shuffle full --seed 5 --batch 10 --on-error substitute --workers 2 --index none)
crop=(--augment "random-resized-crop,flip")
for source in "${sources[@]}"; do
    name=${source##*/} cache=(--cache "$work/cache-${source##*/}" --cache-size 32M --cache-fill full)
    digest "$source" "${look[@]}" "${crop[@]}" >"$work/reference"
    [ -s "$work/reference" ] || fail "no digest of $source"
    same "$name, first epoch" "$source" "${look[@]}" "${crop[@]}" "${cache[@]}"
    same "$name, again" "$source" "${look[@]}" "${crop[@]}" "${cache[@]}"
    counters "$source" "${look[@]}" "${crop[@]}" "${cache[@]}"
    { [ "$hits" -gt 50 ] && [ "$entries" -gt 60 ] && [ "$hits" -gt $((misses * 4)) ] && [ "$dropped" -eq 0 ]; } ||
        fail "$name: $hits hits, $misses misses, $entries entries, $dropped dropped"
    for engine in uring mmap pread; do
        same "$name, $engine" "$source" "${look[@]}" "${crop[@]}" "${cache[@]}" --engine $engine --workers 3
    done
    for keys in '--epoch 1 --augment center-crop' '--color gray --augment random-resized-crop' '--orientation apply --augment stretch' \
        '--on-damage accept --augment stretch' '--on-error blank --verify-crc yes' '--dtype f32 --normalize imagenet'; do
        read -ra more <<<"$keys"
        digest "$source" "${look[@]}" "${more[@]}" >"$work/reference"
        same "$name, $keys" "$source" "${look[@]}" "${more[@]}" "${cache[@]}"
        same "$name, $keys, again" "$source" "${look[@]}" "${more[@]}" "${cache[@]}"
    done
done

# A mask beside a picture that is not read; where PNG is built in.
if [ -d "$work/masks" ] && digest "$folder" "${look[@]}" "${crop[@]}" --masks "$work/masks" >"$work/reference" 2>/dev/null; then
    grep -q 'mask=' "$work/reference" || fail "no masks: $(head -n 2 "$work/reference")"
    for round in 1 2; do
        same "masks, round $round" "$folder" "${look[@]}" "${crop[@]}" --masks "$work/masks" --cache "$work/cache-train" --cache-size 32M
    done
    counters "$folder" "${look[@]}" "${crop[@]}" --masks "$work/masks" --cache "$work/cache-train" --cache-size 32M
    [ "$hits" -gt 50 ] || fail "masks: $hits hits"
fi

# Boxes beside a picture that is not read: YOLO's labels. The crop moves them, so the record's size must be the picture's.
n=0
for picture in "${pictures[@]}"; do
    printf '%d 0.%d 0.5 0.25 0.%d\n3 0.25 0.25 0.125 0.125\n' $((n % 5)) $((n % 8 + 1)) $((n % 4 + 1)) >"${picture%.*}.txt"
    n=$((n + 1))
done
boxes=("$folder" "${look[@]}" "${crop[@]}" --boxes beside)
digest "${boxes[@]}" >"$work/reference"
grep -q 'boxes=' "$work/reference" || fail "no boxes: $(head -n 2 "$work/reference")"
for round in 1 2; do
    same "boxes, round $round" "${boxes[@]}" --cache "$work/cache-boxes" --cache-size 32M --cache-fill full
done
for engine in uring mmap pread; do
    same "boxes, $engine" "${boxes[@]}" --cache "$work/cache-boxes" --cache-size 32M --engine $engine --workers 3
done
counters "${boxes[@]}" --cache "$work/cache-boxes" --cache-size 32M
{ [ "$hits" -gt 50 ] && [ "$hits" -gt $((misses * 4)) ]; } || fail "boxes: $hits hits, $misses misses"
size() { grep -oE '"bytes_in": [0-9]+' "$work/bench" | head -n 1 | tr -dc 0-9; }
samples() { grep -oE '"samples": [0-9]+' "$work/bench" | head -n 1 | tr -dc 0-9; }
[ "$(size)" -lt $(($(samples) * 1500)) ] || fail "boxes: $(size) bytes were read for $(samples) samples"
find "$folder" -name '*.txt' -delete

# Other limits make other samples bad: what was cached under one set of them is not good under another.
for limit in '--max-pixels 3000' '--max-scans 2' '--max-sample-bytes 1500'; do
    read -ra more <<<"$limit"
    digest "$folder" "${look[@]}" --on-error blank "${more[@]}" >"$work/reference"
    same "folder, $limit" "$folder" "${look[@]}" --on-error blank "${more[@]}" --cache "$work/cache-train" --cache-size 32M
done

# Within one process, in memory; each picture comes twice.
twice="$folder + $folder"
digest "$twice" "${look[@]}" "${crop[@]}" --shuffle none --on-error blank >"$work/reference"
same "in memory" "$twice" "${look[@]}" "${crop[@]}" --shuffle none --on-error blank --cache ram:32M --cache-fill full
same "in memory, idle" "$twice" "${look[@]}" "${crop[@]}" --shuffle none --on-error blank --cache ram:32M
counters "$twice" "${look[@]}" "${crop[@]}" --cache ram:32M --cache-fill full
{ [ "$hits" -gt 0 ] && [ "$refused" -gt 0 ]; } || fail "ram: $hits hits, $refused refused"

# By idle workers.
digest "$folder" "${look[@]}" "${crop[@]}" >"$work/reference"
for round in 1 2 3; do
    same "idle, round $round" "$folder" "${look[@]}" "${crop[@]}" --cache "$work/idle" --cache-size 32M
done
counters "$folder" "${look[@]}" "${crop[@]}" --cache "$work/idle" --cache-size 32M
[ "$entries" -gt 10 ] || fail "idle workers kept $entries entries"

# A cache that is too small for all serves what it has.
for round in 1 2 3; do
    same "small, round $round" "$folder" "${look[@]}" "${crop[@]}" --cache "$work/small" --cache-size 4M --cache-fill full
done
[ "$(du -sk "$work/small" | cut -f 1)" -le 4200 ] || fail "a cache of 4M takes $(du -sk "$work/small")"

# ---- whatever is done to its files -----------------------------------------------------------------------------------
cache=(--cache "$work/harmed" --cache-size 32M --cache-fill full)
RANDOM=7
for round in 1 2 3 4 5 6; do
    same "harmed, filled" "$folder" "${look[@]}" "${crop[@]}" "${cache[@]}"
    for segment in "$work/harmed"/segment-*; do
        for i in $(seq 40); do # bytes of the table and of records
            printf '\x5a' | dd of="$segment" bs=1 seek=$((4096 + i * 64 * (RANDOM % 8) + RANDOM * i % 700000)) conv=notrunc status=none
        done
        [ $round -ne 5 ] || truncate -s 300000 "$segment"
        [ $round -ne 6 ] || truncate -s 0 "$segment"
    done
    same "harmed, round $round" "$folder" "${look[@]}" "${crop[@]}" "${cache[@]}"
done
for i in 1 2 3 4 5; do # killed while it is filled
    "$LOADERCTL" digest "$folder" "${look[@]}" "${crop[@]}" --cache "$work/killed" --cache-size 32M --cache-fill full >/dev/null 2>&1 &
    sleep 0.0$((i * 2))
    kill -9 $! 2>/dev/null || true
    wait $! 2>/dev/null || true
    same "killed $i times" "$folder" "${look[@]}" "${crop[@]}" --cache "$work/killed" --cache-size 32M
done

# ---- a picture that changes -------------------------------------------------------------------------------------------
cache=(--cache "$work/cache-train" --cache-size 32M --cache-fill full)
cp "${pictures[12]}" "$work/moved" && settle "$work/moved" && mv "$work/moved" "${pictures[7]}" # another file under the name
cat "${pictures[13]}" >"${pictures[8]}"                                                         # other bytes in the file
touch -d '2 hours ago' "${pictures[9]}"
rm "${pictures[10]}"
digest "$folder" "${look[@]}" "${crop[@]}" >"$work/changed"
! cmp -s "$work/changed" "$work/reference" || fail "the pictures did not change"
cp "$work/changed" "$work/reference"
same "changed" "$folder" "${look[@]}" "${crop[@]}" "${cache[@]}"
same "changed, again" "$folder" "${look[@]}" "${crop[@]}" "${cache[@]}"

# ---- a cache that cannot be had is a line -----------------------------------------------------------------------------
# without PATTERN DIRECTORY: the same digest, and one line that says why.
without() {
    same "without: $1" "$folder" "${look[@]}" "${crop[@]}" --cache "$2" --cache-size 32M --cache-fill full
    [ "$(grep -cE "$1" "$work/err")" -eq 1 ] || fail "no line, or several, with '$1': $(cat "$work/err")"
}
without 'runs without a cache: /dev/null/here cannot be made: Not a directory' /dev/null/here
without 'runs without a cache: .*/no/parent cannot be made: No such file' "$work/no/parent"
if command -v flock >/dev/null; then
    mkdir "$work/busy"
    (exec flock "$work/busy/lock" sleep 60) &
    holder=$!
    for i in $(seq 100); do
        flock -n "$work/busy/lock" true || break
        sleep 0.05
    done
    without 'runs without a cache: .*/busy is in use by process' "$work/busy"
    kill $holder
    wait $holder 2>/dev/null || true
fi
trap '' XFSZ
(
    ulimit -f 700 # KiB: stands for a disk that is full
    without 'cannot make another segment: .*; it takes no more' "$work/full"
    exit $failures
) || failures=$((failures + 1))
trap - XFSZ
status=0
"$LOADERCTL" digest "$folder" --cache ram:lots >"$work/out" 2>&1 || status=$?
{ [ $status -eq 2 ] && grep -q 'wanted ram:SIZE' "$work/out"; } || fail "ram:lots: $status, $(cat "$work/out")"

# ---- a daemon says what its caches do ---------------------------------------------------------------------------------
if [ -x "$LOADERD_DAEMON" ]; then
    cat >"$work/loaderd.conf" <<EOF2
[daemon]
socket = $work/socket
[pipeline one]
dataset = $work/data/val + $folder
on-error = blank
cache = cache-daemon
cache-size = 8M
cache-fill = full
[pipeline two]
dataset = $folder
on-error = blank
cache = $work/cache-daemon
EOF2
    export LOADERD_SOCKET=$work/socket
    "$LOADERD_DAEMON" --config "$work/loaderd.conf" 2>"$work/daemon.err" &
    daemon=$!
    for i in $(seq 200); do
        [ ! -S "$work/socket" ] || break
        sleep 0.05
    done
    for pipeline in one one two; do
        "$builddir/client/examples/pop" $pipeline >"$work/pop" 2>&1 || fail "pop $pipeline: $(tail -n 2 "$work/pop")"
    done
    "$LOADERCTL" status --json >"$work/status" || fail "status"
    list=$(tr -d '\n' <"$work/status" | grep -o '"caches": \[[^]]*\]')
    [ "$(grep -o '"place"' <<<"$list" | wc -l)" -eq 1 ] || fail "two pipelines, one directory: $list"
    hits=$(grep -oE '"hits": [0-9]+' <<<"$list" | grep -oE '[0-9]+')
    [ "${hits:-0}" -gt 50 ] || fail "the daemon's cache: $list"
    "$LOADERCTL" status >"$work/status" || fail "status for people"
    grep -q 'hit_percent' "$work/status" || fail "status shows no caches"
    without 'runs without a cache: .*/cache-daemon is in use by process '"$daemon" "$work/cache-daemon"
    kill $daemon
    wait $daemon || true
    daemon=
fi

[ $failures -eq 0 ] || exit 1
echo "cache: all checks passed"
