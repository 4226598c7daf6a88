#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The wheel that carries everything: built from BUILD, installed in a fresh virtual environment, as another user where
# this one is root, and run there: loaderctl, a loader with its private daemon, the tests of the package.
#
#   tests/python/check_wheel.sh BUILD     (default: build)
#
# Needs patchelf, Python with venv, and numpy and pytest (from the system: nothing is downloaded). Exit 77: a skip.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${1:-$root/build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

skip() {
    echo "$*" >&2
    exit 77
}

command -v patchelf >/dev/null || skip "no patchelf"
python=
for candidate in "${PYTHON:-}" /usr/bin/python3 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import ensurepip, numpy, pytest, venv' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || skip "no Python with venv, numpy and pytest (Debian: python3-venv python3-numpy python3-pytest)"

"$python" "$root/client/python/build_wheel.py" --build "$build" --output "$work"
wheel=$(echo "$work"/loaderd-*.whl)
mkdir -p "$work/user" "$work/tests" "$work/data/formats"
cp "$root"/tests/python/*.py "$work/tests/"
cp -r "$root/tests/data/formats/boxes" "$work/data/formats/" # what they read

# not as root, where the Python at hand lets another user in (one below root's home does not)
as_user=()
nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
if [ "$(id -u)" -eq 0 ] && "${nobody[@]}" env "$python" -c 'import numpy, pytest' 2>/dev/null; then
    chown -R 65534:65534 "$work/user" "$work/tests" "$work/data"
    as_user=("${nobody[@]}")
fi
run() {
    "${as_user[@]}" env -i HOME="$work/user" PATH="$work/user/venv/bin:/usr/bin:/bin" LC_ALL=C.UTF-8 \
        LOADERD_TEST_INSTALLED=1 "$@"
}

# numpy and pytest come from the outer Python, by a path file: it may itself be a virtual environment
site=$("$python" -c 'import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))')
site2=$("$python" -c 'import pytest, os; print(os.path.dirname(os.path.dirname(pytest.__file__)))')
run "$python" -m venv "$work/user/venv"
own=$(run "$work/user/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
run sh -c 'printf "%s\n" "$@" >"$0/outer.pth"' "$own" "$site" "$site2"
run pip install -q --no-index --no-deps --disable-pip-version-check "$wheel"

# nothing of the machine's: neither a library nor a daemon but those of the wheel
run python - <<'END'
import os, loaderd
from loaderd import _library
with loaderd.Loader("synthetic:1000x3x32x32:f32", batch_size=10, shuffle=True) as loader:
    count = sum(len(x) for x, y in loader)
    program = os.readlink(f"/proc/{loader.daemon_pid}/exe")
    maps = {line.split()[-1] for line in open(f"/proc/{loader.daemon_pid}/maps") if ".so" in line}
assert count == 1000, count
assert program.startswith(_library.BUNDLE), program
assert _library._library_path.startswith(_library.BUNDLE), _library._library_path
outside = {os.path.basename(p) for p in maps if not p.startswith(_library.BUNDLE)}
assert all(_library.BUNDLE in p or name.startswith(("libc.", "libm.", "ld-linux", "libpthread", "librt", "libdl"))
           for p in maps for name in [os.path.basename(p)]), outside
print("the wheel's own daemon served 1000 samples")
END
run loaderctl version
run loaderctl bench synthetic:1000x3x32x32:u8 --seconds 0.2 | tail -n 1
run sh -c 'cd "$0" && python -m pytest -q -p no:cacheprovider -rs' "$work/tests"
echo "$(basename "$wheel"): $(stat -c %s "$wheel") bytes"
