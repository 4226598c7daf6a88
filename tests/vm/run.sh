#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# make check-vm: installs the packages on a bare Debian 12 in a virtual machine (its own kernel, systemd as init, two NUMA
# nodes, no network) and runs guest.sh there.
#
#   tests/vm/run.sh PACKAGES [GUEST-TEST...]
#
# Needs root (debootstrap), debootstrap, qemu-system-x86, mkfs.ext4, a mirror of Debian; exit status 77 says what is missing.
# VM_CACHE (PACKAGES/../vm) keeps the installed system between runs; the console is in VM_CACHE/console. DEMO_DATA is the
# program tools/demo-data; VM_SECONDS (3600) is the machine's time.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
packages=$(cd "$1" && pwd)
shift
cache=${VM_CACHE:-$packages/../vm}
demo_data=${DEMO_DATA:-$packages/../../tools/demo-data}
mirror=${VM_MIRROR:-http://deb.debian.org/debian}
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
exec </dev/null

skip() {
    echo "check-vm: skipped: $*" >&2
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "it needs root: a Debian is installed into a folder"
for tool in debootstrap qemu-system-x86_64 mkfs.ext4 dpkg-deb python3; do
    command -v $tool >/dev/null || skip "no $tool here (apt install debootstrap qemu-system-x86 e2fsprogs python3)"
done

# ---- the system: once -------------------------------------------------------------------------------------------------
# numpy is in it, since an emulated machine takes long to install it.
base=$cache/base
include=systemd-sysv,dbus,libpam-systemd,linux-image-cloud-amd64,python3-numpy
if [ "$(cat "$base.complete" 2>/dev/null)" != $include ]; then
    rm -rf "$base" "$base.complete"
    debootstrap --variant=minbase --include=$include \
        bookworm "$base" "$mirror" >"$cache/debootstrap.log" 2>&1 || { tail "$cache/debootstrap.log" && exit 1; }
    echo $include >"$base.complete"
fi

# ---- this run's copy ----------------------------------------------------------------------------------------------------
root=$cache/root
rm -rf "$root"
cp -a "$base" "$root"
mkdir -p "$root/srv/vm/packages" "$root/srv/data"
cp "$packages"/*.deb "$root/srv/vm/packages/"
rm -f "$root"/srv/vm/packages/*-dbgsym_*.deb
# What the packages depend on lies in apt's own cache, as if it had been downloaded: the guest has no network.
cp "$root"/srv/vm/packages/*.deb "$root/tmp/"
chroot "$root" apt-get -q -y update >"$cache/apt.log" 2>&1
chroot "$root" sh -c 'apt-get -q -y install --no-install-recommends --download-only /tmp/loaderd_*.deb /tmp/libloaderd0_*.deb \
    /tmp/python3-loaderd_*.deb' >>"$cache/apt.log" 2>&1 || { tail "$cache/apt.log" && exit 1; }
rm -f "$root"/tmp/*.deb
# The next version, for the upgrade: the same files under a higher number.
next=$cache/next
rm -rf "$next" "$root/srv/vm/next"
mkdir -p "$root/srv/vm/next"
for deb in "$root"/srv/vm/packages/{loaderd,libloaderd0}_*.deb; do
    dpkg-deb -R "$deb" "$next"
    sed -i 's/^Version: .*/&+vm1/' "$next/DEBIAN/control"
    dpkg-deb --root-owner-group -b "$next" "$root/srv/vm/next/" >/dev/null
    rm -rf "$next"
done
cp "$here/guest.sh" "$root/srv/vm/"
printf '%s\n' "$@" >"$root/srv/vm/only"
rm -rf "$cache/sdk"
for deb in "$packages"/lib{loaderd-dev,loaderd0}_*.deb; do
    dpkg-deb -x "$deb" "$cache/sdk"
done
build() { # PROGRAM SOURCE: with what libloaderd-dev has
    "${CC:-cc}" -std=gnu11 -O2 -o "$1" "$2" -I"$cache/sdk/usr/include" \
        -L"$(dirname "$(find "$cache/sdk" -name libloaderd.so)")" -lloaderd
}
build "$root/srv/vm/trainer" "$here/trainer.c"
build "$root/srv/vm/pop" "$cache/sdk/usr/share/doc/libloaderd-dev/examples/pop.c"
"$demo_data" --train 60 --validation 1 "$root/srv/data/pictures" >/dev/null
python3 - "$root/srv/data/records" <<'END'
import sys
with open(sys.argv[1], "wb") as f:
    for n in range(4096):
        f.write(n.to_bytes(4, "little") + bytes((n + 7 * i) % 251 for i in range(16380)))
END
cat >"$root/etc/systemd/system/vm-test.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /srv/vm/guest.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
SuccessAction=poweroff-force
FailureAction=poweroff-force
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -sf ../vm-test.service "$root/etc/systemd/system/multi-user.target.wants/"
ln -sf /dev/null "$root/etc/systemd/system/serial-getty@ttyS0.service"
ln -sf /dev/null "$root/etc/systemd/system/apt-daily.timer"
ln -sf /dev/null "$root/etc/systemd/system/apt-daily-upgrade.timer"
echo "/dev/vda / ext4 defaults 0 1" >"$root/etc/fstab"
echo vm >"$root/etc/hostname"
cp "$root"/boot/vmlinuz-* "$cache/kernel"
cp "$root"/boot/initrd.img-* "$cache/initrd"
rm -f "$cache/disk"
mkfs.ext4 -q -d "$root" "$cache/disk" 3G
rm -rf "$root"

# ---- the machine --------------------------------------------------------------------------------------------------------
start=$SECONDS
: >"$cache/console"
timeout "${VM_SECONDS:-3600}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 4 -m 2G \
    -object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G \
    -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 \
    -kernel "$cache/kernel" -initrd "$cache/initrd" -append "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0" \
    -drive "file=$cache/disk,format=raw,if=virtio,cache=unsafe" -nic none -display none -no-reboot -monitor none \
    -serial "file:$cache/console" || echo "the machine did not end within its time"
tr -d '\r' <"$cache/console" | sed -n 's/^.*VM: //p' >"$cache/result"
cat "$cache/result"
echo "check-vm: $((SECONDS - start)) s in the machine"
grep -q '^end: 0 failed' "$cache/result" || {
    echo "check-vm: failed; the console is $cache/console" >&2
    exit 1
}
