#!/usr/bin/env bash
# root.sh FOLDER: make a root of Debian that of the kiosk, as a hook of mmdebstrap. Called by build.sh, which says where
# parts are kept (`work`), where the recipe is (`here`) and which Python the suite has (`PYTHON`).
set -euo pipefail

# The kernel's files and the stub are unpacked rather than installed: scripts of those packages make initrds.
root=$1 site=$1/opt/itl-attestation/lib/python$PYTHON/site-packages
export APT_CONFIG=$MMDEBSTRAP_APT_CONFIG
packages=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1)
mkdir -p "$work/debs" && rm -rf "$work/debs/"* "$work/kernel"
(cd "$work/debs" && apt-get download -qq -o APT::Sandbox::User=root "$packages" systemd-boot-efi)
for package in "$work"/debs/*.deb; do dpkg-deb -x "$package" "$work/kernel"; done
version=$(find "$work/kernel/boot" -name 'vmlinuz-*' -printf '%f\n' | sed 's/^vmlinuz-//')
cp "$work/kernel/boot/vmlinuz-$version" "$work/vmlinuz"
cp "$work/kernel/usr/lib/systemd/boot/efi/linuxx64.efi.stub" "$work/linuxx64.efi.stub"

# Uncompressed: the file system compresses them, and so it needs no patience of a processor that is emulated.
modules=$root/usr/lib/modules
mkdir -p "$modules"
cp -a "$work/kernel"/*/lib/modules/"$version" "$modules/" 2>/dev/null || cp -a "$work/kernel/lib/modules/$version" "$modules/"
grep -v '^#' "$here/modules-left-out" | while read -r name; do rm -rf "${modules:?}/$version/kernel/$name"; done
find "$modules/$version/kernel/lib" -name 'test_*.ko*' -delete
find "$modules" -name '*.ko.xz' -exec xz -d -T0 {} +
chroot "$root" depmod "$version"

# What the initrd loads, in this order: each after those that it needs.
rm -rf "$work/initrd.d" && mkdir -p "$work/initrd.d/"{bin,dev,proc,sys,modules}
chroot "$root" modprobe --set-version "$version" --show-depends --all loop squashfs overlay |
  sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r module; do
  cp "$root$module" "$work/initrd.d/modules/"
  basename "$module"
done >"$work/initrd.d/modules/order"
cp "$root/usr/bin/busybox" "$work/initrd.d/bin/"
for name in sh cat echo insmod mkdir mount switch_root umount; do ln -s busybox "$work/initrd.d/bin/$name"; done
install -m 0755 "$here/init" "$work/initrd.d/init"

# The program, compiled once: what is written later is lost with the power.
chroot "$root" python3 -m venv --without-pip /opt/itl-attestation
cp -r "$work/locked/." "$work/agent/." "$site/"
rm -rf "$site/bin" "$site/share"
sed '1s|.*|#!/opt/itl-attestation/bin/python3|' "$work/agent/bin/attestation-kiosk" >"$root/opt/itl-attestation/bin/attestation-kiosk"
chmod 0755 "$root/opt/itl-attestation/bin/attestation-kiosk"
for tree in "/usr/lib/python$PYTHON" /opt/itl-attestation/lib; do
  chroot "$root" python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash "$tree" >/dev/null || true
done

cp -r "$here/overlay/." "$root/"
# Nothing of the computer that builds it.
rm -f "$root/etc/hostname" "$root/etc/hosts" "$site"/*.dist-info/direct_url.json
echo itl-kiosk >"$root/etc/hostname"
printf '127.0.0.1 localhost itl-kiosk\n::1 localhost\n' >"$root/etc/hosts"
ln -sf /run/systemd/resolve/resolv.conf "$root/etc/resolv.conf"
: >"$root/etc/machine-id"
# Nobody logs in here, over no line: the consoles are the program's. And nothing becomes somebody else.
find "$root" -xdev -type f -perm /6000 -exec chmod a-s {} +
chroot "$root" systemctl --quiet enable systemd-networkd systemd-resolved systemd-timesyncd itl-medium attestation-kiosk
chroot "$root" systemctl --quiet mask getty@.service serial-getty@.service console-getty.service \
  apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
# Nothing here writes into the TPM of a machine, or extends its PCRs beyond what was booted, but the program.
chroot "$root" systemctl --quiet mask systemd-tpm2-setup.service systemd-tpm2-setup-early.service \
  systemd-pcrmachine.service systemd-pcrphase.service systemd-pcrphase-sysinit.service systemd-pcrextend.socket systemd-pcrlock.socket
# What only takes time here.
chroot "$root" systemctl --quiet mask systemd-binfmt.service proc-sys-fs-binfmt_misc.automount sys-kernel-debug.mount \
  sys-kernel-tracing.mount dev-hugepages.mount dev-mqueue.mount systemd-journal-flush.service systemd-update-utmp.service \
  systemd-update-utmp-runlevel.service systemd-random-seed.service systemd-machine-id-commit.service ldconfig.service
chroot "$root" systemctl --quiet set-default multi-user.target
rm -rf "$root"/usr/lib/udev/hwdb.d "$root"/usr/lib/python3*/test "$root"/var/lib/apt/lists/* "$root"/var/cache/* "$root"/var/log/* "$root/etc/ssh"
