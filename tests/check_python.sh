#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The tests of the Python package (tests/python), with the library and the daemon of this build. Skipped where there is no
# shared library (--disable-shared, as sanitized builds have it) or no Python with numpy and pytest.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
: "${builddir:=$root/build}"
: "${LOADERD_DAEMON:=$builddir/loaderd}"
export LOADERD_DAEMON LOADERD_LIBRARY=$builddir/.libs/libloaderd.so.0
export PYTHONDONTWRITEBYTECODE=1

skip() {
    echo "$*" >&2
    exit 77
}

[ -e "$LOADERD_LIBRARY" ] || skip "no shared library in this build ($LOADERD_LIBRARY), which Python needs"
python=
for candidate in "${PYTHON:-}" python3 /usr/bin/python3; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import numpy, pytest, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || skip "no Python of at least 3.9 with numpy and pytest (Debian: python3-numpy python3-pytest)"
cd "$root/tests/python"
exec "$python" -m pytest -q -p no:cacheprovider --durations=5 -rs "$@"
