#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# All rows, one behind the other; those that are done are only shown. Arguments: the rows wanted (a b c d e f g).
set -uo pipefail
here=$(dirname "$0")
for row in "${@:-g a b e f c d}"; do
    for name in $row; do
        for script in "$here/$name"_*.sh; do
            echo "=== ${script##*/}"
            bash "$script" || echo "=== ${script##*/} ended with $?"
        done
    done
done
