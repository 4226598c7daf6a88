#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What a running daemon tells of itself: status' windows, top (also on a pseudo-terminal, which is left as it was), stalls
# with the sample that is known to be slow, the metrics page before promtool and Prometheus itself, traces, and the
# comparison of two benches. Times are waited for, never measured.
set -euo pipefail
: "${builddir:=build}"
: "${LOADERCTL:=$builddir/loaderctl}"
: "${LOADERD_DAEMON:=$builddir/loaderd}"
for program in "$LOADERCTL" "$LOADERD_DAEMON" "$builddir/tests/trainer"; do
    [ -x "$program" ] || {
        echo "no program $program: build first" >&2
        exit 1
    }
done
command -v python3 >/dev/null || {
    echo "no python3: it checks the JSON here" >&2
    exit 77
}
work=$(mktemp -d)
pids=()
finish() {
    [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
export LC_ALL=C LOADERD_SOCKET=$work/socket
failures=0

fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}
skip() { echo "skipped: $*" >&2; }

# wait_for WHAT COMMAND...: until the command succeeds, two minutes at most.
wait_for() {
    local what=$1 i
    shift
    for ((i = 0; i < 600; i++)); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.2
    done
    fail "$what did not happen: $(tail -n 3 "$work/log")"
    return 1
}

expect() { # STATUS PATTERN COMMAND...
    local wanted=$1 pattern=$2 got=0
    shift 2
    "$@" >"$work/out" 2>"$work/err" </dev/null || got=$?
    [ "$got" -eq "$wanted" ] || fail "$* ended with $got, wanted $wanted: $(tail -n 2 "$work/err")"
    grep -qE -- "$pattern" "$work/err" || fail "$*: stderr has no '$pattern': $(tail -n 2 "$work/err")"
}

# py FILE EXPRESSION: the expression, with `d` the file's JSON, must be true.
py() { python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2]))' "$@"; }

has_metrics=$(grep -c '^#define HAVE_LIBMICROHTTPD' "$builddir/autoconfig.h" || true)
has_png=$(grep -c '^#define HAVE_LIBPNG' "$builddir/autoconfig.h" || true)

# ---- data: small pictures, and one that takes long ------------------------------------------------------------------
"$builddir/tools/demo-data" --train 20 --validation 2 "$work/data" >&2
if [ "$has_png" -gt 0 ]; then
    class=("$work"/data/train/*)
    # the 12th sample: the second rank's
    python3 - "${class[0]}/00060-large.png" <<'EOF'
import random, struct, sys, zlib
n = 2000
random.seed(1)
rows = b"".join(b"\0" + random.randbytes(3 * n) for _ in range(n))
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
open(sys.argv[1], "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", n, n, 8, 2, 0, 0, 0)) +
                              chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b""))
EOF
fi
find "$work/data" -name '*.jpg' -exec touch -d '1 hour ago' {} + # what was just written is not cached
metrics=
[ "$has_metrics" -eq 0 ] || metrics="metrics = 127.0.0.1:0"
cat >"$work/conf" <<EOF
[daemon]
workers = 2
pin = no
$metrics
[pipeline pictures]
dataset = $work/data/train
image = 64
batch = 8
cache = ram:16M
cache-fill = full
[pipeline quick]
dataset = synthetic:1000x3x8x8:u8
batch = 8
EOF

# ---- addresses ------------------------------------------------------------------------------------------------------
sed '/^metrics/d; s/^pin = no/&\nmetrics = 0.0.0.0:9100/' "$work/conf" >"$work/open-conf"
expect 1 "metrics-public" "$LOADERD_DAEMON" --config "$work/open-conf" --check-config
sed '/^metrics/d; s/^pin = no/&\nmetrics = example.org:9100/' "$work/conf" >"$work/open-conf"
expect 1 "127.0.0.1:9100" "$LOADERD_DAEMON" --config "$work/open-conf" --check-config
if [ "$has_metrics" -eq 0 ]; then
    sed 's/^pin = no/&\nmetrics = 127.0.0.1:0/' "$work/conf" >"$work/open-conf"
    expect 1 "built without libmicrohttpd" "$LOADERD_DAEMON" --config "$work/open-conf" --socket "$work/other"
fi

# ---- a daemon with trainers: one that starves, one that does not ----------------------------------------------------
"$LOADERD_DAEMON" --config "$work/conf" >"$work/log" 2>&1 &
daemon=$!
pids+=("$daemon")
wait_for "the daemon's start" "$LOADERCTL" status
"$builddir/tests/trainer" pictures 0 1/2 'job "7"' >"$work/hungry" &
hungry=$!
pids+=("$hungry")
"$builddir/tests/trainer" quick 500 0/2 'job "7"' >"$work/fed" &
pids+=($!)
wait_for "the first batches" grep -q ready "$work/hungry" "$work/fed"

window() { # RANK EXPRESSION, with w the window of that rank
    "$LOADERCTL" status --json >"$work/status" &&
        py "$work/status" "any($2 for w in d['windows'] if w['rank'] == $1)"
}
# shellcheck disable=SC2016
wait_for "a starving trainer's verdict" window 1 'w["wait"] >= 0.02 and w["bound_by"] in ("storage", "decode", "memory")'
py "$work/status" 'all(0 <= w[k] <= 1 for w in d["windows"] for k in ("wait", "full", "by"))' || fail "shares are no shares"

# ---- top ------------------------------------------------------------------------------------------------------------
"$LOADERCTL" top --once >"$work/top" || fail "top --once"
for word in pictures quick 'job "7"' 0/2 1/2 'bound by' 'RING'; do
    grep -qF "$word" "$work/top" || fail "top has no '$word': $(cat "$work/top")"
done
! grep -q "$(printf '\033')" "$work/top" || fail "top --once into a file has escapes"
"$LOADERCTL" top --once --json >"$work/top.json" || fail "top --json"
py "$work/top.json" 'sorted(s["rank"] for s in d["sessions"]) == [0, 1]' || fail "top --json has not both ranks"
py "$work/top.json" 'abs(sum(d["stages"].values()) - 1) < 0.01' || fail "shares of the workers' time are not 1 together"
py "$work/top.json" 'all(s["gpu_utilisation"] is None or s["gpu"] is not None for s in d["sessions"])' || fail "a GPU's use"

# the cache: in steps of 2 x 8 of 120 samples or 121, rank 1 gets 8 to 15 and so on, and padding from the first on: 64 of
# them, one a PNG where that is built in; each JPEG is kept once, and then comes from there
kept=$((64 - (has_png > 0)))
cached() { # EXPRESSION over the cache c and the report d
    "$LOADERCTL" top --once --json >"$work/top.json" && py "$work/top.json" "any($1 for c in d['caches'])"
}
wait_for "a cache that is used" cached "c['entries'] == $kept and c['hits'] > 100 and c['gain'] > 0"
py "$work/top.json" '[(c["place"], c["state"], c["capacity_bytes"]) for c in d["caches"]] == [("ram", "open", 16 << 20)]' ||
    fail "top --json, the cache: $(cat "$work/top.json")"
py "$work/top.json" 'all(abs(c["hit_rate"] - c["hits"] / (c["hits"] + c["misses"])) < 0.001 and 0 < c["used_bytes"] <= 16 << 20
    for c in d["caches"])' || fail "top --json, the hit rate: $(cat "$work/top.json")"
"$LOADERCTL" top --once >"$work/top" || fail "top --once"
grep -qE '^CACHE +HITS +ENTRIES .* GAIN' "$work/top" || fail "top has no heading for caches: $(cat "$work/top")"
grep -qE "^open +[0-9.]+% +$kept\\.0 .* / 0\\.017 .* ram\$" "$work/top" || fail "top does not show the cache: $(cat "$work/top")"
expect 1 "is no terminal" "$LOADERCTL" top
expect 2 "did you mean --once" "$LOADERCTL" top --onse
"$LOADERCTL" top --json --seconds 0.1 >"$work/lines" &
lines=$!
wait_for "three lines" sh -c "[ \$(grep -c . '$work/lines') -ge 3 ]"
kill "$lines"
wait "$lines" 2>/dev/null || true
head -n 3 "$work/lines" | while read -r line; do
    echo "$line" >"$work/line"
    py "$work/line" '"sessions" in d' || echo bad
done | { ! grep -q bad; } || fail "top --json is no JSON a line"

# on a pseudo-terminal: it ends by q, by SIGTERM, and after a change of the size; each time the terminal is as before
cat >"$work/terminal.py" <<'EOF'
import fcntl, os, pty, re, select, signal, struct, sys, termios, time
how, program = sys.argv[1], sys.argv[2:]
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
before = termios.tcgetattr(slave)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in (0, 1, 2):
        os.dup2(slave, fd)
    os.execv(program[0], program)
seen = b""
def read_until(wanted, seconds=60):
    global seen
    until = time.time() + seconds
    while wanted not in seen and time.time() < until:
        if select.select([master], [], [], 0.2)[0]:
            seen += os.read(master, 65536)
    assert wanted in seen, (wanted, seen[-500:])
read_until(b"q quits")
assert b"\033[?1049h" in seen and b"\033[?25l" in seen
assert not termios.tcgetattr(slave)[3] & (termios.ECHO | termios.ICANON)
if how == "resize":
    seen = b""
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 30, 0, 0))
    os.kill(pid, signal.SIGWINCH)
    read_until(b"q quits")
    page = seen.split(b"\033[2J")[-1].split(b"q quits")[0].decode(errors="replace")
    lines = re.sub(r"\033\[[0-9;?]*[A-Za-z]", "", page).replace("\r", "").split("\n")
    assert len(lines) <= 12 and all(len(l) <= 30 for l in lines), lines
    os.write(master, b"q")
elif how == "q":
    os.write(master, b"q")
else:
    os.kill(pid, getattr(signal, how))
until = time.time() + 60
ended, status = 0, 0
while not ended and time.time() < until: # what it writes must be read, else it cannot end
    if select.select([master], [], [], 0.05)[0]:
        seen += os.read(master, 65536)
    ended, status = os.waitpid(pid, os.WNOHANG)
assert ended, "it does not end"
assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, status
while select.select([master], [], [], 0.2)[0]:
    seen += os.read(master, 65536)
assert seen.rstrip().endswith(b"\033[?1049l"), seen[-100:]
assert b"\033[?25h" in seen
assert termios.tcgetattr(slave) == before
EOF
if python3 -c 'import pty; pty.openpty()' 2>"$work/err"; then
    for how in q SIGTERM SIGINT SIGHUP resize; do
        python3 "$work/terminal.py" $how "$(command -v "$LOADERCTL")" top --seconds 0.2 2>"$work/err" ||
            fail "top on a terminal, $how: $(tail -n 2 "$work/err")"
    done
else
    echo "not run: top on a terminal, as there are no pseudo-terminals here ($(tail -n 1 "$work/err"))" >&2
fi

# GPUs, by a stand-in for NVIDIA's library: the trainer's process computes on the second one
if command -v "${CC:-cc}" >/dev/null; then
    mkdir "$work/nvml"
    cat >"$work/nvml/nvml.c" <<'EOF'
#include <stdlib.h>
#include <string.h>
struct process { unsigned pid; unsigned long long memory; unsigned a, b; };
struct rates { unsigned gpu, memory; };
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **ret) { *ret = (void *)(unsigned long)(i + 1); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **ret) { *ret = (void *)1; return strncmp(uuid, "GPU-", 4) != 0; }
int nvmlDeviceGetUtilizationRates(void *d, struct rates *r) { r->gpu = d == (void *)2 ? 73 : 5; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, struct process *p) {
    *n = d == (void *)2;
    if (*n) p[0].pid = (unsigned)atoi(getenv("FAKE_PID"));
    return 0;
}
EOF
    if ${CC:-cc} -shared -fPIC -o "$work/nvml/libnvidia-ml.so.1" "$work/nvml/nvml.c" 2>"$work/err"; then
        FAKE_PID=$hungry LD_LIBRARY_PATH=$work/nvml "$LOADERCTL" top --once --json >"$work/top.json" || fail "top with NVML"
        py "$work/top.json" '[s["gpu_utilisation"] for s in d["sessions"] if s["rank"] == 1] == [0.73]' ||
            fail "the GPU's use is not shown: $(cat "$work/top.json")"
        py "$work/top.json" '[s["gpu_utilisation"] for s in d["sessions"] if s["rank"] == 0] == [None]' ||
            fail "a process without a GPU has one"
    fi
else
    skip "no C compiler: NVML's stand-in was not built"
fi

# ---- stalls ---------------------------------------------------------------------------------------------------------
stalls() { "$LOADERCTL" stalls --json "$@" >"$work/stalls"; }
cat >"$work/stalls.py" <<'EOF'
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1])]
assert lines and len(lines) <= 4096
keys = {"time", "session", "pipeline", "job", "rank", "pid", "ended", "epoch", "step", "wait_ms", "fill_ms", "stages_ms",
        "slowest", "worst_of"}
for l in lines:
    assert set(l) == keys, l
    assert l["job"] == 'job "7"' and l["wait_ms"] >= 1 and l["fill_ms"] >= 0
    assert set(l["stages_ms"]) == {"read", "decode", "transform", "copy", "other"}
sys.exit(not eval(sys.argv[2]))
EOF
stall() { python3 "$work/stalls.py" "$work/stalls" "$1" 2>"$work/err"; }
stalls --over 0 || fail "stalls"
stall 'all(a["time"] <= b["time"] for a, b in zip(lines, lines[1:]) if a["session"] == b["session"])' ||
    fail "stalls are not in order: $(tail -n 2 "$work/err")"
stall '{l["pid"] for l in lines if l["rank"] == 1} == {'"$hungry"'}' || fail "stalls of other processes: $(tail -n 2 "$work/err")"
if [ "$has_png" -gt 0 ]; then # one picture has 300 times the pixels of the others
    large() { stalls --over 0 && stall 'any(l["slowest"] and l["slowest"]["path"].endswith("-large.png") for l in lines)'; }
    wait_for "the large picture's stall" large
else
    skip "no libpng: no sample is known to be slow"
fi
"$LOADERCTL" stalls --over 0 | head -n 3 >"$work/table" || true
grep -q '^TIME .*WAIT ms' "$work/table" || fail "stalls has no heading: $(cat "$work/table")"
"$LOADERCTL" stalls --over 1000000000 >"$work/out" 2>"$work/err" || fail "stalls that are none"
grep -q "no trainer waited" "$work/err" || fail "stalls says nothing where there are none"
expect 2 "is no moment" "$LOADERCTL" stalls --since yesterday
expect 2 "is no duration" "$LOADERCTL" stalls --over -1

# ---- traces ---------------------------------------------------------------------------------------------------------
"$LOADERCTL" trace --seconds 1 --output "$work/trace.json" 2>"$work/err" || fail "trace: $(cat "$work/err")"
cat >"$work/trace.py" <<'EOF'
import json, sys
d = json.load(open(sys.argv[1]))
clock = d["otherData"]
assert clock["clock"] == "CLOCK_MONOTONIC" and int(clock["realtime_ns"]) > 1e18
stages = {"idle", "read", "decode", "transform", "copy", "other", "fill"}
named, rows, open_batches, batches = {}, {}, {}, 0
for e in d["traceEvents"]:
    assert {"name", "ph", "pid", "tid", "ts"} <= set(e), e
    if e["ph"] == "M":
        named[e["pid"], e["tid"], e["name"]] = e["args"]["name"]
        continue
    assert e["ts"] * 1000 <= int(clock["monotonic_ns"])
    if e["ph"] == "X":
        rows.setdefault((e["pid"], e["tid"]), []).append(e)
    elif e["ph"] == "b":
        assert e["id"] not in open_batches
        open_batches[e["id"]] = e
    elif e["ph"] == "e":
        assert open_batches.pop(e["id"])["ts"] <= e["ts"]
        batches += 1
assert not open_batches and batches > 0
workers = 0
for (pid, tid), events in rows.items():
    name = named[pid, tid, "thread_name"]
    events.sort(key=lambda e: e["ts"])
    for a, b in zip(events, events[1:]): # one thread does one thing at a time
        assert a["ts"] + a["dur"] <= b["ts"] + 0.002, (a, b)
    if name.startswith("worker"):
        workers += 1
        assert {e["name"] for e in events} <= stages
        whole = events[-1]["ts"] + events[-1]["dur"] - events[0]["ts"]
        assert sum(e["dur"] for e in events) >= 0.9 * whole, "a worker is always in some stage"
        assert whole <= 3e6
    else:
        assert name == "waits for data" and {e["name"] for e in events} == {"waits"}
assert workers == 2
assert any(e["name"] == "decode" and e["args"]["session"] for r in rows.values() for e in r)
EOF
python3 "$work/trace.py" "$work/trace.json" 2>"$work/err" || fail "the trace: $(tail -n 2 "$work/err")"
"$LOADERCTL" trace --seconds 0.05 --output - >"$work/again.json" || fail "a second trace"
py "$work/again.json" 'len(d["traceEvents"]) > 3' || fail "a trace on standard output is no JSON"
traces=() # of two at a time one is refused
for i in 1 2; do
    "$LOADERCTL" trace --seconds 5 --output "$work/long-$i.json" 2>"$work/err-$i" &
    traces+=($!)
done
good=0
for pid in "${traces[@]}"; do
    if wait "$pid"; then good=$((good + 1)); fi
done
[ $good -eq 1 ] || fail "of two traces $good were made"
grep -q "another trace is under way" "$work/err-1" "$work/err-2" ||
    fail "a second trace is not refused: $(cat "$work/err-1" "$work/err-2")"
expect 1 "cannot write" "$LOADERCTL" trace --seconds 0.01 --output "$work/no/such/trace.json"
expect 1 "from 1 to 60000" "$LOADERCTL" trace --seconds 61 --output "$work/no.json"

# ---- metrics --------------------------------------------------------------------------------------------------------
cat >"$work/metrics.py" <<'EOF'
import json, re, sys
from collections import defaultdict
types, values, buckets = {}, {}, defaultdict(list)
for line in open(sys.argv[1]):
    if line.startswith("# TYPE "):
        _, _, name, kind = line.split()
        assert name not in types
        types[name] = kind
    elif not line.startswith("#"):
        m = re.fullmatch(r'([a-z_]+)(\{.*\})? (\S+)\n', line)
        assert m, line
        assert (m[1], m[2]) not in values, line # no sample twice
        values[m[1], m[2]] = float(m[3])
        le = re.search(r'le="([^"]*)"', m[2] or "")
        if le:
            buckets[re.sub(r',le="[^"]*"', "", m[2])].append((float(le[1]), float(m[3])))
assert len(buckets) == 2
for labels, b in buckets.items():
    assert b == sorted(b) and [n for _, n in b] == sorted(n for _, n in b)
    assert b[-1][0] == float("inf") and b[-1][1] == values["loaderd_session_wait_seconds_count", labels]
    assert values["loaderd_session_wait_seconds_count", labels] <= values["loaderd_session_batches_total", labels]
    assert 'job="job \\"7\\""' in labels
    bound = [v for (n, l), v in values.items() if n == "loaderd_session_bound" and l.startswith(labels[:-1])]
    assert sorted(bound) == [0, 0, 0, 0, 0, 1]
def cache(page, name): # of the daemon's only one
    return page["loaderd_cache_" + name, '{place="ram"}']
def told(report): # the same as status has it
    c, = json.load(open(report))["caches"]
    return {"hits_total": c["hits"], "misses_total": c["misses"], "hit_bytes_total": c["hit_bytes"],
            "filled_total": c["filled"], "fill_seconds_total": c["fill_s"], "refused_total": c["refused"],
            "dropped_total": c["dropped"], "reclaimed_segments_total": c["reclaimed"], "entries": c["entries"],
            "used_bytes": c["used_bytes"], "record_bytes": c["record_bytes"], "capacity_bytes": c["capacity_bytes"],
            "index_bytes": c["index_bytes"]}
before, after = told(sys.argv[2]), told(sys.argv[3])
for name in before:
    value = round(cache(values, name), 6) # status' seconds have so many places
    assert before[name] <= value <= after[name], (name, before[name], value, after[name])
assert cache(values, "hits_total") > 100 and cache(values, "filled_total") == int(sys.argv[4])
assert 0 < cache(values, "hit_seconds_total") and 0 < cache(values, "miss_seconds_total")
states = {l: v for (n, l), v in values.items() if n == "loaderd_cache_state"}
assert states == {'{place="ram",state="%s"}' % s: s == "open" for s in ("open", "full", "failed")}, states
for rank, used in ("0", False), ("1", True):
    hits, misses = ([v for (n, l), v in values.items() if n == f"loaderd_session_cache_{what}_total" and f'rank="{rank}"' in l]
                    for what in ("hits", "misses"))
    assert len(hits) == len(misses) == 1 and (hits[0] > 100) == used and (misses[0] > 0) == used, (rank, hits, misses)
assert values["loaderd_workers", None] == 2 and values["loaderd_sessions_opened_total", None] == 2
EOF
if [ "$has_metrics" -gt 0 ] && command -v curl >/dev/null; then
    url=$(sed -n 's/.*metrics: \(http:[^ ]*\)$/\1/p' "$work/log")
    "$LOADERCTL" status --json >"$work/before" || fail "status"
    curl -sf "$url" >"$work/page" || fail "no page at '$url'"
    "$LOADERCTL" status --json >"$work/after" || fail "status"
    python3 "$work/metrics.py" "$work/page" "$work/before" "$work/after" "$kept" 2>"$work/err" || fail "the page: $(tail -n 2 "$work/err")"
    [ "$(curl -s -o /dev/null -w '%{http_code}' "${url}x")" = 404 ] || fail "another page is not 404"
    [ "$(curl -s -o /dev/null -w '%{http_code}' -X POST -d x "$url")" = 405 ] || fail "POST is not 405"
    [ "$(curl -s -I -o /dev/null -w '%{http_code}' "$url")" = 200 ] || fail "HEAD is not 200"
    head -c 40000 /dev/zero | tr '\0' a >"$work/long"
    curl -s -o /dev/null -H "@$work/long" "$url" || true # more than a request may have: whatever it says, the daemon lives
    curl -sf "$url" >/dev/null || fail "no page any more after a long request"
    if command -v promtool >/dev/null; then
        promtool check metrics <"$work/page" >"$work/out" 2>&1 || fail "promtool: $(cat "$work/out")"
        [ ! -s "$work/out" ] || fail "promtool: $(cat "$work/out")"
    else
        skip "no promtool here"
    fi
    if command -v prometheus >/dev/null; then
        address=${url#http://}
        cat >"$work/prometheus.yml" <<EOF
global: { scrape_interval: 1s }
scrape_configs: [ { job_name: loaderd, static_configs: [ { targets: [ "${address%/metrics}" ] } ] } ]
EOF
        prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" --web.listen-address=127.0.0.1:0 \
            >"$work/prometheus.log" 2>&1 &
        prometheus=$!
        pids+=("$prometheus")
        asked() {
            local at
            at=$(sed -n 's/.*msg="Listening on" address=\(127[0-9.:]*\).*/\1/p' "$work/prometheus.log" | head -n 1)
            [ -n "$at" ] && curl -sfG "http://$at/api/v1/query" --data-urlencode "query=$1" >"$work/answer" &&
                py "$work/answer" "$2"
        }
        if wait_for "Prometheus' address" grep -q 'Listening on.*address=127' "$work/prometheus.log"; then
            wait_for "Prometheus' scrape" asked 'loaderd_session_batches_total{pipeline="pictures"}' \
                'd["data"]["result"][0]["metric"]["exported_job"] == "job \"7\"" and float(d["data"]["result"][0]["value"][1]) > 0'
            wait_for "Prometheus' histogram" asked \
                'histogram_quantile(0.5, sum by (le) (loaderd_session_wait_seconds_bucket))' \
                'float(d["data"]["result"][0]["value"][1]) > 0'
            wait_for "Prometheus' cache" asked 'loaderd_cache_entries{place="ram"}' \
                'float(d["data"]["result"][0]["value"][1]) == '"$kept"
        fi
        kill "$prometheus"
        wait "$prometheus" 2>/dev/null || true
    else
        skip "no prometheus here"
    fi
else
    skip "no libmicrohttpd or no curl: the metrics page was not asked for"
fi

# By now the wait for its first batch is no longer in the other trainer's window.
# shellcheck disable=SC2016
wait_for "the other rank's verdict" window 0 'w["wait"] < 0.02 and w["bound_by"] == "rank" and "rank 1" in w["sentence"]'

# ---- sessions that ended --------------------------------------------------------------------------------------------
kill "$hungry"
wait "$hungry" 2>/dev/null || true
ended() { stalls --over 0 && stall 'any(l["ended"] and l["rank"] == 1 for l in lines)'; }
wait_for "an ended session's stalls" ended
kill "$daemon"
wait "$daemon" || fail "the daemon's end: $(tail -n 3 "$work/log")"
if [ "$has_metrics" -gt 0 ] && command -v curl >/dev/null; then
    "$LOADERD_DAEMON" --dataset synthetic:100x8:u8 --metrics "unix:$work/metrics" --socket "$work/other" >"$work/log" 2>&1 &
    daemon=$!
    pids+=("$daemon")
    wait_for "a page at a unix socket" curl -sf --unix-socket "$work/metrics" http://localhost/metrics -o "$work/page"
    grep -q '^loaderd_connections ' "$work/page" || fail "the page at a unix socket: $(head -n 3 "$work/page")"
    [ "$(stat -c %a "$work/metrics")" = 660 ] || fail "the page's socket has another mode than the control socket"
    kill "$daemon"
    wait "$daemon" || fail "the daemon's end: $(tail -n 3 "$work/log")"
    [ ! -e "$work/metrics" ] || fail "the page's socket is left behind"
fi

# ---- comparisons ----------------------------------------------------------------------------------------------------
for side in a b; do
    "$LOADERCTL" bench synthetic:1000x3x8x8:u8 --seconds 0.2 --workers 1 --json >"$work/$side.json" 2>/dev/null || fail "bench --json"
done
"$LOADERCTL" bench --compare "$work/a.json" "$work/b.json" >"$work/out" || fail "bench --compare"
tail -n 1 "$work/out" | grep -qE '^(A and B are about|[AB] gives [0-9.]+ times)' || fail "no sentence: $(tail -n 1 "$work/out")"
expect 1 "is no JSON" "$LOADERCTL" bench --compare "$work/a.json" "$work/conf"
expect 1 "cannot open" "$LOADERCTL" bench --compare "$work/a.json" "$work/none"
expect 2 "needs two results" "$LOADERCTL" bench --compare "$work/a.json"

[ $failures -eq 0 ] || exit 1
echo "observing: all checks passed"
