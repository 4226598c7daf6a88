#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# make relocatable: a tarball that runs from wherever it is unpacked, without root and without packages. It carries the
# libraries that the programs need but those of the C library, so it needs the C library of this machine or a newer one.
#
#   packaging/relocatable.sh BUILD OUTPUT
#
# In the tarball: bin/loaderctl, sbin/loaderd, lib/libloaderd*.so*, lib/loaderd/ (libraries of others), lib/pkgconfig,
# include/, share/. Put bin and sbin in PATH: libloaderd looks there for the daemon that it starts.
set -euo pipefail
build=$1 output=$2
command -v patchelf >/dev/null || {
    echo "make relocatable needs patchelf (apt install patchelf)" >&2
    exit 1
}
version=$(sed -n 's/^PACKAGE_VERSION = //p' "$build/Makefile")
name=loaderd-$version-linux-$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/$name
make -C "$build" -s install DESTDIR="$work/installed" >/dev/null
prefix=$(sed -n 's/^prefix = //p' "$build/Makefile")
mv "$work/installed$prefix" "$root"
rm -rf "${root:?}/etc" "$root"/lib/*.la "$root"/lib/*.a "$root/lib/systemd" "$root/lib/sysusers.d" "$root/lib/tmpfiles.d"
mkdir -p "$root/lib/loaderd"

# Of the C library and the linker: the machine's own.
system='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util))\.so'
for file in "$root/bin/loaderctl" "$root/sbin/loaderd"; do
    while read -r library path; do
        [[ $library =~ $system || $library == libloaderd* ]] || cp -L "$path" "$root/lib/loaderd/$library"
    done < <(ldd "$file" | sed -n 's/^\t\([^ ]*\) => \(\/[^ ]*\) .*/\1 \2/p')
    strip --strip-unneeded "$file"
    patchelf --set-rpath "\$ORIGIN/../lib:\$ORIGIN/../lib/loaderd" "$file"
done
for file in "$root"/lib/loaderd/*.so*; do
    [ ! -e "$file" ] || patchelf --set-rpath "\$ORIGIN" "$file"
done
for file in "$root"/lib/libloaderd*.so; do
    strip --strip-unneeded "$file"
    patchelf --set-rpath "\$ORIGIN" "$file"
done
sed -i "s|^prefix=.*|prefix=\${pcfiledir}/../..|; s|^exec_prefix=.*|exec_prefix=\${prefix}|
    s|^libdir=.*|libdir=\${prefix}/lib|; s|^includedir=.*|includedir=\${prefix}/include|" "$root"/lib/pkgconfig/*.pc
mkdir -p "$output"
tar -C "$work" --owner=0 --group=0 --sort=name -czf "$output/$name.tar.gz" "$name"
echo "$output/$name.tar.gz"
