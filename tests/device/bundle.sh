#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes out/device: programs, libraries with what they need beside them (found by $ORIGIN), the Python package, the device
# scripts and some pictures: a folder that can be carried to a machine that has a GPU, and none of our libraries.
#
#   tests/device/bundle.sh [PICTURES [MIB]]     a folder of JPEGs, and how much of it to take (24)
#
# The build is in out/device-build. There: bash out/device/tests/device/all.sh
set -euo pipefail
unset CDPATH MAKEFLAGS MFLAGS MAKELEVEL
root=$(cd "$(dirname "$0")/../.." && pwd)
pictures=${1:-} mib=${2:-24}
build=$root/out/device-build
out=$root/out/device
mkdir -p "$build"
[ -x "$root/configure" ] || (cd "$root" && ./bootstrap)
cd "$build"
# An old-style RPATH counts for the libraries' own needs, too.
# shellcheck disable=SC2016 # one $ for make, the other for the dynamic linker
[ -f Makefile ] || "$root/configure" -q --enable-silent-rules ${CUDA_HOME:+--with-cuda="$CUDA_HOME"} \
    LDFLAGS='-Wl,--disable-new-dtags,-rpath,\$$ORIGIN/../lib'
make -s -j"$(nproc)"
make -s -j"$(nproc)" tests/check_cuda tests/check_cuda_device tests/system/restart

rm -rf "$out"
mkdir -p "$out"/{bin,lib,tools,tests,python}
# place DIRECTORY PROGRAM...: the program itself, not libtool's script.
place() {
    local to=$out/$1 program
    shift
    for program; do
        if [ -f "${program%/*}/.libs/${program##*/}" ]; then
            cp "${program%/*}/.libs/${program##*/}" "$to/"
        else
            cp "$program" "$to/"
        fi
        strip "$to/${program##*/}"
    done
}
place bin ./loaderd ./loaderctl client/examples/pop client/examples/softmax client/examples/cuda_trainer
place tests tests/check_cuda tests/check_cuda_device
place tools tools/demo-data
cp -L .libs/libloaderd.so.0 .libs/libloaderd-cuda.so.0 "$out/lib/"
strip --strip-unneeded "$out"/lib/*.so.0
ln -s libloaderd.so.0 "$out/lib/libloaderd.so"
ldd "$out"/bin/* "$out"/tests/check_cuda* "$out/tools/demo-data" | awk '/=> \// { print $3 }' | sort -u | while read -r library; do
    case ${library##*/} in
    libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libgcc_s.so* | libstdc++.so* | libloaderd*) ;;
    *) cp -L "$library" "$out/lib/" ;;
    esac
done
[ ! -d "$root/client/python" ] || cp -r "$root/client/python/." "$out/python/"
cp -r "$root/tests/device" "$out/tests/device"
[ ! -d "$root/tests/python" ] || cp -r "$root/tests/python" "$out/tests/python"
find "$out" -name __pycache__ -prune -exec rm -rf {} +

if [ -n "$pictures" ]; then
    # Evenly spread over the folder, up to so many MiB, in ten classes.
    find "$pictures" -type f \( -iname '*.jpg' -o -iname '*.jpeg' \) -printf '%s %p\n' | sort -k 2 |
        awk -v most=$((mib << 20)) '{ size[NR] = $1; path[NR] = substr($0, index($0, " ") + 1); total += $1 }
            END { step = total > most ? total / most : 1
                  for (at = 1; int(at) <= NR; at += step) print int(at) % 10, path[int(at)] }' |
        while read -r class path; do
            mkdir -p "$out/pictures/class$class"
            cp "$path" "$out/pictures/class$class/"
        done
fi
find "$out" -type l -prune -o -type f -print0 | xargs -0 du -cb | tail -n 1 | awk '{ printf "out/device: %.1f MiB\n", $1 / 1048576 }'
