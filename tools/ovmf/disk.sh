#!/bin/sh
# disk.sh IMAGE linux|linuxefi KERNEL INITRD "KERNEL COMMAND LINE"    shim, GRUB, a kernel
# disk.sh IMAGE uki FILE                                              one signed EFI program
# With Secure Boot off, Debian's GRUB needs linuxefi: its own loader leaves no event log for the kernel.
set -eu
img=$1
rm -f "$img"
truncate -s 96M "$img"
/sbin/sfdisk -q "$img" <<S
label: gpt
label-id: 6E6F6465-0000-4000-8000-000000000001
start=2048, size=192512, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, uuid=6E6F6465-0000-4000-8000-000000000002, name="ESP"
S
o="-i $img@@1M"
# shellcheck disable=SC2086 -- options of mtools
{
  mformat $o -F -T 192512 -h 255 -s 63 -N 6e6f6465 ::
  mmd $o ::/EFI ::/EFI/BOOT ::/EFI/debian
  if [ "$2" = uki ]; then
    mcopy $o "$3" ::/EFI/BOOT/BOOTX64.EFI
    exit
  fi
  case $2 in linux) i=initrd ;; linuxefi) i=initrdefi ;; *) exit 2 ;; esac
  mcopy $o root/shim-signed/usr/lib/shim/shimx64.efi.signed ::/EFI/BOOT/BOOTX64.EFI
  mcopy $o root/grub-efi-amd64-signed/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed ::/EFI/BOOT/grubx64.efi
  printf 'set timeout=0\nmenuentry node {\n  %s /vmlinuz %s\n  %s /initrd.img\n}\n' "$2" "$5" $i > build/grub.cfg
  mcopy $o build/grub.cfg ::/EFI/debian/grub.cfg
  mcopy $o "$3" ::/vmlinuz
  mcopy $o "$4" ::/initrd.img
}
