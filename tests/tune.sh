#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# loaderctl tune from end to end, in short: what it writes is a configuration that the daemon and bench take, the report
# is well-formed and needs nothing from elsewhere, budgets hold, bad command lines are refused. No test of speed.
set -euo pipefail
# shellcheck source=tests/common.sh
. "$(dirname "$0")/common.sh"
command -v python3 >/dev/null || {
    echo "skipped: no python3 to read JSON with"
    exit 77
}

# refuses PATTERN COMMAND...
refuses() {
    local pattern=$1
    shift
    ! "$@" >"$work/out" 2>"$work/err" || fail "$* was not refused"
    grep -qE -- "$pattern" "$work/err" || fail "$*: stderr has no '$pattern': $(tail -n 2 "$work/err")"
}

"$builddir/tools/demo-data" --train 12 --validation 4 "$work/data" >&2
cd "$work"
keys=(--image 32 --augment 'random-resized-crop,flip' --shuffle full --batch 8 --seed 7)

# ---- a path: the file, the report ------------------------------------------------------------------------------------
"$LOADERCTL" tune data/train "${keys[@]}" --seconds 2 --cpu 1 --write tuned.conf --report report.html >out 2>err ||
    fail "tune: $(tail -n 3 err)"
grep -qE '^#   once it is filled +[0-9.]+ samples/s, [0-9.]+ times as many$' out || fail "no word of a cache: $(cat out)"
cmp -s out tuned.conf || fail "--write has something else than standard output"
grep -qx 'workers = 1' tuned.conf || fail "--cpu 1, but: $(grep workers tuned.conf)"
for line in '[pipeline train]' "dataset = $work/data/train" 'image = 32' 'seed = 7' 'batch = 8' 'shuffle = full'; do
    grep -qxF "$line" tuned.conf || fail "tuned.conf has no line '$line'"
done
if [ -x "$LOADERD_DAEMON" ]; then
    (cd / && "$LOADERD_DAEMON" --config "$work/tuned.conf" --check-config >/dev/null) || fail "the daemon does not take tuned.conf"
fi
"$LOADERCTL" digest data/train "${keys[@]}" --steps 0..2 >a 2>/dev/null
(cd / && "$LOADERCTL" digest train --config "$work/tuned.conf" --steps 0..2) >b 2>/dev/null
grep -v '^#' a >a1
grep -v '^#' b >b1
{ [ -s a1 ] && cmp -s a1 b1; } || fail "the tuned pipeline has other batches"
python3 - report.html <<'END' || fail "the report is not what it should be"
import sys, xml.etree.ElementTree as tree
text = open(sys.argv[1]).read()
root = tree.fromstring(text.split("\n", 1)[1])  # without the doctype
assert [s.get("id") for s in root.iter("svg")] == ["throughput", "latency", "stages"]
for word in ("http:", "https:", "src=", "url(", "@import", "<script"):
    assert word not in text, word
rows = [r for r in root.iter("tr") if r.get("class") == "chosen"]
cells = [c.text for t in root.iter("table") if t.get("id") == "cache" for c in t[1]]
assert len(cells) == 5 and all(float(c) > 0 for c in cells[:4]), cells
assert len(rows) == 1 and float(rows[0][1].text) > 0
assert "[pipeline train]" in "".join(root.find("body/pre").itertext())
END
refuses 'tuned.conf is there already' "$LOADERCTL" tune data/train --seconds 1 --write tuned.conf

# ---- a pipeline of a file, as JSON, with a target that is easy and one that is not -----------------------------------
printf '[pipeline flowers]\ndataset = data/train\nimage = 32\nbatch = 8\nlast = keep\n' >some.conf
"$LOADERCTL" tune flowers --config some.conf --seconds 1 --target 0.001 --json >json 2>err || fail "tune --json: $(tail -n 3 err)"
"$LOADERCTL" tune synthetic:1000x64:f32 --batch 8 --seconds 1 --step-ms 0.000001 --json >fast 2>err || fail "tune --step-ms: $(tail -n 3 err)"
python3 - json fast <<'END' || fail "tune --json is not what it should be"
import json, pathlib, sys
a, b = (json.load(open(name)) for name in sys.argv[1:])
assert a["fast_enough"] is True and a["workers"] == 1 and a["target"] == 0.001
assert b["fast_enough"] is False and "starves" in b["sentence"], b
for r in (a, b):
    assert r["samples_per_s"] > 0 and 0 <= r["spread"] and r["workers"] <= r["budget"] <= r["cpus"]
    counts = [p["workers"] for p in r["sweep"]]
    assert counts == sorted(set(counts)) and counts[0] == 1 and r["workers"] in counts
c, files = a["cache"], [f.stat().st_size for f in pathlib.Path("data/train").rglob("*.jpg")]
assert 0 < c["pictures"] <= c["of"] and 0.5 < c["bytes"] / sum(files) < 2, (c, sum(files))
assert abs(c["epoch_s"] / (len(files) / a["samples_per_s"]) - 1) < 0.01
assert c["first_epoch_s"] > c["epoch_s"] and c["first_samples_per_s"] < a["samples_per_s"] and c["samples_per_s"] > 0
assert abs(c["gain"] * a["samples_per_s"] / c["samples_per_s"] - 1) < 0.01
assert (c["pays_after"] > 0) == (c["samples_per_s"] > a["samples_per_s"]), c # under sanitizers a cache may bring nothing
assert b["cache"] is None # nothing is decoded there
assert "[pipeline flowers]" in a["configuration"] and "last = keep" in a["configuration"]
names = [s["setting"] for s in a["settings"]]
assert "pread, depth 16, cache" in names and "pread, depth 16, disk" in names and "slots 8" in names, names
assert not any("disk" in s["setting"] for s in b["settings"]) and b["disk"] == []
END

# ---- what is given stays: engine, slots, no more workers ------------------------------------------------------------
"$LOADERCTL" tune data/train "${keys[@]}" --seconds 1 --engine mmap --slots 5 --workers 1 --cache ram:64M --json >json 2>err || fail "tune --engine: $(tail -n 3 err)"
python3 - json <<'END' || fail "tune does not keep what is given"
import json, sys
r = json.load(open(sys.argv[1]))
assert (r["engine"], r["slots"], r["workers"]) == ("mmap", 5, 1), r
assert r["cache"] is None and "cache = ram:64M" in r["configuration"] # it has one
assert [p["workers"] for p in r["sweep"]] == [1]
names = [s["setting"] for s in r["settings"]]
assert not any(n.startswith(("uring", "pread", "slots")) for n in names), names
END

# ---- what cannot be meant ----------------------------------------------------------------------------------------------
refuses 'write a share of the CPUs' "$LOADERCTL" tune data/train --cpu 140%
refuses 'is no rate' "$LOADERCTL" tune data/train --target none
refuses 'needs a dataset' "$LOADERCTL" tune
refuses 'cannot be written in a configuration' "$LOADERCTL" tune './a ;b' --seconds 1
refuses 'nowhere' "$LOADERCTL" tune ./nowhere --seconds 1
refuses 'explicit' "$LOADERCTL" tune data/train --image 32 --shuffle explicit --seconds 1
refuses 'cannot write the report' "$LOADERCTL" tune synthetic:1000x64:f32 --batch 8 --seconds 0.5 --report "$work/no/where.html"

[ $failures -eq 0 ] || exit 1
echo "tune: all checks passed"
