#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What docs/ shows is so. Every configuration (```ini) is taken by the daemon and makes its first batches from small data
# laid out as the page says; every loaderctl command and option exists; messages that docs/troubleshooting.md quotes are
# those that the programs print, and what it says against them helps, where that can be tried without privilege.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
: "${builddir:=$root/build}"
: "${LOADERCTL:=$builddir/loaderctl}"
: "${LOADERD_DAEMON:=$builddir/loaderd}"
for program in "$LOADERCTL" "$LOADERD_DAEMON"; do
    [ -x "$program" ] || {
        echo "no program $program: build first" >&2
        exit 1
    }
done
command -v python3 >/dev/null || {
    echo "skipped: no python3 to make the data with"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C XDG_RUNTIME_DIR=$work XDG_CACHE_HOME=$work
unset LOADERD_SOCKET
failures=0

fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

# ---- data, as docs/configuration.md names it below /data ------------------------------------------------------------------
data=$work/data
mkdir -p "$data"
"$builddir/tools/demo-data" --train 12 --validation 8 "$data/imagenet" >&2
"$LOADERCTL" pack "$data/imagenet/train" "$data/imagenet-train.pack" --jpeg coefficients 2>/dev/null
cat >"$work/make.py" <<'END'
import glob, io, os, random, struct, sys, tarfile, zlib

os.chdir(sys.argv[1])
random.seed(1)
for folder in ("cifar-10-batches-bin", "wds", "tokens", "sounds", "segments/images", "segments/masks"):
    os.makedirs(folder)
for name in ["data_batch_%d.bin" % i for i in range(1, 6)] + ["test_batch.bin"]:
    with open("cifar-10-batches-bin/" + name, "wb") as file:
        for i in range(40):
            file.write(bytes([i % 10]) + random.randbytes(3072))
pictures = sorted(glob.glob("imagenet/train/*/*"))
for shard in range(3):
    with tarfile.open("wds/train-%06d.tar" % shard, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(24):
            for suffix, data in (("jpg", open(pictures[(24 * shard + i) % len(pictures)], "rb").read()), ("cls", b"%d" % (i % 6))):
                info = tarfile.TarInfo("%d%05d.%s" % (shard, i, suffix))
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
with open("tokens/train.bin", "wb") as file:
    file.write(struct.pack("<40000H", *(random.randrange(50304) for _ in range(40000))))
with open("sounds/clips.bin", "wb") as file:
    for i in range(64):
        file.write(struct.pack("<i", i) + random.randbytes(32000))


def npy(name, dtype, shape, data):
    head = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }" % (dtype, shape)
    head += " " * (63 - (len(head) + 10) % 64) + "\n"
    with open(name, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + data)


npy("sounds/spectrum.npy", "<f4", (64, 20, 8), struct.pack("<10240f", *range(10240)))
npy("sounds/label.npy", "<i8", (64,), struct.pack("<64q", *range(64)))


def png(name, width, height, channels, pixels):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + pixels[y * width * channels:][:width * channels] for y in range(height))
    with open(name, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


for i in range(32):
    width, height = 80 + i, 70
    png("segments/images/%d.png" % i, width, height, 3, random.randbytes(3 * width * height))
    png("segments/masks/%d.png" % i, width, height, 1, random.randbytes(width * height))
END
python3 "$work/make.py" "$data"

# ---- every configuration ---------------------------------------------------------------------------------------------------
cat >"$work/blocks.py" <<'END'
import re, sys
number = 0
for page in sys.argv[3:]:
    for block in re.findall(r"^```ini\n(.*?)^```$", open(page).read(), re.M | re.S):
        open("%s/%02d.conf" % (sys.argv[1], number), "w").write(block.replace("/data/", sys.argv[2] + "/"))
        number += 1
print(number)
END
mkdir "$work/conf"
blocks=$(python3 "$work/blocks.py" "$work/conf" "$data" "$root"/docs/*.md)
[ "$blocks" -ge 10 ] || fail "only $blocks configurations were found in docs/"
pipelines=0
for file in "$work"/conf/*.conf; do
    "$LOADERD_DAEMON" --config "$file" --check-config >"$work/out" 2>"$work/err" || fail "$(cat "$work/err" "$file")"
    while read -r name; do
        pipelines=$((pipelines + 1))
        "$LOADERCTL" digest "$name" --config "$file" --steps 0..1 --batch 4 >"$work/out" 2>"$work/err" ||
            fail "$name: $(tail -n 1 "$work/err")"
        grep -qE '^0 [a-z]+=[0-9a-f]{8}' "$work/out" || fail "$name: no batch: $(tail -n 2 "$work/out")"
    done < <(sed -n 's/^\[pipeline \(.*\)\]$/\1/p' "$file")
done
[ $pipelines -ge 15 ] || fail "only $pipelines pipelines were tried"
sed "s|/data/|$data/|" "$root/docs/loaderd.conf.example" >"$work/example.conf"
"$LOADERD_DAEMON" --config "$work/example.conf" --check-config >/dev/null 2>"$work/err" || fail "loaderd.conf.example: $(cat "$work/err")"

# ---- every command -----------------------------------------------------------------------------------------------------------
cat >"$work/commands.py" <<'END'
import re, subprocess, sys
program, bad, seen = sys.argv[1], 0, 0
helps = {}
def words(command):
    if command not in helps:
        helps[command] = subprocess.run([program, command, "--help"], capture_output=True, text=True)
    return helps[command]
for page in sys.argv[2:]:
    for line in open(page):
        for part in re.findall(r"\bloaderctl ([a-z][^`|>#\"]*)", line):
            command = re.match(r"[a-z]+", part).group(0)
            if not ("`loaderctl " + command in line or line.startswith(("    ", "loaderctl"))):
                continue  # prose about the tool
            seen += 1
            if words(command).returncode:
                print("%s: no command 'loaderctl %s'" % (page, command)); bad += 1
                continue
            for option in re.findall(r"(?<!\S)--([a-z][a-z-]*)", part):
                if option != "help" and not re.search(r"^  --%s\b" % option, words(command).stdout, re.M):
                    print("%s: loaderctl %s has no option --%s" % (page, command, option)); bad += 1
assert seen > 30, seen
sys.exit(bad > 0)
END
python3 "$work/commands.py" "$LOADERCTL" "$root"/docs/*.md "$root/README" >"$work/out" || fail "$(cat "$work/out")"

# ---- links -------------------------------------------------------------------------------------------------------------------
for page in "$root"/docs/*.md; do
    while read -r file; do
        [ -e "$root/docs/$file" ] || fail "${page#"$root"/} links to $file, which is not there"
    done < <(grep -oE '\]\([A-Za-z0-9_.-]+\)' "$page" | tr -d '()]')
done
for page in "$root"/docs/*; do
    [ "${page##*/}" = README.md ] || grep -qF "(${page##*/})" "$root/docs/README.md" || fail "docs/README.md does not list ${page##*/}"
done

# ---- messages and remedies -----------------------------------------------------------------------------------------------------
page=$root/docs/troubleshooting.md
# says PATTERN COMMAND...: fails, with words that the page has, too. Numbers differ.
says() {
    local pattern=$1
    shift
    ! "$@" >"$work/out" 2>"$work/err" || fail "$* did not fail"
    grep -qE -- "$pattern" "$work/err" || fail "$*: no '$pattern' but: $(tail -n 2 "$work/err")"
    grep -qE -- "$pattern" "$page" || fail "docs/troubleshooting.md has no '$pattern'"
}
helps() {
    "$@" >"$work/out" 2>"$work/err" || fail "the remedy does not help: $*: $(tail -n 2 "$work/err")"
}

says 'ring of 3 slots x [0-9]+ bytes needs [0-9]+ MiB, a session may have [0-9]+ MiB; lower slots or batch, or raise max-ring-bytes' \
    "$LOADERCTL" digest synthetic:1000x3x2000x2000:f32 --batch 64 --slots 3 --steps 0..1 --max-ring-bytes 512M
helps "$LOADERCTL" digest synthetic:1000x3x200x200:f32 --batch 1 --slots 3 --steps 0..1 --max-ring-bytes 512M
says 'ring of 3 slots x [0-9]+ bytes needs' "$LOADERCTL" digest synthetic:100x3x100x100:f32 --batch 8 --slots 3 --steps 0..1 --max-ring-bytes 1M
helps "$LOADERCTL" digest synthetic:100x3x100x100:f32 --batch 8 --slots 3 --steps 0..1 --max-ring-bytes 64M
helps "$LOADERCTL" digest synthetic:100x3x100x100:u8 --batch 8 --slots 3 --steps 0..1 --max-ring-bytes 1M # a quarter of the bytes

"$LOADERCTL" pack "$data/imagenet/train" "$work/shards" --shards 60 2>/dev/null
# shellcheck disable=SC2016 # the backticks are those of the message
says 'need [0-9]+ file descriptors for the [0-9]+ data files, have [0-9]+: raise LimitNOFILE= of the service or `ulimit -n`' \
    bash -c "ulimit -n 40; exec \"\$@\"" - "$LOADERCTL" digest "$work/shards" --steps 0..1
helps bash -c "ulimit -S -n 40; ulimit -n \$(ulimit -H -n); exec \"\$@\"" - "$LOADERCTL" digest "$work/shards" --steps 0..1
"$LOADERCTL" pack "$work/shards" "$work/one.pack" 2>/dev/null
helps bash -c "ulimit -n 40; exec \"\$@\"" - "$LOADERCTL" digest "$work/one.pack" --steps 0..1

printf '[pipeline train]\ndataset = %s\nbacth = 8\n' "$data/imagenet/train" >"$work/loaderd.conf"
! "$LOADERD_DAEMON" --config "$work/loaderd.conf" --check-config 2>"$work/err" >&2 || fail "a wrong key was taken"
said=$(sed "s|$work/||" "$work/err")
grep -qF -- "$said" "$root/docs/configuration.md" || fail "docs/configuration.md does not have: $said"
sed -i 's/bacth/batch/' "$work/loaderd.conf"
helps "$LOADERD_DAEMON" --config "$work/loaderd.conf" --check-config

! LOADERD_SOCKET=$work/none "$LOADERCTL" status 2>"$work/err" || fail "a daemon that is not there answered"
grep -q "$work/none" "$work/err" || fail "status does not say which socket was tried"

[ $failures -eq 0 ] || exit 1
echo "manual: all checks passed ($blocks configurations, $pipelines pipelines)"
