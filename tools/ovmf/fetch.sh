#!/bin/sh
# fetch.sh [KERNEL [OTHER-KERNEL]]: download the boot chain and unpack it below ./root; nothing is installed.
# Default kernels: the newest cloud kernel of this Debian and the one before it.
set -eu
kernels=${*:-$(apt-cache search --names-only '^linux-image-6\.1\.0-[0-9]+-cloud-amd64$' | cut -d' ' -f1 | sort -V | tail -2 | sort -rV)}
mkdir -p debs root build
# shellcheck disable=SC2086 -- a list of packages
(cd debs && apt-get download -q $kernels shim-signed grub-efi-amd64-signed)
for deb in debs/*.deb; do
  package=$(dpkg-deb -f "$deb" Package)
  mkdir -p "root/$package"
  dpkg-deb -x "$deb" "root/$package"
done
# shellcheck disable=SC2086
set -- $kernels
ln -sfn "$1" root/kernel
ln -sfn "${2:-$1}" root/other-kernel
for package in $kernels shim-signed grub-efi-amd64-signed; do
  echo "$package $(dpkg-deb -f "debs/$package"_*.deb Version)"
done > build/versions.txt
for package in ovmf qemu-system-x86 swtpm libtpms0 tpm2-tools busybox-static systemd-boot-efi sbsigntool; do
  dpkg-query -W -f '${Package} ${Version}\n' $package >> build/versions.txt
done
