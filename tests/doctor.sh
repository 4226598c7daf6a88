#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# loaderctl doctor on this machine: JSON, exit status, and the remedies that it prints, tried where that needs no
# privilege: what is made worse here is found, and after its remedy it is not.
set -euo pipefail
# shellcheck source=tests/common.sh
. "$(dirname "$0")/common.sh"
command -v python3 >/dev/null || {
    echo "skipped: no python3 to read JSON with"
    exit 77
}
chmod 755 "$work"
export XDG_RUNTIME_DIR=$work/runtime
unset LOADERD_SIMD JSIMD_FORCENONE LOADERD_URING_OFF LOADERD_SOCKET
mkdir -m 700 "$XDG_RUNTIME_DIR"

cat >"$work/field.py" <<'END'
import json, sys
report = json.load(open(sys.argv[1]))
assert set(report) == {"version", "health", "checks"}, report
ranks = ["ok", "degraded", "broken"]
for check in report["checks"]:
    assert set(check) == {"check", "health", "found", "cost", "remedy"}, check
    assert check["found"] and bool(check["cost"]) == bool(check["remedy"]) == (check["health"] != "ok"), check
assert report["health"] == max((c["health"] for c in report["checks"]), key=ranks.index)
for check in report["checks"]:
    if check["check"] == sys.argv[2]:
        print(check[sys.argv[3]])
        break
END

# doctor COMMAND...: runs it into $work/json and checks its status.
doctor() {
    local got=0 wanted=0
    "$@" >"$work/json" 2>"$work/err" || got=$?
    [ "$(field io_uring health)" ] || fail "$*: no JSON: $(head -c 300 "$work/json" "$work/err")"
    ! grep -q '^{"version": [^,]*, "health": "broken"' "$work/json" || wanted=1
    [ $got -eq $wanted ] || fail "$* ended with $got, wanted $wanted"
}
field() { # CHECK WHAT
    python3 "$work/field.py" "$work/json" "$1" "$2"
}
# is CHECK HEALTH [WORD]
is() {
    [ "$(field "$1" health)" = "$2" ] || fail "$1 is $(field "$1" health) ($(field "$1" found)), wanted $2"
    [ $# -lt 3 ] || [[ $(field "$1" found)$(field "$1" remedy) == *"$3"* ]] ||
        fail "$1: no '$3' in: $(field "$1" found); $(field "$1" remedy)"
}

doctor "$LOADERCTL" doctor --json
"$LOADERCTL" doctor >"$work/table" 2>"$work/err" || true
grep -qE '^[0-9]+ ok, [0-9]+ degraded, [0-9]+ broken$' "$work/table" || fail "the table has no last line"
grep -qE '^(ok|degraded) +io_uring ' "$work/table" || fail "the table has no io_uring"

# ---- settings of the environment -------------------------------------------------------------------------------------
if grep -q ' avx2' /proc/cpuinfo 2>/dev/null && [ "$(field SIMD health)" = ok ]; then
    doctor env LOADERD_SIMD=scalar "$LOADERCTL" doctor --json
    is SIMD degraded "unset LOADERD_SIMD"
    doctor env -u LOADERD_SIMD "$LOADERCTL" doctor --json
    is SIMD ok
fi
doctor env JSIMD_FORCENONE=1 "$LOADERCTL" doctor --json
is "JPEG codec" degraded
doctor env -u JSIMD_FORCENONE "$LOADERCTL" doctor --json
if [ "$(field io_uring health)" = ok ]; then
    doctor env LOADERD_URING_OFF=chain "$LOADERCTL" doctor --json
    is io_uring degraded "unset LOADERD_URING_OFF"
    doctor env -u LOADERD_URING_OFF "$LOADERCTL" doctor --json
    is io_uring ok
fi

# ---- limits ----------------------------------------------------------------------------------------------------------
# as_user COMMAND...: without root's privileges, which hide the limit.
as_user() {
    if [ "$(id -u)" -eq 0 ]; then
        setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all -- "$@"
    else
        "$@"
    fi
}
cp "$LOADERCTL" "$work/loaderctl" 2>/dev/null || true # where another user can reach it
[ ! -e "$(dirname "$LOADERCTL")/.libs/loaderctl" ] || cp "$(dirname "$LOADERCTL")/.libs/loaderctl" "$work/loaderctl"
if as_user "$work/loaderctl" version >/dev/null 2>&1; then
    # shellcheck disable=SC2016 # $0 is the inner shell's
    doctor as_user bash -c 'ulimit -l 64; exec "$0" doctor --json' "$work/loaderctl"
    is "locked memory" degraded "LimitMEMLOCK=infinity"
    # the soft limit alone, where the hard one can be made large enough for that
    if (ulimit -H -l unlimited) 2>/dev/null; then
        doctor bash -c 'ulimit -H -l unlimited; ulimit -S -l 64; exec "$@"' - setpriv --bounding-set=-ipc_lock \
            --inh-caps=-all -- "$work/loaderctl" doctor --json
        if [ "$(field "locked memory" health)" = degraded ]; then
            remedy=$(field "locked memory" remedy)
            [ "$remedy" = "ulimit -l unlimited, in the shell that starts it" ] || fail "remedy: $remedy"
            doctor bash -c "ulimit -H -l unlimited; ulimit -S -l 64; ${remedy%%,*}; exec \"\$@\"" - \
                setpriv --bounding-set=-ipc_lock --inh-caps=-all -- "$work/loaderctl" doctor --json
            is "locked memory" ok unlimited
        fi
    fi
    # as root: prlimit of a running process
    if [ "$(id -u)" -eq 0 ] && prlimit --memlock=unlimited true 2>/dev/null; then
        doctor prlimit --memlock=unlimited -- setpriv --reuid=65534 --regid=65534 --clear-groups -- "$work/loaderctl" doctor --json
        is "locked memory" ok unlimited
    fi
else
    echo "another user cannot run $work/loaderctl: the limit of locked memory was not tried" >&2
fi

"$builddir/tools/demo-data" --train 12 --validation 4 "$work/data" >&2
"$LOADERCTL" pack "$work/data/train" "$work/shards" --shards 24 2>/dev/null
files=$(find "$work/shards" -type f | wc -l)
doctor bash -c "ulimit -n $((files + 50)); exec \"\$0\" doctor \"\$1\" --json" "$LOADERCTL" "$work/shards"
is "open files" broken "LimitNOFILE=4096"
hard=$(ulimit -H -n)
if [ "$hard" = unlimited ] || [ "$hard" -ge 4096 ]; then
    doctor bash -c "ulimit -S -n $((files + 50)); exec \"\$0\" doctor \"\$1\" --json" "$LOADERCTL" "$work/shards"
    is "open files" degraded "ulimit -n 4096"
    doctor bash -c "ulimit -S -n $((files + 50)); ulimit -n 4096; exec \"\$0\" doctor \"\$1\" --json" "$LOADERCTL" "$work/shards"
    is "open files" ok
fi
"$LOADERCTL" pack "$work/shards" "$work/one.pack" 2>/dev/null # the other remedy: fewer files
doctor bash -c "ulimit -n $((files + 50)); exec \"\$0\" doctor \"\$1\" --json" "$LOADERCTL" "$work/one.pack"
[ "$(field "open files" health)" != broken ] || fail "one pack still does not fit: $(field "open files" found)"

# ---- datasets --------------------------------------------------------------------------------------------------------
doctor "$LOADERCTL" doctor "$work/data/train" --json
is dataset ok "folder"
[ "$(field "page cache" found)" ] || fail "no word of the page cache"
[ "$(field "file system" found)" ] || fail "no word of the file system"
doctor "$LOADERCTL" doctor "$work/nowhere" --json
is dataset broken "$work/nowhere"
doctor "$LOADERCTL" doctor synthetic:10x3:u8 --json
is dataset ok "synthetic"

# ---- daemons ---------------------------------------------------------------------------------------------------------
start_daemon() {
    "$LOADERD_DAEMON" --socket "$XDG_RUNTIME_DIR/loaderd/socket" --dataset "$work/data/train" --image 32 --workers 1 2>"$work/daemon.log" &
    daemon=$!
    for _ in $(seq 200); do
        ! "$LOADERCTL" status --socket "$XDG_RUNTIME_DIR/loaderd/socket" >/dev/null 2>&1 || return 0
        sleep 0.05
    done
    fail "the daemon does not answer: $(tail -n 3 "$work/daemon.log")"
}
mkdir -m 700 "$XDG_RUNTIME_DIR/loaderd"
if [ -x "$LOADERD_DAEMON" ]; then
    start_daemon
    doctor "$LOADERCTL" doctor --json
    is socket ok "pid $daemon of user $(id -u) answers"
    [[ $(field daemons found) == *" running: pid "* ]] || fail "daemons: $(field daemons found)"
    kill -9 "$daemon"
    wait "$daemon" 2>/dev/null || true
    daemon=
    doctor "$LOADERCTL" doctor --json
    is socket degraded
    [[ $(field socket remedy) == *"loaderd --config FILE (it replaces the file by itself)"* ]] || fail "socket: $(field socket remedy)"
    start_daemon
    doctor "$LOADERCTL" doctor --json
    is socket ok
fi
doctor "$LOADERCTL" doctor --json --socket "$work/else"
is socket broken "$work/else"
printf '[daemon]\nsocket = other\n[pipeline x]\ndataset = synthetic:9x3:u8\n' >"$work/some.conf"
doctor "$LOADERCTL" doctor --json --config "$work/some.conf"
is socket broken "$work/other"
doctor env LOADERD_SOCKET="$work/nobody" "$LOADERCTL" doctor --json
is socket broken "$work/nobody"

[ $failures -eq 0 ] || exit 1
echo "doctor: all checks passed"
