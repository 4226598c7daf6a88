#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs as root inside the virtual machine of run.sh. Each test is a function that fails at its first failing command;
# lines that begin with "VM: " are the result. A test leaves the service as it found it, but for the steps in order:
# install first, upgrade and removal last.
set -uo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
cd /srv/vm || exit 1
mapfile -t only < <(grep . only)
failed=0 passed=0
drop_in=/etc/systemd/system/loaderd.service.d/vm.conf

say() {
    echo "VM: $*"
}

run() {
    local name=$1 began=$SECONDS
    [ ${#only[@]} -eq 0 ] || [[ " install ${only[*]} " == *" $name "* ]] || return 0
    (
        set -e
        "test_$name"
    ) >"log.$name" 2>&1
    # shellcheck disable=SC2181 # within a condition the subshell would not stop at errors
    if [ $? -eq 0 ]; then
        passed=$((passed + 1))
        say "$name: passed ($((SECONDS - began)) s)$(sed -n 's/^NOTE: / /p' "log.$name" | tr '\n' ';')"
    else
        failed=$((failed + 1))
        say "$name: FAILED"
        tail -n 25 "log.$name" | sed 's/^/VM:     /'
        journalctl -q --no-pager -u loaderd.service -o cat -S "@$mark" | tail -n 8 | sed 's/^/VM:     journal: /'
        # what a failed test left must not spoil the next
        end_processes trainer
        [ ! -e /tmp/good.conf ] || cp /tmp/good.conf /etc/loaderd.conf
        restart_plain >/dev/null 2>&1
    fi
}

note() {
    echo "NOTE: $*"
}

die() {
    echo "$*"
    exit 1
}

# until SECONDS COMMAND...: waits for it to succeed.
until_true() {
    local i
    for ((i = 0; i < $1 * 5; i++)); do
        if "${@:2}" >/dev/null 2>&1; then return 0; fi
        sleep 0.2
    done
    echo "not within $1 s: ${*:2}"
    return 1
}

not() {
    if "$@"; then die "this should have failed: $*"; fi
}

as() { # as USER COMMAND...
    runuser -u "$1" -- "${@:2}"
}

# The pids of a program; a bare system has no pgrep.
processes() {
    local comm
    for comm in /proc/[0-9]*/comm; do
        [ "$(cat "$comm" 2>/dev/null)" != "$1" ] || basename "${comm%/comm}"
    done
}

end_processes() { # NAME
    local pid
    for pid in $(processes "$1"); do
        kill -9 "$pid"
    done
}

main_pid() {
    systemctl show -P MainPID loaderd.service
}

is_active() {
    systemctl is-active --quiet "$1"
}

# journal_has TEXT: since the test began.
journal_has() {
    journalctl -q --no-pager -u loaderd.service -o cat -S "@$mark" | grep -F -- "$1"
}

status() {
    loaderctl status --json
}

# number NAME: the first "NAME": N of the status.
number() {
    status | grep -oE "\"$1\": -?[0-9]+" | head -n 1 | grep -oE -- '-?[0-9]+$'
}

has_session() {
    grep -q '"trainer_waits"' <<<"$(status)"
}

kill_daemon() {
    local pid
    pid=$(main_pid)
    [ "$pid" -gt 1 ] || die "no daemon to kill"
    kill -9 "$pid"
}

restart_with() { # the lines of [Service] to add
    mkdir -p "${drop_in%/*}"
    printf '[Service]\n' >"$drop_in"
    printf '%s\n' "$@" >>"$drop_in"
    systemctl daemon-reload
    systemctl restart loaderd.service
}

restart_plain() {
    rm -f "$drop_in"
    systemctl daemon-reload
    systemctl reset-failed loaderd.service || true
    systemctl restart loaderd.service
}

# ---- the tests --------------------------------------------------------------------------------------------------------

test_install() {
    note "Debian $(cat /etc/debian_version), Linux $(uname -r), systemd $(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')"
    useradd -m trainer
    useradd -m stranger
    # What docs/service.md says: the package, one edited line, the socket; then a program of libloaderd-dev's examples.
    apt-get -q -y install --no-install-recommends ./packages/loaderd_*.deb
    getent passwd loaderd
    getent group loaderd
    [ "$(stat -c '%U:%G %a' /run/loaderd)" = "loaderd:loaderd 755" ] || die "directory: $(stat -c '%U:%G %a' /run/loaderd)"
    not is_active loaderd.service
    not is_active loaderd.socket
    sed -i 's|^dataset = .*|dataset = /srv/data/pictures/train|' /etc/loaderd.conf
    systemctl enable --now loaderd.socket
    [ "$(stat -c '%U:%G %a' /run/loaderd/socket)" = "root:loaderd 660" ] || die "socket: $(stat -c '%U:%G %a' /run/loaderd/socket)"
    apt-get -q -y install --no-install-recommends ./packages/libloaderd0_*.deb
    usermod -aG loaderd trainer
    usermod -aG loaderd stranger
    [ "$(as trainer ./pop train | tee /tmp/pop | grep -c '^step [0-9]*: 64 images, the first has label [0-5] ')" = 5 ] || die "$(cat /tmp/pop)"
    is_active loaderd.service
    note "$(tail -n 1 /tmp/pop)"
    # The pipelines of the other tests.
    cat >>/etc/loaderd.conf <<END

[pipeline records]
dataset = /srv/data/records
record = id:u32 data:u8[16380]
batch = 16
slots = 8

[pipeline kept]
dataset = /srv/data/records
record = id:u32 data:u8[16380]
batch = 16
allow = @keepers
END
    loaderd --config /etc/loaderd.conf --check-config
    cp /etc/loaderd.conf /tmp/good.conf
    systemctl restart loaderd.service
}

# doctor, tune, top and the page of metrics show this machine's figures.
test_figures() {
    loaderctl doctor train | tee /tmp/doctor
    grep -E "^ok +kernel +Linux $(uname -r)" /tmp/doctor
    grep -E '^ok +NUMA +2 nodes with memory' /tmp/doctor
    grep -E '^ok +io_uring ' /tmp/doctor
    grep -E "^ok +daemons .*$(main_pid)" /tmp/doctor
    grep -E '^ok +dataset .*360' /tmp/doctor
    as trainer loaderctl tune train --seconds 30 --write /tmp/tuned.conf | tee /tmp/tune
    loaderd --config /tmp/tuned.conf --check-config
    grep -E '^\[pipeline train\]' /tmp/tuned.conf
    note "tune: $(grep -m 1 -oE '[0-9.]+ samples/s' /tmp/tune)"
    sed -i 's|^\[daemon\]|&\nmetrics = 127.0.0.1:9187|' /etc/loaderd.conf
    systemctl restart loaderd.service
    as trainer ./trainer records 100000 20 >/tmp/out 2>&1 &
    until_true 60 grep -q first /tmp/out
    sleep 5
    loaderctl top --once | tee /tmp/top
    grep -E "^loaderd .*pid $(main_pid) .* /run/loaderd/socket" /tmp/top
    grep -E '^ +[0-9]+ vm-job +0/1 records +[1-9]' /tmp/top
    exec 3<>/dev/tcp/127.0.0.1/9187
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    tr -d '\r' <&3 >/tmp/metrics
    exec 3<&- 3>&-
    grep -E '^loaderd_workers 4$' /tmp/metrics
    grep -E '^loaderd_session_batches_total\{pipeline="records",job="vm-job",rank="0".* [1-9][0-9]*$' /tmp/metrics
    note "$(grep -m 1 '^loaderd_session_batches_total' /tmp/metrics)"
    end_processes trainer
    wait || true
    cp /tmp/good.conf /etc/loaderd.conf
    systemctl restart loaderd.service
}

# The first client starts the service, as another user; who is not in the group does not get in.
test_activation() {
    systemctl stop loaderd.service
    not is_active loaderd.service
    as trainer ./trainer records 300 0
    is_active loaderd.service
    [ "$(stat -c %U "/proc/$(main_pid)")" = loaderd ]
    useradd -m outsider
    not as outsider ./trainer records 1 0
}

test_allow() {
    journal=$(as trainer ./trainer kept 1 0 2>&1) && die "trainer was let in without its group: $journal"
    grep -F "does not let user" <<<"$journal"
    groupadd keepers
    usermod -aG keepers trainer
    systemctl reload loaderd.service
    until_true 60 as trainer ./trainer kept 5 0
    not as stranger ./trainer kept 1 0
    journal_has "does not let user $(id -u stranger) in"
}

# Case SVC-01: what the unit says is in effect, and the start says so.
test_limits() {
    local pid
    restart_plain
    pid=$(main_pid)
    grep -E 'Max locked memory +unlimited +unlimited' "/proc/$pid/limits"
    grep -E 'Max open files +1048576 +1048576' "/proc/$pid/limits"
    journal_has "unlimited bytes of locked memory (LimitMEMLOCK=)"
    as trainer ./trainer records 100 20 >/tmp/out &
    until_true 60 grep -q first /tmp/out
    status | grep -F '"locked": true' >/dev/null
    [ "$(awk '/^VmLck/ { print $2 }' "/proc/$pid/status")" -gt 1000 ]
    status | grep -F '"engine": "uring"' >/dev/null
    note "engine uring, $(awk '/^VmLck/ { print $2 }' "/proc/$pid/status") KiB locked"
    wait %1
    # No capability, no way to gain any, a filter.
    grep -E '^CapEff:\s0+$' "/proc/$pid/status"
    grep -E '^NoNewPrivs:\s1$' "/proc/$pid/status"
    grep -E '^Seccomp:\s2$' "/proc/$pid/status"
}

test_security() {
    local exposure
    systemd-analyze security --no-pager loaderd.service || true
    exposure=$(systemd-analyze security --no-pager loaderd.service | sed -n 's/.*Overall exposure level for loaderd.service: \([0-9.]*\).*/\1/p')
    note "systemd-analyze security: $exposure"
    awk -v e="$exposure" 'BEGIN { exit !(e != "" && e <= 2.0) }'
}

# kill -9 under a trainer: systemd starts it again, the trainer goes on at the next batch.
test_killed() {
    local before
    before=$(systemctl show -P NRestarts loaderd.service)
    as trainer ./trainer records 400 20 >/tmp/out 2>&1 &
    until_true 60 grep -q first /tmp/out
    sleep 1
    kill_daemon
    until_true 60 status
    until_true 60 has_session
    kill_daemon
    wait %1 || die "$(cat /tmp/out)"
    grep -E '^done: 400 steps, 2 reconnects, 0 rescues' /tmp/out
    [ "$(systemctl show -P NRestarts loaderd.service)" -gt "$before" ]
    note "$(tail -n 1 /tmp/out)"
}

has_failed() {
    systemctl is-failed --quiet "$1"
}

kill_until_given_up() {
    local i pid
    for ((i = 0; i < 600; i++)); do
        ! has_failed loaderd.service || return 0
        pid=$(main_pid)
        [ "$pid" -le 1 ] || kill -9 "$pid" || true
        sleep 0.2
    done
    die "the daemon is started again and again"
}

# A daemon that is killed more often than its unit's limit: systemd gives it up and the socket with it. A trainer goes on
# where somebody mends that within its minute, and else ends with an error; it does not hang.
test_killed_often() {
    local began trainer
    mkdir -p "${drop_in%/*}"
    printf '[Unit]\nStartLimitIntervalSec=600\nStartLimitBurst=3\n' >"$drop_in"
    systemctl daemon-reload
    systemctl reset-failed loaderd.service
    systemctl restart loaderd.service
    as trainer ./trainer records 400 50 >/tmp/out 2>&1 &
    until_true 60 grep -q first /tmp/out
    kill_until_given_up
    until_true 60 has_failed loaderd.socket # asked for by the trainer
    [ "$(systemctl show -P Result loaderd.socket)" = service-start-limit-hit ] || die "$(systemctl show -P Result loaderd.socket)"
    [ "$(systemctl show -P NRestarts loaderd.service)" = 2 ] || note "$(systemctl show -P NRestarts loaderd.service) restarts"
    systemctl reset-failed loaderd.service loaderd.socket
    systemctl start loaderd.socket
    wait %1 || die "$(cat /tmp/out)"
    grep -E '^done: 400 steps, [1-9][0-9]* reconnects, 0 rescues' /tmp/out
    note "$(tail -n 1 /tmp/out)"
    as trainer ./trainer records 100000 50 >/tmp/out 2>&1 &
    trainer=$!
    until_true 60 grep -q first /tmp/out
    kill_until_given_up
    began=$SECONDS
    not wait $trainer
    [ $((SECONDS - began)) -le 120 ] || die "the trainer took $((SECONDS - began)) s to say: $(cat /tmp/out)"
    grep -F 'none came back within 60 s' /tmp/out
    note "after $((SECONDS - began)) s: $(tail -n 1 /tmp/out)"
    systemctl reset-failed loaderd.service loaderd.socket
    systemctl start loaderd.socket
    as trainer ./trainer records 10 0
    restart_plain
}

test_reload() {
    local pid
    pid=$(main_pid)
    as trainer ./trainer records 200 20 >/tmp/out 2>&1 &
    until_true 60 grep -q first /tmp/out
    cp /etc/loaderd.conf /tmp/good.conf
    echo 'bacth = 3' >>/etc/loaderd.conf
    systemctl reload loaderd.service
    until_true 60 journal_has "did you mean 'batch'"
    journal_has "the configuration is not changed: /etc/loaderd.conf:"
    cp /tmp/good.conf /etc/loaderd.conf
    printf '\n[pipeline more]\ndataset = /srv/data/records\nrecord = id:u32 data:u8[16380]\n' >>/etc/loaderd.conf
    systemctl reload loaderd.service
    until_true 60 as trainer ./trainer more 3 0
    wait %1 || die "$(cat /tmp/out)"
    grep -F '0 reconnects' /tmp/out
    [ "$(main_pid)" = "$pid" ]
    cp /tmp/good.conf /etc/loaderd.conf
    systemctl reload loaderd.service
}

# A daemon that stands still is replaced; a trainer goes on.
test_watchdog() {
    local pid
    restart_with WatchdogSec=20
    as trainer ./trainer records 900 100 >/tmp/out 2>&1 &
    until_true 60 grep -q first /tmp/out
    pid=$(main_pid)
    sleep 25
    [ "$(main_pid)" = "$pid" ] || die "the watchdog struck while all was well"
    kill -STOP "$pid"
    # shellcheck disable=SC2317 # called by until_true
    changed() { [ "$(main_pid)" != "$pid" ] && [ "$(main_pid)" != 0 ]; }
    until_true 120 changed
    journalctl -q --no-pager -u loaderd.service -S "@$mark" | grep -iF 'watchdog timeout'
    wait %1 || die "$(cat /tmp/out)"
    note "$(tail -n 1 /tmp/out)"
    restart_plain
}

test_journal() {
    local number
    as trainer ./trainer records 20 0
    until_true 60 journal_has "session"
    journalctl -q --no-pager -S "@$mark" PIPELINE=records JOB=vm-job TRAINER_UID="$(id -u trainer)" RANK=0 -o cat | grep -F 'batches'
    journalctl -q --no-pager -S "@$mark" -u loaderd.service PIPELINE=records -o verbose | grep -E 'SESSION=[0-9]+'
    number=$(journalctl -q --no-pager -S "@$mark" -u loaderd.service PIPELINE=records -o json | grep -c '"PRIORITY":"6"')
    [ "$number" -ge 2 ]
}

# Case IO-01: io_uring forbidden by a filter.
test_no_uring() {
    restart_with 'SystemCallFilter=~@aio'
    as trainer ./trainer records 300 0
    status >/tmp/status
    not grep -F '"engine": "uring"' /tmp/status
    journal_has 'io_uring'
    note "$(status | grep -oE '"engine_reason": "[^"]*"')"
    restart_plain
}

# Cases IO-02 and SVC-01: too little lockable memory.
test_memlock() {
    restart_with LimitMEMLOCK=64K
    as trainer ./trainer records 300 5 >/tmp/out 2>&1 &
    until_true 60 grep -q first /tmp/out
    status | grep -F '"locked": false' >/dev/null
    wait %1 || die "$(cat /tmp/out)"
    journal_has LimitMEMLOCK=
    restart_plain
}

# Cases NUM-02 and NUM-04: no more workers than the quota grants, only on allowed CPUs.
test_quota() {
    local pid task
    restart_with CPUQuota=150%
    [ "$(number workers)" = 2 ] || die "$(number workers) workers under CPUQuota=150%"
    restart_with CPUAffinity='1 3'
    [ "$(number workers)" = 2 ] || die "$(number workers) workers on 2 CPUs"
    pid=$(main_pid)
    for task in /proc/"$pid"/task/*; do
        [[ $(cat "$task/comm") != worker/* ]] || grep '^Cpus_allowed_list' "$task/status" | cut -f 2
    done | sort | tr '\n' ' ' >/tmp/cpus
    [ "$(cat /tmp/cpus)" = "1 3 " ] || die "workers on $(cat /tmp/cpus)"
    restart_with AllowedCPUs=2
    [ "$(number workers)" = 1 ] || die "$(number workers) workers in a cpuset of 1 CPU"
    # one CPU offline
    echo 0 >/sys/devices/system/cpu/cpu3/online
    restart_plain
    [ "$(number workers) $(number pinned)" = "3 3" ] || die "$(number workers) workers, $(number pinned) pinned on 3 CPUs"
    as trainer ./trainer records 50 0
    echo 1 >/sys/devices/system/cpu/cpu3/online
    # bench goes by the quota, too
    systemd-run -q --pipe --wait -p CPUQuota=150% loaderctl bench synthetic:1000x1024:f32 --seconds 1 --json >/tmp/bench
    grep -F '"workers": 2,' /tmp/bench
    grep -F '"cpu_quota": 1.500' /tmp/bench
    restart_plain
    [ "$(number workers)" = 4 ]
}

# Case NUM-02: only memory of one node is allowed: rings are there, wherever their trainers run.
test_one_node() {
    restart_with AllowedMemoryNodes=1
    grep -E '^Mems_allowed_list:\s1$' "/proc/$(main_pid)/status"
    as trainer taskset -c 0 ./trainer records 100000 20 batch=64 slots=16 >/tmp/out 2>&1 &
    until_true 60 grep -q first /tmp/out
    grep memfd "/proc/$(main_pid)/numa_maps" | tee /tmp/maps
    not grep -oE 'N0=[0-9]+' /tmp/maps
    [ "$(grep -oE 'N1=[0-9]+' /tmp/maps | cut -d = -f 2 | sort -n | tail -n 1)" -ge 4000 ]
    end_processes trainer
    wait || true
    restart_plain
}

# Case NUM-01: calls that place memory are forbidden. It works, says so once, and tells binding and pinning apart.
test_no_mbind() {
    restart_with 'SystemCallFilter=~mbind set_mempolicy get_mempolicy move_pages'
    as trainer ./trainer records 100 20 >/tmp/out 2>&1 &
    until_true 60 grep -q first /tmp/out
    status | grep -F '"memory_binding": "Operation not permitted"'
    [ "$(number pinned)" = 4 ]
    wait %1 || die "$(cat /tmp/out)"
    [ "$(journal_has 'memory binding unavailable (EPERM)' | wc -l)" = 1 ]
    restart_plain
}

# Case IO-10: few threads are allowed, deep queues wanted, nothing is cached: slower, but nothing fails.
test_few_tasks() {
    local pid peak=0 tasks trainer pop
    sed -i 's|^\[daemon\]|&\ndepth = 1024|' /etc/loaderd.conf
    restart_with TasksMax=64
    pid=$(main_pid)
    sync
    echo 3 >/proc/sys/vm/drop_caches
    as trainer ./trainer records 200 0 batch=64 slots=16 >/tmp/out 2>&1 &
    trainer=$!
    as trainer ./pop train >/tmp/pop 2>&1 &
    pop=$!
    while kill -0 $trainer 2>/dev/null || kill -0 $pop 2>/dev/null; do
        tasks=$(find "/proc/$pid/task" -mindepth 1 -maxdepth 1 | wc -l)
        [ "$tasks" -le "$peak" ] || peak=$tasks
        echo 3 >/proc/sys/vm/drop_caches
        sleep 0.5
    done
    wait $trainer || die "$(cat /tmp/out)"
    wait $pop || die "$(cat /tmp/pop)"
    [ "$(grep -c '^step ' /tmp/pop)" = 5 ] || die "$(cat /tmp/pop)"
    status >/tmp/status
    not grep -E '"bad": [1-9]' /tmp/status
    note "$peak tasks at most"
    cp /tmp/good.conf /etc/loaderd.conf
    restart_plain
}

# A ring lies on its trainer's node, in the daemon's own account of its pages.
test_numa() {
    local node pid pages
    [ -d /sys/devices/system/node/node1 ]
    pid=$(main_pid)
    for node in 0 1; do
        as trainer taskset -c $((2 * node)) ./trainer records 150 20 batch=64 slots=16 >/tmp/out 2>&1 &
        until_true 60 grep -q first /tmp/out
        [ "$(number node)" = $node ] || die "status tells node $(number node), the trainer is on $node"
        grep memfd "/proc/$pid/numa_maps" | tee /tmp/maps
        pages=$(grep -oE "N$node=[0-9]+" /tmp/maps | cut -d = -f 2 | sort -n | tail -n 1)
        [ "${pages:-0}" -ge 4000 ] || die "only ${pages:-0} pages on node $node"
        not grep -oE "N$((1 - node))=[0-9]{3,}" /tmp/maps
        note "node $node: $pages pages there"
        wait %1 || die "$(cat /tmp/out)"
    done
    [ "$(cat /proc/"$pid"/task/*/comm | grep -c worker/)" = 4 ]
}

# Two trainers, one a node, at the same time: each one's batches come mostly from the workers of its node.
test_near() {
    local share
    as trainer taskset -c 0 ./trainer records 100000 -1 batch=64 >/tmp/out0 2>&1 &
    as trainer taskset -c 2 ./trainer records 100000 -1 batch=64 >/tmp/out1 2>&1 &
    until_true 60 grep -q first /tmp/out0
    until_true 60 grep -q first /tmp/out1
    sleep 20
    status >/tmp/status
    share=$(grep -oE '"(near_)?samples": [0-9]+' /tmp/status | tail -n 4 | grep -oE '[0-9]+' | paste -sd' ' |
        awk '{ print 100 * ($2 + $4) / ($1 + $3) }')
    note "$share % of the samples by workers of the ring's node"
    end_processes trainer
    wait || true
    awk -v s="$share" 'BEGIN { exit !(s >= 60) }' || die "$(cat /tmp/status)"
}

# With shmem_enabled=advise rings get huge pages.
test_huge_pages() {
    echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled
    as trainer ./trainer records 100 20 batch=64 slots=16 >/tmp/out 2>&1 &
    until_true 60 grep -q first /tmp/out
    status | grep -oE '"huge_pages": "[^"]*"'
    grep ShmemHugePages /proc/meminfo
    [ "$(awk '/^ShmemHugePages/ { print $2 }' /proc/meminfo)" -ge 2048 ]
    note "$(awk '/^ShmemHugePages/ { print $2 }' /proc/meminfo) KiB in huge pages"
    wait %1 || die "$(cat /tmp/out)"
    echo never >/sys/kernel/mm/transparent_hugepage/shmem_enabled
}

# A user's own service, without an administrator.
test_user_unit() {
    local id
    id=$(id -u stranger)
    loginctl enable-linger stranger
    until_true 60 test -S "/run/user/$id/systemd/private"
    mkdir -p ~stranger/.config
    printf '[pipeline mine]\ndataset = /srv/data/records\nrecord = id:u32 data:u8[16380]\n' >~stranger/.config/loaderd.conf
    chown -R stranger: ~stranger/.config
    as stranger env XDG_RUNTIME_DIR="/run/user/$id" systemctl --user enable --now loaderd.socket
    as stranger env XDG_RUNTIME_DIR="/run/user/$id" ./trainer mine 50 0
    as stranger env XDG_RUNTIME_DIR="/run/user/$id" systemctl --user is-active loaderd.service
    loginctl disable-linger stranger
}

test_python() {
    apt-get -q -y install --no-install-recommends ./packages/python3-loaderd_*.deb
    as trainer python3 -c '
import loaderd, numpy
with loaderd.Loader("records", epochs=1) as loader:
    for step, (ids, data) in zip(range(3), loader):
        numbers = 16 * step + numpy.arange(16)
        assert (ids.reshape(16) == numbers).all(), ids
        assert (data == (numbers[:, None] + 7 * numpy.arange(16380)) % 251).all()
    print("NOTE:", ids.shape, ids.dtype, data.shape, data.dtype, loaderd.__version__)
'
}

test_upgrade() {
    as trainer ./trainer records 1500 100 >/tmp/out 2>&1 &
    until_true 60 grep -q first /tmp/out
    apt-get -q -y install --no-install-recommends ./next/*.deb
    is_active loaderd.service
    is_active loaderd.socket
    dpkg-query -W loaderd | grep -F +vm1
    wait %1 || die "$(cat /tmp/out)"
    grep -E '^done: 1500 steps, [1-9][0-9]* reconnects, 0 rescues' /tmp/out
    grep -F /srv/data/records /etc/loaderd.conf
    note "$(tail -n 1 /tmp/out)"
}

test_removal() {
    apt-get -q -y remove loaderd
    not is_active loaderd.service
    not is_active loaderd.socket
    [ ! -e /usr/sbin/loaderd ] && [ -e /etc/loaderd.conf ]
    [ -z "$(processes loaderd)" ]
    apt-get -q -y purge loaderd libloaderd0
    [ ! -e /etc/loaderd.conf ] && [ ! -e /var/cache/loaderd ] && [ ! -e /run/loaderd/socket ]
    systemctl list-unit-files >/tmp/units
    not grep loaderd /tmp/units
}

for name in install figures activation allow limits security killed killed_often reload watchdog journal no_uring memlock \
    quota one_node no_mbind few_tasks numa near huge_pages user_unit python upgrade removal; do
    mark=$(date +%s)
    run $name
done
say "end: $failed failed, $passed passed"
sync
