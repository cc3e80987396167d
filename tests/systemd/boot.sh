#!/bin/bash
# Becomes a systemd of its own inside fresh namespaces: a copy-on-write view of this machine's files, nothing of whose
# changes stays, no network but loopback, and read-only kernel settings.
# boot.sh WORK SITE_PACKAGES CHECKOUT: WORK is an empty folder; the others appear below /opt, where units find them.
set -eu
work=$1 packages=$2 checkout=$3

mount --make-rprivate /
mount -t tmpfs tmpfs "$work"
root=$work/root
mkdir "$work/changes" "$work/scratch" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/changes,workdir=$work/scratch" "$root"

mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"

# The programs of the checkout in a place where ProtectHome= does not hide them.
mkdir -p "$root/opt/packages" "$root/opt/checkout"
mount --bind "$packages" "$root/opt/packages"
mount --bind "$checkout" "$root/opt/checkout"
# Only the units under test and what they stand on.
rm -rf "${root:?}"/etc/systemd/system/* "${root:?}"/etc/fkd
for unit in dev-hugepages.mount proc-sys-fs-binfmt_misc.automount sys-fs-fuse-connections.mount sys-kernel-config.mount \
  sys-kernel-debug.mount sys-kernel-tracing.mount systemd-binfmt.service systemd-journal-flush.service \
  systemd-journald-audit.socket systemd-modules-load.service systemd-remount-fs.service systemd-sysusers.service \
  systemd-tmpfiles-setup-dev.service systemd-tmpfiles-setup.service systemd-update-utmp.service; do
  ln -s /dev/null "$root/etc/systemd/system/$unit"
done
mkdir -p "$root/etc/systemd/journald.conf.d"
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\n' > "$root/etc/systemd/journald.conf.d/box.conf"
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\n' > "$root/etc/systemd/system/box.target"

cd "$root"
mkdir -p run/before
pivot_root . run/before
umount -l /run/before
# Credentials reach a service through a mount that has to spread.
mount --make-rshared /
cd /
exec env -i container=fkd-test "PATH=$PATH" /lib/systemd/systemd --system --unit=box.target --show-status=no
