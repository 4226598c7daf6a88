#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The man pages say what the programs and headers have, no more and no less: every option, configuration key (with its
# argument and default), public function, option of loaderd_open(), word of the ring's layout (checked by the compiler),
# environment variable; files named in docs/ exist.
set -euo pipefail
# shellcheck source=tests/common.sh
. "$(dirname "$0")/common.sh"

# same WHAT WANTED FOUND: two sorted lists.
same() {
    local line
    while read -r line; do fail "$1: not documented: $line"; done < <(comm -23 "$2" "$3")
    while read -r line; do fail "$1: documented, but not there: $line"; done < <(comm -13 "$2" "$3")
    [ -s "$2" ] || fail "$1: the list is empty"
}

# ---- configuration keys: the item line has the key, its argument and its default -----------------------------------
"$LOADERCTL" version --keys >"$work/keys"
awk -F '\t' '{ print ".It Cm " $2 " No = Ar " $3 ($4 == "" ? "" : " Pq Cm " $4) }' "$work/keys" | sort >"$work/wanted"
grep '^\.It Cm .* No = ' "$root/man/loaderd.conf.5" | sort >"$work/found"
same "loaderd.conf(5)" "$work/wanted" "$work/found"
cut -f 2 "$work/keys" | sort >"$work/key-names"

# ---- options -------------------------------------------------------------------------------------------------------
# options_of FILE: the options that a help text lists, configuration keys left out.
options_of() {
    sed -n 's/^  --\([a-z-]*\).*/\1/p' "$1" | sort -u | comm -23 - "$work/key-names"
}
documented_options() { # items of a list and of the synopsis
    grep -oE '\bFl -[a-z][a-z-]*' "$1" | sed 's/Fl -//' | sort -u
}
for command in $("$LOADERCTL" --help | sed -n 's/^  \([a-z]*\) .*/\1/p'); do
    "$LOADERCTL" "$command" --help
done >"$work/help"
{ options_of "$work/help" && printf '%s\n' help on-error resize socket; } | sort -u >"$work/wanted" # keys, too
documented_options "$root/man/loaderctl.1" >"$work/found"
same "loaderctl(1)" "$work/wanted" "$work/found"
"$LOADERCTL" --help | sed -n 's/^  \([a-z]*\) .*/\1/p' | sort >"$work/wanted"
sed -n '/^\.Ss Commands/,/^\.Ss Options/s/^\.It Cm \([a-z]*\)$/\1/p' "$root/man/loaderctl.1" | sort >"$work/found"
same "commands in loaderctl(1)" "$work/wanted" "$work/found"
if [ -x "$LOADERD_DAEMON" ]; then
    "$LOADERD_DAEMON" --help >"$work/help"
    { options_of "$work/help" && printf '%s\n' private version; } | sort -u >"$work/wanted"
    { documented_options "$root/man/loaderd.8" | comm -23 - "$work/key-names"; } >"$work/found"
    same "loaderd(8)" "$work/wanted" "$work/found"
    # The configuration file's place: below sysconfdir the same for both programs and in the pages.
    place=$(sed -n 's/.*(\(\/[^)]*loaderd\.conf\)).*/\1/p' "$work/help" | head -n 1)
    "$LOADERCTL" digest --help >"$work/help"
    grep -qF "($place)" "$work/help" || fail "loaderctl looks for another file than loaderd's $place"
    tail=/${place##*/}
    [[ $place != *"/loaderd/loaderd.conf" ]] || tail=/loaderd/loaderd.conf
    for page in loaderctl.1 loaderd.8 loaderd.conf.5; do
        grep -q "Pa /etc$tail" "$root/man/$page" || fail "$page does not name /etc$tail"
    done
else
    echo "no $LOADERD_DAEMON here: loaderd(8) was not compared" >&2
fi

# ---- the libraries -------------------------------------------------------------------------------------------------
# library HEADER PAGE MAP: the same functions in all three; what begins with loaderd_internal_ is between the libraries.
library() {
    local page=$root/man/$2 name=${2%.*}
    sed -e 's|/\*.*\*/||' -e '/\/\*/,/\*\//d' "$root/include/loaderd/$1" | grep -oE '\bloaderd_[a-z_]+\(' | tr -d '(' |
        sort -u >"$work/functions"
    sed -n '/^\.Sh NAME/,/^\.Nd/s/^\.Nm \(loaderd_[a-z_]*\).*/\1/p' "$page" | sort -u >"$work/found"
    same "names of $name(3)" "$work/functions" "$work/found"
    sed -n '/^\.Sh SYNOPSIS/,/^\.Sh DESCRIPTION/s/^\.F[no] \(loaderd_[a-z_]*\).*/\1/p' "$page" | sort -u >"$work/found"
    same "synopsis of $name(3)" "$work/functions" "$work/found"
    sed -n '/^\.Sh DESCRIPTION/,$p' "$page" | grep '^\.Fn' | grep -oE '\bloaderd_[a-z_]+' | sort -u >"$work/found"
    same "description of $name(3)" "$work/functions" "$work/found"
    grep -oE '^ +loaderd_[a-z_]+;' "$root/client/$3" | tr -d ' ;' | grep -v '^loaderd_internal_' | sort >"$work/found"
    same "symbols that $name exports" "$work/functions" "$work/found"
}
library loaderd.h libloaderd.3 libloaderd.map
library cuda.h libloaderd-cuda.3 libloaderd-cuda.map
sed -n '/^struct loaderd_cuda_options {/,/^}/p' "$root/include/loaderd/cuda.h" | sed 's|/\*.*||; s/(\*\(notify\))(.*/\1;/' |
    grep -oE '[a-z_]+;' | tr -d ';' | sort -u >"$work/wanted"
sed -n '/^\.Ss Opening/,/^\.Ss Batches/s/^\.It \(Fa .*\)/\1/p' "$root/man/libloaderd-cuda.3" | sed 's/Fa //g; s/ , /\n/g' |
    sort -u >"$work/found"
same "options of loaderd_cuda_open()" "$work/wanted" "$work/found"
header=$root/include/loaderd/loaderd.h
page=$root/man/libloaderd.3
sed -n '/^struct loaderd_options {/,/^}/p' "$header" | sed 's|/\*.*||' | grep -oE '[a-z_]+[,;]' | tr -d ',;' | sort -u >"$work/wanted"
sed -n '/^\.Ss Opening/,/^\.Ss Batches/s/^\.It \(Fa .*\)/\1/p' "$page" | sed 's/Fa //g; s/ , /\n/g' | sort -u >"$work/found"
same "options of loaderd_open()" "$work/wanted" "$work/found"
grep -oE 'LOADERD_(ROW|BATCH)_[A-Z]+ 0x' "$header" | sed 's/ 0x//' | sort -u >"$work/wanted"
grep -oE 'LOADERD_(ROW|BATCH)_[A-Z]+' "$page" | sort -u >"$work/found"
same "constants of libloaderd(3)" "$work/wanted" "$work/found"

# ---- environment ---------------------------------------------------------------------------------------------------
documented=$(cat "$root"/man/*.[1-8] | grep '^\.It Ev\|^\.Ev\|^\.Pq.*Ev' | grep -oE '[A-Z][A-Z_]+' | sort -u)
while read -r name; do
    case $name in
    HOME | PATH | XDG_CACHE_HOME) ;; # everybody's
    LOADERD_TEST_*) ;;               # fault points of the tests
    *) grep -qx "$name" <<<"$documented" || fail "environment variable $name is in no man page" ;;
    esac
done < <(grep -rhoE 'getenv\("[A-Z_]+"\)' "$root/src" "$root/client" --include='*.c' | grep -oE '[A-Z_]{3,}' | sort -u)

# ---- metrics --------------------------------------------------------------------------------------------------------
grep -oE '"loaderd_[a-z_]+"' "$root/src/metrics.c" | tr -d '"' | sort -u >"$work/wanted"
sed -n '/^\.Sh METRICS/,/^\.Sh ENVIRONMENT/s/^\.It Cm \(loaderd_[a-z_]*\)$/\1/p' "$root/man/loaderd.8" | sort >"$work/found"
same "metrics in loaderd(8)" "$work/wanted" "$work/found"

# ---- the ring: the compiler checks the page's numbers --------------------------------------------------------------
header=$root/include/loaderd/abi/ring.h
page=$root/man/loaderd-ring.7
grep -E '^loaderd_(ring_header|ring_field|slot_header|row|control) [a-z_]+ +[0-9]+ +[0-9]+$' "$page" >"$work/layout"
if command -v "${CC:-cc}" >/dev/null; then
    {
        echo '#include <loaderd/abi/ring.h>'
        while read -r type member offset size; do
            echo "static_assert(offsetof(struct $type, $member) == $offset, \"$type.$member offset\");"
            echo "static_assert(sizeof ((struct $type *)0)->$member == $size, \"$type.$member size\");"
        done <"$work/layout"
    } >"$work/layout.c"
    # shellcheck disable=SC2086 # CC may have arguments
    ${CC:-cc} -std=gnu11 -fsyntax-only -I"$root/include" "$work/layout.c" || fail "loaderd-ring(7) has wrong numbers"
else
    echo "no C compiler: the layout in loaderd-ring(7) was not compiled" >&2
fi
members() { # of the structs in a header, comments and reserved words left out
    sed -e 's|/\*.*\*/||' -e '/\/\*/,/\*\//d' "$1" | awk '/^struct [a-z_]+ \{/ { type = $2 } /^}/ { type = "" }
        type && /;/ { sub(/^ *(struct )?[A-Za-z0-9_]+ ([a-z0-9_]+_t )?/, ""); gsub(/\[[^]]*\]|[;*]/, "");
                      n = split($0, names, /, */); for (i = 1; i <= n; i++) print type, names[i] }' | grep -v ' reserved'
}
{ members "$header" && members "$root/include/loaderd/loaderd.h" | grep '^loaderd_row '; } | tr -s ' ' | sed 's/ $//' | sort >"$work/wanted"
awk '{ print $1, $2 }' "$work/layout" | sort >"$work/found"
same "layout in loaderd-ring(7)" "$work/wanted" "$work/found"

# ---- packs: likewise ------------------------------------------------------------------------------------------------
page=$root/man/loaderd-pack.5
grep -E '^pack_(header|field|picture) [a-z_]+ +[0-9]+ +[0-9]+$' "$page" >"$work/layout"
if command -v "${CC:-cc}" >/dev/null; then
    {
        echo '#include "dataset/packfile.h"'
        while read -r type member offset size; do
            echo "static_assert(offsetof(struct $type, $member) == $offset, \"$type.$member offset\");"
            echo "static_assert(sizeof ((struct $type *)0)->$member == $size, \"$type.$member size\");"
        done <"$work/layout"
    } | sed '1a #include <assert.h>' >"$work/layout.c"
    # shellcheck disable=SC2086 # CC may have arguments
    ${CC:-cc} -std=gnu11 -fsyntax-only -I"$root/include" -I"$root/src" "$work/layout.c" || fail "loaderd-pack(5) has wrong numbers"
fi
members "$root/src/dataset/packfile.h" | grep -E '^pack_(header|field|picture) ' | tr -s ' ' | sed 's/ $//' | sort >"$work/wanted"
awk '{ print $1, $2 }' "$work/layout" | sort >"$work/found"
same "layout in loaderd-pack(5)" "$work/wanted" "$work/found"

# ---- files named in docs/ ------------------------------------------------------------------------------------------
for page in "$root"/docs/*.md; do
    [ -e "$page" ] || continue
    # shellcheck disable=SC2016 # the backticks are those of the text
    while read -r file; do
        [ -e "$root/$file" ] || fail "${page#"$root"/} names $file, which does not exist"
    done < <(grep -oE '`(src|client|tools|include|tests|docs|man)/[A-Za-z0-9_./-]*[a-z0-9]`' "$page" | tr -d '`' | sort -u)
done

# ---- form ----------------------------------------------------------------------------------------------------------
if command -v mandoc >/dev/null; then
    mandoc -T lint -W style "$root"/man/*.[1-8] 2>/dev/null | grep -v 'referenced manual not found' >"$work/lint" || true
    [ ! -s "$work/lint" ] || fail "mandoc: $(cat "$work/lint")"
else
    echo "no mandoc here: the form of the man pages was not checked" >&2
fi

[ $failures -eq 0 ] || exit 1
echo "documentation: all checks passed"
