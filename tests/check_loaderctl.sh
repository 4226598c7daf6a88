#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# loaderctl over small generated data: digests do not depend on workers or read engine, on sound, damaged and mixed
# data; CRC-32s are those that gzip computes; every sample comes once an epoch over any number of ranks; JSON is JSON;
# pictures are PNG; what cannot work ends with its status and a sentence that names the thing.
set -euo pipefail
# shellcheck source=tests/common.sh
. "$(dirname "$0")/common.sh"

# expect STATUS PATTERN COMMAND...: its exit status, and what stderr must say.
expect() {
    local wanted=$1 pattern=$2 got=0
    shift 2
    "$@" >"$work/out" 2>"$work/err" || got=$?
    [ "$got" -eq "$wanted" ] || fail "$* ended with $got, wanted $wanted: $(tail -n 2 "$work/err")"
    grep -qE -- "$pattern" "$work/err" || fail "$*: stderr has no '$pattern': $(tail -n 2 "$work/err")"
}

is_json() {
    if command -v python3 >/dev/null; then
        python3 -m json.tool >/dev/null <"$1"
    else
        tr -d '\n' <"$1" | grep -q '^{.*}$'
    fi
}

# has_keys FILE KEY...
has_keys() {
    local file=$1 key
    shift
    is_json "$file" || fail "$file is no JSON: $(head -c 300 "$file")"
    for key in "$@"; do
        grep -q "\"$key\": " "$file" || fail "$(basename "$file") has no key $key"
    done
}

digest() {
    "$LOADERCTL" digest "$@" 2>"$work/err" || {
        fail "digest $*: $(tail -n 2 "$work/err")"
        return 0
    }
}

byte() {
    printf '%b' "\\0$(printf %o "$1")"
}

crc_of() { # as gzip computes it: first word of the trailer, little-endian
    gzip -c | tail -c 8 | od -An -tx4 -N4 | tr -d ' '
}

# ---- data ----------------------------------------------------------------------------------------------------------
"$builddir/tools/demo-data" --train 12 --validation 4 "$work/data" >&2
good=$work/data/train
damaged=$work/damaged
cp -r "$good" "$damaged"
pictures=("$damaged"/*/*)
truncate -s 300 "${pictures[3]}"                                                   # header alone
truncate -s $(($(stat -c %s "${pictures[17]}") / 2)) "${pictures[17]}"             # half
: >"${pictures[20]}"                                                               # empty
printf '\211PNG\r\n\032\n and so on' >"${pictures[31]}"                            # another format
printf 'not found' >"${pictures[32]}"                                              # an error page
printf '\252\125\252\125\252\125' | dd of="${pictures[40]}" bs=1 conv=notrunc \
    seek=$(($(stat -c %s "${pictures[40]}") / 2)) status=none                      # scribbled over
head -c 4096 /dev/zero >>"${pictures[50]}"                                         # trailing bytes: sound

records=$work/records.bin # 37 records: label, 2 x 2 pixels of 3 channels
for i in $(seq 0 36); do
    byte $((i % 10))
    for j in $(seq 0 11); do byte $(((i * 29 + j * 7) % 256)); done
done >"$records"

# ---- digests -------------------------------------------------------------------------------------------------------
augment=(--image 40x48 --augment "random-resized-crop,flip" --shuffle full --seed 7 --epoch 2 --ids --batch 10)
same_for_all() { # NAME DATASET OPTION...
    local name=$1 workers engine
    shift
    digest "$@" --workers 1 --engine pread >"$work/reference"
    [ "$(grep -vc '^#' "$work/reference")" -gt 2 ] || fail "$name: too few lines"
    for engine in uring mmap pread; do
        for workers in 1 2 5; do
            digest "$@" --workers $workers --engine $engine >"$work/other"
            cmp -s "$work/reference" "$work/other" ||
                fail "$name: digests differ for --workers $workers --engine $engine: $(diff "$work/reference" "$work/other" | head -4)"
        done
    done
}
same_for_all sound "$good" "${augment[@]}"
same_for_all blank "$damaged" "${augment[@]}" --on-error blank --last keep
grep -q '\*b' "$work/reference" || fail "no row of the damaged set is marked blank"
same_for_all accepted "$damaged" "${augment[@]}" --on-error blank --on-damage accept
grep -q '\*d' "$work/reference" || fail "no row of the damaged set is marked damaged"
same_for_all substituted "$damaged" "${augment[@]}" --on-error substitute
grep -q '\*s' "$work/reference" || fail "no row of the damaged set is marked substituted"
same_for_all normalised "$good" --image 32 --augment center-crop --normalize imagenet --dtype f32 --layout nchw --batch 16
for engine in uring mmap pread; do # the most that the key takes
    digest "$good" "${augment[@]}" --depth 16 --engine $engine >"$work/reference"
    digest "$good" "${augment[@]}" --depth 1024 --engine $engine >"$work/other"
    cmp -s "$work/reference" "$work/other" || fail "digests differ for --depth 1024 --engine $engine"
done
same_for_all synthetic synthetic:100x3x8x8:f32 --batch 9 --last pad --ids
grep -q '\*p' "$work/reference" || fail "no row of the last step is marked padding"

digest "$good" "${augment[@]}" --seed 8 >"$work/other"
digest "$good" "${augment[@]}" >"$work/reference"
! cmp -s "$work/reference" "$work/other" || fail "another seed gives the same digests"
digest "$good" "${augment[@]}" --steps 2..4 >"$work/other"
diff <(grep -v '^#' "$work/reference" | sed -n 3,4p) <(grep -v '^#' "$work/other") || fail "--steps 2..4 is not that part"

# Record fields as they lie in the file: what gzip says of the same bytes.
record=(--record 'label:u8 image:u8[3,2,2]' --layout nchw --batch 5 --label-dtype i32)
digest "$records" "${record[@]}" --steps 3..4 >"$work/other"
wanted=$(for i in 15 16 17 18 19; do dd if="$records" bs=1 skip=$((i * 13 + 1)) count=12 status=none; done | crc_of)
grep -qE "^3 .*image=$wanted( |$)" "$work/other" || fail "digest of records: $(tail -n 1 "$work/other"), gzip says image=$wanted"
wanted=$(printf '\5\0\0\0\6\0\0\0\7\0\0\0\10\0\0\0\11\0\0\0' | crc_of)
grep -qE "^3 .*label=$wanted( |$)" "$work/other" || fail "digest of records: $(tail -n 1 "$work/other"), gzip says label=$wanted"

# Large records, which are copied with stores that pass the caches or not: what gzip says of them, too.
large=$work/large.bin
head -c 1000000 /dev/urandom >"$large" # ten of 100,000 bytes
for stores in auto streaming ordinary; do
    same_for_all "large records, $stores" "$large" --record 'x:u8[100000]' --batch 2 --shuffle full --stores $stores
    digest "$large" --record 'x:u8[100000]' --batch 10 --stores $stores >"$work/other"
    wanted=$(crc_of <"$large")
    grep -qE "^0 .*x=$wanted( |$)" "$work/other" || fail "large records, $stores: $(tail -n 1 "$work/other"), gzip says x=$wanted"
done

# ---- every sample once ---------------------------------------------------------------------------------------------
for world in 1 2 3; do
    for rank in $(seq 0 $((world - 1))); do
        digest "$good" --image 8 --shuffle full --last keep --batch 7 --ids --epoch 5 --rank "$rank" --world $world
    done | sed -n '/^#/d; s/.* ids=//p' | tr ',' '\n' | sed '/\*/d' | sort -n >"$work/ids"
    diff -q <(seq 0 71) "$work/ids" >/dev/null || fail "world $world: not every sample once ($(wc -l <"$work/ids") of 72)"
done

# ---- JSON ----------------------------------------------------------------------------------------------------------
"$LOADERCTL" bench "$good" --image 32 --seconds 0.5 --batch 8 --json >"$work/bench" 2>"$work/err"
has_keys "$work/bench" samples_per_s bytes_per_s seconds workers engine bound_by stages rescues ceilings codec page_cache device_bytes cpu_quota
grep -q '"rescues": 0,' "$work/bench" || fail "bench had rescues: $(grep -o '"rescues": [0-9]*' "$work/bench")"
grep -qE '"decode_region_per_s": [1-9].*"decode_together_per_s": [1-9].*"copy_bytes_per_s": [1-9].*"empty_claims_per_s": [1-9]' "$work/bench" ||
    fail "bench measured no ceilings: $(grep -o '"ceilings": {[^}]*}' "$work/bench")"
for look in "8 8 1" "16 8 4" "64 1 8"; do # slots by themselves, batch, workers: 32 pictures a worker, 8 to 64 slots
    read -r wanted batch workers <<<"$look"
    "$LOADERCTL" bench "$good" --image 8 --seconds 0.05 --batch "$batch" --workers "$workers" --json >"$work/bench" 2>"$work/err"
    grep -q "\"slots\": $wanted," "$work/bench" || fail "batch $batch, $workers workers: $(grep -o '"slots": [0-9]*' "$work/bench"), wanted $wanted"
done
"$LOADERCTL" bench synthetic:100x4:f32 --ceilings --seconds 0.3 >"$work/out" 2>"$work/err"
grep -qE '^  empty pipeline [1-9]' "$work/out" || fail "bench --ceilings prints none: $(cat "$work/out" "$work/err")"
"$LOADERCTL" bench synthetic:10000x3x224x224:f32 --batch 16 --seconds 0.3 >"$work/out" 2>"$work/err"
[ "$(grep -cE '^(ms a batch|samples/s) +[0-9]' "$work/out")" -eq 2 ] || fail "bench synthetic prints no figures"
"$LOADERCTL" inspect "$damaged" --json >"$work/inspect" 2>"$work/err"
has_keys "$work/inspect" format samples fields classes first_bad
grep -q "\"format\": \"folder\", \"samples\": 72," "$work/inspect" || fail "inspect: $(head -c 200 "$work/inspect")"
grep -q "\"first_bad\": {\"sample\": 3," "$work/inspect" || fail "inspect names another first bad sample than 3"
grep -q "$(basename "${pictures[3]}")" "$work/inspect" || fail "inspect does not name the file"
"$LOADERCTL" version --json >"$work/version"
has_keys "$work/version" version codec simd engines

"$LOADERCTL" inspect "$records" --record 'label:u8 image:u8[3,2,2]' --json >"$work/inspect" 2>"$work/err"
has_keys "$work/inspect" labels
grep -q '"labels": {"min": 0, "max": 9, "different": 10}' "$work/inspect" || fail "inspect: $(cat "$work/inspect")"

# Ctrl-C ends bench with the results so far.
"$LOADERCTL" bench "$good" --image 32 --seconds 60 --batch 8 --json >"$work/bench" 2>"$work/err" &
bench=$!
for _ in $(seq 200); do # until it catches SIGINT
    grep -qE '^SigCgt:.*[2367abef]$' "/proc/$bench/status" && break
    sleep 0.1
done
sleep 0.5
kill -INT "$bench"
wait "$bench" || fail "bench ended by SIGINT with $?"
has_keys "$work/bench" samples_per_s interrupted
grep -q '"interrupted": true' "$work/bench" || fail "bench did not see SIGINT"

# ---- pictures ------------------------------------------------------------------------------------------------------
"$LOADERCTL" show "$good" --image 32 --dtype f32 --normalize imagenet --layout nchw --batch 5 --output "$work/a.png" 2>"$work/err"
[ "$(od -An -tx1 -N8 "$work/a.png" | tr -d ' ')" = 89504e470d0a1a0a ] || fail "show wrote no PNG"
"$LOADERCTL" show "$records" --record 'label:u8 image:u8[3,2,2]' --batch 5 --output - 2>"$work/err" >"$work/b.png"
[ "$(tail -c 12 "$work/b.png" | od -An -tx1 | tr -d ' \n')" = 0000000049454e44ae426082 ] || fail "show's PNG has no end"
if command -v python3 >/dev/null; then
    python3 - "$work/a.png" "$work/b.png" <<'PYTHON' || fail "a PNG does not decode"
import struct, sys, zlib
for name in sys.argv[1:]:
    data, at, pixels = open(name, "rb").read(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + length:at + 12 + length])[0], kind
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", body[:10])
        pixels += body if kind == b"IDAT" else b""
        at += 12 + length
    assert (depth, color) == (8, 2) and len(zlib.decompress(pixels)) == height * (width * 3 + 1)
PYTHON
fi

# ---- pipelines of a file -------------------------------------------------------------------------------------------
printf '[daemon]\nworkers = 1\n[pipeline demo]\ndataset = %s\nimage = 32\nbatch = 8\n' "$good" >"$work/loaderd.conf"
digest demo --config "$work/loaderd.conf" >"$work/reference"
digest "$good" --image 32 --batch 8 >"$work/other"
diff <(grep -v '^#' "$work/reference") <(grep -v '^#' "$work/other") || fail "a pipeline and its dataset differ"

# ---- errors --------------------------------------------------------------------------------------------------------
expect 2 "unknown command 'benhc'; did you mean 'bench'" "$LOADERCTL" benhc
expect 2 'needs a dataset' "$LOADERCTL" digest
expect 2 'unknown option --btach; did you mean --batch' "$LOADERCTL" bench "$good" --btach 3
expect 2 "'bench' has no option --ids" "$LOADERCTL" bench "$good" --ids
expect 2 'needs a value' "$LOADERCTL" bench "$good" --batch
expect 2 "batch.*'0'" "$LOADERCTL" bench "$good" --batch 0
expect 2 '3..3 holds no step' "$LOADERCTL" digest "$good" --steps 3..3
expect 2 'rank' "$LOADERCTL" digest "$good" --rank 1
expect 2 'seconds' "$LOADERCTL" bench "$good" --seconds 0
expect 1 "$work/none" "$LOADERCTL" inspect "$work/none"
expect 1 "'none' is no file or folder here" "$LOADERCTL" inspect none
expect 1 "'none'.*demo" "$LOADERCTL" inspect none --config "$work/loaderd.conf"
expect 1 'no file matches none-\*.tar' "$LOADERCTL" inspect 'none-*.tar'
expect 1 'none-1.tar' "$LOADERCTL" digest 'none-{1..2}.tar'
expect 1 'step 99 ' "$LOADERCTL" digest "$good" --steps 99..
mkdir "$work/empty"
expect 1 "$work/empty" "$LOADERCTL" inspect "$work/empty"
expect 1 "$records" "$LOADERCTL" inspect "$records" --record 'label:u8 image:u8[3,2,3]'
expect 1 'max-ring-bytes|ring' "$LOADERCTL" bench synthetic:100000x3x1024x1024:f32 --batch 4096 --slots 8
expect 1 "$(basename "${pictures[3]}")" "$LOADERCTL" digest "$damaged" --image 32 --batch 4 --on-error fail
[ "$(grep -vc '^#' "$work/out")" -eq 0 ] || fail "the failing step was printed"
expect 1 "cannot create $work/no/such.png" "$LOADERCTL" show "$good" --image 32 --output "$work/no/such.png"
expect 1 'No space left' bash -c "\"$LOADERCTL\" digest \"$good\" --image 32 >/dev/full"
expect 1 "no daemon answers at $work/socket" "$LOADERCTL" status --socket "$work/socket"

# ---- formats of others: files of pyarrow, and a header by FFCV's HeaderType; the lines of the manual make shards of them --
foreign=$(cd "$(dirname "$0")" && pwd)/data/formats/foreign
expect 1 'two.parquet is a Parquet file; pyarrow copies' "$LOADERCTL" inspect "$foreign/two.parquet"
expect 1 'two.arrow is an Arrow file .*; pyarrow copies' "$LOADERCTL" inspect "$foreign/two.arrow"
expect 1 'two.arrows is an Arrow stream; pyarrow copies' "$LOADERCTL" inspect "$foreign/two.arrows"
expect 1 'two.feather1 is a Feather file of version 1; pyarrow' "$LOADERCTL" inspect "$foreign/two.feather1"
expect 1 'two.beton is an FFCV beton file; .*loaderctl pack' "$LOADERCTL" inspect "$foreign/two.beton"
manual=$foreign/../../../../docs/troubleshooting.md
# shellcheck disable=SC2016
sed '1,/^## Parquet, Arrow and FFCV/d' "$manual" | sed -n '/^```python/,/^```/p' | sed '/^```/d' >"$work/shards.py"
[ -s "$work/shards.py" ] || fail "no lines of Python in $manual"
if python3 -c 'import pyarrow' 2>/dev/null; then
    mkdir "$work/columns"
    python3 - "$work/columns" "${pictures[0]}" "${pictures[1]}" <<'END'
import sys
import pyarrow as pa, pyarrow.parquet as pq
folder, *files = sys.argv[1:]
pictures = [open(f, "rb").read() for f in files]
table = pa.table({"image": [{"bytes": b, "path": None} for b in pictures], "label": [4, 2]})
pq.write_table(table, folder + "/a.parquet")
with pa.ipc.new_file(folder + "/b.arrow", table.schema) as out:
    out.write_table(table)
table = pa.table({"image": pictures, "label": [4, 2]})
with pa.ipc.new_stream(folder + "/c.arrow", table.schema) as out:
    out.write_table(table)
END
    (cd "$work/columns" && python3 "$work/shards.py" a.parquet b.arrow c.arrow)
    printf '%s\t4\n%s\t2\n' "${pictures[0]}" "${pictures[1]}" >"$work/columns.list"
    digest "$work/columns.list" --image 32 --batch 2 >"$work/reference"
    for shard in a b c; do
        digest "$work/columns/$shard.tar" --image 32 --batch 2 >"$work/other"
        cmp -s <(grep -v '^#' "$work/reference") <(grep -v '^#' "$work/other") || fail "the pictures of $shard.tar are others"
    done
    # a pattern without a slash is a dataset
    (cd "$work/columns" && "$LOADERCTL" inspect '[ab].tar') >"$work/out" 2>&1 || fail "inspect '[ab].tar': $(cat "$work/out")"
    grep -q '^samples *4$' "$work/out" || fail "a pattern without a slash: $(cat "$work/out")"
elif command -v python3 >/dev/null; then
    python3 -c 'import sys; compile(open(sys.argv[1]).read(), "shards.py", "exec")' "$work/shards.py" ||
        fail "the manual's lines for Parquet and Arrow are no Python"
    echo "not run: the manual's lines for Parquet and Arrow, as there is no pyarrow here"
else
    echo "not run: the manual's lines for Parquet and Arrow, as there is no python3 here"
fi

# ---- into a device: without one, or without libloaderd-cuda, a sentence; with one, figures --------------------------
if "$LOADERCTL" bench synthetic:1000x64:f32 --device 0 --seconds 0.3 --json >"$work/device" 2>"$work/err"; then
    has_keys "$work/device" samples_per_s bus_percent helper_percent bound_by
else
    grep -q '^loaderctl: CUDA: ' "$work/err" || fail "bench --device: $(cat "$work/err")"
fi
expect 2 'for --device' "$LOADERCTL" bench synthetic:1000x64:f32 --finish f32
expect 2 'no duration' "$LOADERCTL" bench synthetic:1000x64:f32 --step-ms 0
"$LOADERCTL" bench synthetic:1000x64:f32 --batch 8 --step-ms 5 --seconds 0.3 >"$work/out" 2>/dev/null || fail "--step-ms"
grep -q 'a trainer of 5 ms a step would ' "$work/out" || fail "--step-ms says nothing: $(tail -n 3 "$work/out")"

# ---- a running daemon ----------------------------------------------------------------------------------------------
if [ -x "$LOADERD_DAEMON" ]; then
    "$LOADERD_DAEMON" --config "$work/loaderd.conf" --socket "$work/socket" 2>"$work/daemon.log" &
    daemon=$!
    for _ in $(seq 100); do
        # the socket is there a moment before the daemon listens
        ! "$LOADERCTL" status --socket "$work/socket" >/dev/null 2>&1 || break
        sleep 0.1
    done
    "$LOADERCTL" status --socket "$work/socket" --json >"$work/status" || fail "status --json"
    has_keys "$work/status" daemon workers sessions engine
    "$LOADERCTL" status --socket "$work/socket" >"$work/out" || fail "status"
    grep -qE '^engine +(uring|mmap|pread)' "$work/out" || fail "status for people: $(head -n 5 "$work/out")"
else
    echo "no $LOADERD_DAEMON here: status against a daemon was not tried" >&2
fi

[ $failures -eq 0 ] || exit 1
echo "loaderctl: all checks passed"
