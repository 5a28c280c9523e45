#!/bin/sh
# uki.sh OUTPUT KERNEL INITRD "KERNEL COMMAND LINE" KEY CERTIFICATE: a unified kernel image, signed.
set -eu
printf 'ID=rig\nVERSION_ID=1\n' > build/os-release
printf %s "$4" > build/cmdline
objcopy --add-section .osrel=build/os-release --change-section-vma .osrel=0x20000 \
  --add-section .cmdline=build/cmdline --change-section-vma .cmdline=0x30000 \
  --add-section .linux="$2" --change-section-vma .linux=0x2000000 \
  --add-section .initrd="$3" --change-section-vma .initrd=0x4000000 \
  /usr/lib/systemd/boot/efi/linuxx64.efi.stub "$1.unsigned"
# The time stamp of the PE header is part of the measured hash.
printf '\000\000\000\000' | dd of="$1.unsigned" bs=1 seek=136 conv=notrunc status=none
sbsign --key "$5" --cert "$6" --output "$1" "$1.unsigned" 2> build/sbsign.log
rm "$1.unsigned"
