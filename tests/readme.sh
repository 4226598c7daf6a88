#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# README shows client/examples/pop.c whole, byte for byte, and names commands and files that exist.
set -euo pipefail
: "${srcdir:=.}"
awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' "$srcdir/README" | cmp - "$srcdir/client/examples/pop.c"
grep -qx '    tools/quickstart demo' "$srcdir/README"
grep -qx '    tools/quickstart check' "$srcdir/README"
