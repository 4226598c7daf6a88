#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Packs through loaderctl: digests equal those of what was packed, for every format, on sound and damaged data; parts put
# together and jobs that were killed give the bytes of one undisturbed job; a Python reader that follows loaderd-pack(5)
# finds what was packed; damage is found and named; unpack gives files back.
set -euo pipefail
# shellcheck source=tests/common.sh
. "$(dirname "$0")/common.sh"

# expect STATUS PATTERN COMMAND...: its exit status, and what it must say.
expect() {
    local wanted=$1 pattern=$2 got=0
    shift 2
    "$@" >"$work/out" 2>&1 || got=$?
    [ "$got" -eq "$wanted" ] || fail "$* ended with $got, wanted $wanted: $(tail -n 2 "$work/out")"
    grep -qE -- "$pattern" "$work/out" || fail "$*: no '$pattern' in: $(tail -n 3 "$work/out")"
}

pack() {
    "$LOADERCTL" pack "$@" >"$work/out" 2>&1 || fail "pack $*: $(tail -n 2 "$work/out")"
}

digest() {
    "$LOADERCTL" digest "$@" 2>"$work/err" | grep -v '^#' || fail "digest $*: $(tail -n 2 "$work/err")"
}

# same_digests A B OPTION...
same_digests() {
    local a=$1 b=$2
    shift 2
    digest "$a" "$@" >"$work/reference"
    digest "$b" "$@" >"$work/other"
    cmp -s "$work/reference" "$work/other" || fail "digests of $a and $b differ: $(diff "$work/reference" "$work/other" | head -3)"
}

# ---- data ----------------------------------------------------------------------------------------------------------
"$builddir/tools/demo-data" --train 12 --validation 2 "$work/data" >&2
good=$work/data/train
cp "$root"/tests/fuzz/corpus/jpeg/420-{progressive,arithmetic,arithmetic-progressive}.jpg "$(echo "$good"/* | cut -d ' ' -f 2)"
damaged=$work/damaged
cp -r "$good" "$damaged"
pictures=("$damaged"/*/*)
samples=${#pictures[@]}
truncate -s 300 "${pictures[3]}"
printf 'not found' >"${pictures[32]}"
head -c 4096 /dev/zero >>"${pictures[50]}" # trailing bytes: sound
records=$work/records.bin
head -c $((13 * 37)) "${pictures[7]}" >"$records" # 37 records of 13 bytes
(cd "$good" && for picture in */*; do printf '%s\t%d\n' "$picture" "$((${#picture} * 37 % 91))"; done) >"$good/list"

# ---- what is packed is what was there -------------------------------------------------------------------------------
augment=(--image 40x48 --augment "random-resized-crop,flip" --shuffle full --seed 7 --epoch 2 --ids --batch 10)
pack "$good" "$work/good.pack"
grep -qE '[0-9]+ made baseline' "$work/out" || fail "no progressive file was rewritten: $(cat "$work/out")"
same_digests "$good" "$work/good.pack" "${augment[@]}"
for engine in uring mmap pread; do
    same_digests "$good" "$work/good.pack" "${augment[@]}" --engine $engine --workers 3
done
"$LOADERCTL" inspect "$work/good.pack" --json >"$work/inspect" 2>"$work/err"
"$LOADERCTL" inspect "$good" --json >"$work/inspect2" 2>"$work/err"
classes() { grep -o '"classes": \[[^]]*\]' "$1"; }
[ "$(classes "$work/inspect")" = "$(classes "$work/inspect2")" ] || fail "classes differ: $(classes "$work/inspect")"
pack "$work/good.pack" "$work/again.pack"
same_digests "$good" "$work/again.pack" "${augment[@]}"
pack "$good" "$work/coefficients.pack" --jpeg coefficients
grep -qE '[0-9]+ stored as coefficients' "$work/out" || fail "no coefficients: $(cat "$work/out")"
same_digests "$good" "$work/coefficients.pack" "${augment[@]}"
# Pictures that say how they are to be turned become coefficients like others; the folder's pixels, turned or not.
mkdir "$work/turned"
for n in 1 2 3 4 5 6 7 8; do # the low byte of the Exif tag 0x0112 of that file
    cp "$root/tests/fuzz/corpus/jpeg/orientation-5" "$work/turned/$n.jpg"
    printf '%b' "\\x0$n" | dd of="$work/turned/$n.jpg" bs=1 seek=61 conv=notrunc status=none
done
turned() { # PACK-OPTION...
    local orientation look
    rm -f "$work/turned.pack"
    pack "$work/turned" "$work/turned.pack" --jpeg coefficients "$@"
    grep -q ' 8 stored as coefficients' "$work/out" || fail "turned pictures, $*: $(cat "$work/out")"
    for orientation in apply ignore; do
        for look in '--augment stretch' '--augment random-resized-crop,flip --seed 5'; do
            read -ra look <<<"$look --image 24x16 --shuffle none --batch 8 --orientation $orientation"
            same_digests "${turned_by:-$work/turned}" "$work/turned.pack" "${look[@]}"
            cp "$work/reference" "$work/turned-$orientation"
        done
    done
    ! cmp -s "$work/turned-apply" "$work/turned-ignore" || fail "orientation = apply turns nothing"
}
turned
turned --keep-headers
pack "$work/turned" "$work/small-turned.pack" --resize 12 # encoded anew: the same files as JPEG and as coefficients
turned_by=$work/small-turned.pack turned --resize 12
pack "$good/list" "$work/list.pack"
same_digests "$good/list" "$work/list.pack" "${augment[@]}"
pack "$records" "$work/records.pack" --record 'label:u8 image:u8[3,2,2]'
digest "$records" --record 'label:u8 image:u8[3,2,2]' --batch 5 --shuffle full >"$work/reference"
digest "$work/records.pack" --batch 5 --shuffle full >"$work/other"
cmp -s "$work/reference" "$work/other" || fail "digests of records differ"
pack synthetic:50x3x8x8:f32 "$work/synthetic.pack"
same_digests synthetic:50x3x8x8:f32 "$work/synthetic.pack" --batch 9 --last pad --ids
look_at=
# Every format: round PATH-BELOW-tests/data/formats KEY...; what its own writer made, and the pack of it.
round() {
    local dataset=$root/tests/data/formats/$1 look
    read -ra look <<<"--batch 2 --last keep --image 16 $look_at"
    shift
    rm -f "$work/round.pack"
    pack "$dataset" "$work/round.pack" --index none "$@"
    digest "$dataset" --index none "$@" "${look[@]}" >"$work/reference"
    digest "$work/round.pack" "${look[@]}" >"$work/other"
    if [ ! -s "$work/reference" ] || ! cmp -s "$work/reference" "$work/other"; then
        fail "digests of $dataset and its pack differ"
    fi
}
for array in x-be-f4 x-be-i8 fortran v3 flag images; do round npy/$array.npy; done
for array in images-idx3-ubyte labels-idx1-ubyte x0b x0e; do round idx/$array; done
round cifar10
round cifar100
round 'tfrecord/{a,b}.tfrecord'
for shard in ustar pax by-hand; do round wds/$shard.tar; done
round 'wds/written-{000..001}.tar'
round 'tokens/tok_*.bin' --tokens 4
round tokens/meg-i64.idx --tokens 3
look_at='--augment random-resized-crop,flip --box-max 20'
round boxes/yolo/images/val --boxes beside
round boxes/coco.tar --fields 'jpg:image json:boxes'
round boxes/detection.tfrecord --fields 'image/encoded:image image/object/bbox:boxes'
look_at=
round boxes/texts.tar --fields 'jpg:image txt:text cls:c' --bytes c,image
round boxes/texts.tfrecord --fields 'e:image t:text n:label' --bytes text
unpacked=$work/unpacked-texts
expect 0 '4 samples, 8 files' "$LOADERCTL" unpack "$work/round.pack" "$unpacked"
printf 'two words\n' | cmp -s - "$unpacked/text/texts.tfrecord-2.bin" || fail "unpacked text is another: $(ls "$unpacked/text")"
# One way to say it or another: the same boxes at the same places.
boxes=$root/tests/data/formats/boxes
look=(--image 16 --augment "random-resized-crop,flip,flip-vertical" --shuffle full --batch 2 --box-max 20 --index none)
digest "$boxes/yolo/images/val" --boxes beside "${look[@]}" >"$work/reference"
digest "$boxes/coco.tar" --fields 'jpg:image json:boxes' "${look[@]}" >"$work/other"
cmp -s "$work/reference" "$work/other" || fail "boxes of YOLO labels and of JSON differ"
digest "$boxes/detection.tfrecord" --fields 'image/encoded:image image/object/bbox:boxes' "${look[@]}" >"$work/other"
cmp -s "$work/reference" "$work/other" || fail "boxes of YOLO labels and of TFRecord differ"
expect 1 'boxes, which are in pixels' "$LOADERCTL" pack "$boxes/coco.tar" "$work/x.pack" --index none --fields 'jpg:image json:boxes' --resize 16
pack "$good" "$work/labels.pack" --field label

"$LOADERCTL" inspect "$work/labels.pack" >"$work/inspect" 2>/dev/null || fail "inspect labels.pack"
grep -q '^fields    label i64' "$work/inspect" || fail "--field label: $(cat "$work/inspect")"

# ---- by the specification, in another language ----------------------------------------------------------------------
if command -v python3 >/dev/null; then
    python3 "$root/tests/pack-reference.py" read "$work/good.pack" >"$work/read" || fail "not readable by loaderd-pack(5)"
    [ "$(grep -c ' good ' "$work/read")" -eq "$samples" ] || fail "records by loaderd-pack(5): $(head -n 3 "$work/read")"
    (cd "$good" && printf '%s\n' */*) | sort >"$work/names"
    sed 's/.*\] //' "$work/read" | sort | cmp -s - "$work/names" || fail "names by loaderd-pack(5): $(head -n 3 "$work/read")"
    python3 "$root/tests/pack-reference.py" picture "$work/records.pack" 0 /dev/null 2>/dev/null && fail "records have no picture"
    pack "$good" "$work/kept.pack" --metadata keep
    python3 "$root/tests/pack-reference.py" picture "$work/kept.pack" 5 "$work/picture"
    cmp -s "$work/picture" "$good/$(sed -n 6p "$work/names")" || fail "record 5 is not file 5"
else
    echo "no python3: packs were not read by another program" >&2
fi

# ---- damaged data ---------------------------------------------------------------------------------------------------
expect 1 "sample 3, .*$(basename "${pictures[3]}").*--on-error skip" "$LOADERCTL" pack "$damaged" "$work/damaged.pack"
pack "$damaged" "$work/damaged.pack" --on-error keep
grep -q 'kept as it is: sample 32, ' "$work/out" || fail "sample 32 is not named: $(cat "$work/out")"
same_digests "$damaged" "$work/damaged.pack" "${augment[@]}" --on-error blank --last keep
same_digests "$damaged" "$work/damaged.pack" "${augment[@]}" --on-error substitute
pack "$damaged" "$work/skipped.pack" --on-error skip
grep -q '2 bad ones left out' "$work/out" || fail "2 bad ones: $(cat "$work/out")"
expect 0 "$((samples - 2)) samples, 0 damaged" "$LOADERCTL" verify "$work/skipped.pack"
expect 1 "$samples samples, 2 damaged" "$LOADERCTL" verify "$damaged"

# ---- shards, parts, merging ------------------------------------------------------------------------------------------
pack "$damaged" "$work/sharded" --shards 5 --on-error skip
same_digests "$work/skipped.pack" "$work/sharded" "${augment[@]}"
for part in 2 0 1; do pack "$damaged" "$work/parts" --shards 5 --part $part/3 --on-error skip; done
diff -r "$work/sharded" "$work/parts" >&2 || fail "shards by parts are not the shards"
expect 0 '5 shards, all there' "$LOADERCTL" pack --merge "$work/parts"
for part in 2 0; do pack "$damaged" "$work/merged.pack" --part $part/3 --on-error skip; done
expect 1 'part 1 of 3 is missing: pack it with --part 1/3' "$LOADERCTL" pack --merge "$work/merged.pack"
pack "$damaged" "$work/merged.pack" --part 1/3 --on-error skip
expect 0 "3 parts, $samples samples" "$LOADERCTL" pack --merge "$work/merged.pack"
cmp "$work/merged.pack" "$work/skipped.pack" >&2 || fail "merged parts are not the whole"
[ -z "$(echo "$work"/merged.pack.*)" ] || [ "$(echo "$work"/merged.pack.*)" = "$work/merged.pack.*" ] || fail "parts are left"
rm "$work/parts/pack-00003-of-00005.pack"
expect 1 'shard 3 of the 5' "$LOADERCTL" inspect "$work/parts"
pack "$damaged" "$work/parts" --shards 5 --on-error skip
grep -q 'pack-00004-of-00005.pack is there already' "$work/out" || fail "finished shards are made anew"
diff -r "$work/sharded" "$work/parts" >&2 || fail "a shard that was missing came back as another"
expect 1 'was not made of this dataset in this way' "$LOADERCTL" pack "$damaged" "$work/good.pack" --on-error skip

# ---- kill -9 ---------------------------------------------------------------------------------------------------------
export LOADERD_TEST_CHECKPOINT_MS=0
for delay in 0.01 0.03 0.06 0.1 0.15 0.2; do
    "$LOADERCTL" pack "$good" "$work/killed.pack" --jpeg coefficients --workers 2 >/dev/null 2>&1 &
    job=$!
    sleep $delay
    kill -9 $job 2>/dev/null || true
    wait $job 2>/dev/null || true
    [ ! -e "$work/killed.pack" ] || cmp -s "$work/killed.pack" "$work/coefficients.pack" || fail "a killed job left a wrong pack"
done
unset LOADERD_TEST_CHECKPOINT_MS
pack "$good" "$work/killed.pack" --jpeg coefficients --workers 1
cmp "$work/killed.pack" "$work/coefficients.pack" >&2 || fail "a job that was killed and resumed made other bytes"
[ ! -e "$work/killed.pack.job" ] || fail "the job file is left"

# ---- damage ----------------------------------------------------------------------------------------------------------
size=$(stat -c %s "$work/good.pack")
cp "$work/good.pack" "$work/cut.pack"
truncate -s $((size / 2)) "$work/cut.pack"
expect 1 'was cut: it has' "$LOADERCTL" verify "$work/cut.pack"
expect 0 '\*b' "$LOADERCTL" digest "$work/cut.pack" "${augment[@]}" --on-error blank
expect 1 'it was cut' "$LOADERCTL" digest "$work/cut.pack" "${augment[@]}" --on-error fail
cp "$work/synthetic.pack" "$work/numbers.pack" # copied as they are: not compared, but what is lost is seen
truncate -s $(($(stat -c %s "$work/numbers.pack") / 2)) "$work/numbers.pack"
for engine in uring mmap pread; do
    expect 0 '\*b' "$LOADERCTL" digest "$work/numbers.pack" --batch 9 --ids --on-error blank --engine $engine
    expect 1 'record has 0 bytes' "$LOADERCTL" digest "$work/numbers.pack" --batch 9 --on-error fail --engine $engine
done
expect 1 'damaged: sample' "$LOADERCTL" verify "$work/numbers.pack"
cp "$work/good.pack" "$work/flipped.pack"
index=$(od -An -tu8 -j 56 -N 8 "$work/good.pack" | tr -d ' ')
place=$(od -An -tu8 -j $((index + 5 * 32)) -N 8 "$work/good.pack" | tr -d ' ') # of record 5
printf '\125\252\125\252' | dd of="$work/flipped.pack" bs=1 conv=notrunc seek=$((place + 40)) status=none
expect 1 'damaged: sample 5, .*CRC-32C' "$LOADERCTL" verify "$work/flipped.pack"
expect 1 "$samples samples, 1 damaged" "$LOADERCTL" verify "$work/flipped.pack"
expect 1 'CRC-32C' "$LOADERCTL" digest "$work/flipped.pack" "${augment[@]}" --on-error fail
expect 1 'CRC-32C' "$LOADERCTL" pack "$work/flipped.pack" "$work/repacked.pack"

# ---- smaller pictures, metadata, files again ---------------------------------------------------------------------------
pack "$good" "$work/small.pack" --resize 24 --quality 80
grep -q 'resized' "$work/out" || fail "nothing was resized: $(cat "$work/out")"
"$LOADERCTL" inspect "$work/small.pack" --all 2>/dev/null >"$work/inspect"
grep -qE '^(width|height) +[0-9]+ to [0-9]+' "$work/inspect" || fail "inspect: $(cat "$work/inspect")"
least=$(sed -nE 's/^(width|height) +([0-9]+) to.*/\2/p' "$work/inspect" | sort -n | head -n 1)
[ "$least" -le 24 ] || fail "--resize 24: the least side is $least"
expect 0 ' 0 damaged' "$LOADERCTL" verify "$work/small.pack" --all
pack "$good" "$work/headers.pack" --jpeg coefficients --keep-headers
expect 0 'made again from coefficients' "$LOADERCTL" unpack "$work/headers.pack" "$work/unpacked"
rm "$good/list"
diff -r "$good" "$work/unpacked" >&2 || fail "unpack of coefficients gives other files"
expect 1 'without --keep-headers' "$LOADERCTL" unpack "$work/coefficients.pack" "$work/unpacked2"
expect 0 'samples' "$LOADERCTL" unpack "$work/records.pack" "$work/unpacked3"
digest "$work/unpacked3/records.bin" --record "$(cat "$work/unpacked3/records.layout")" --batch 5 --shuffle full >"$work/other"
digest "$work/records.pack" --batch 5 --shuffle full >"$work/reference"
cmp -s "$work/reference" "$work/other" || fail "digests of unpacked records differ"
expect 0 'samples' "$LOADERCTL" unpack "$work/list.pack" "$work/unpacked4"
same_digests "$work/unpacked4/labels.list" "$work/list.pack" "${augment[@]}"

# ---- errors ------------------------------------------------------------------------------------------------------------
expect 2 'needs to know where to' "$LOADERCTL" pack "$good"
expect 2 '--part 3/3: write I/N' "$LOADERCTL" pack "$good" "$work/x.pack" --part 3/3
expect 2 '--jpeg fast: write bytes or coefficients' "$LOADERCTL" pack "$good" "$work/x.pack" --jpeg fast
expect 1 "no field 'picture'" "$LOADERCTL" pack "$good" "$work/x.pack" --field picture
expect 1 '--resize is for an encoded picture' "$LOADERCTL" pack synthetic:5x3x8x8 "$work/x.pack" --resize 4
expect 1 'cannot create' "$LOADERCTL" pack "$good" "$work/no/such.pack"
expect 1 'there are no parts' "$LOADERCTL" pack --merge "$work/none.pack"
expect 1 '8 shards of 5 samples' "$LOADERCTL" pack synthetic:5x3x8x8 "$work/x" --shards 8
if [ -e /dev/full ]; then # a full disk is said, and leaves nothing under the name
    expect 1 'cannot' bash -c "ulimit -f 64; trap '' XFSZ; '$LOADERCTL' pack '$good' '$work/full.pack' --metadata keep"
    [ ! -e "$work/full.pack" ] || fail "a pack that did not fit has its name"
fi

[ $failures -eq 0 ] || exit 1
echo "pack: all checks passed"
