#!/bin/sh
# uki.sh OUTPUT STUB KERNEL INITRD "KERNEL COMMAND LINE"
# A unified kernel image: one EFI program that is kernel, initrd and command line, so that the firmware measures all of
# it, and a signature for Secure Boot covers all of it. The same bytes each time. Needs objcopy.
set -eu
out=$1 stub=$2 kernel=$3 initrd=$4 line=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'ID=itl-kiosk\nNAME="ITL kiosk"\nVERSION_ID=%s\n' "$(sha256sum "$initrd" | cut -c1-12)" > "$work/osrel"
printf %s "$line" > "$work/cmdline"

# What is added begins behind the stub's last section, each at a multiple of the alignment that the stub states.
align=$(objdump -p "$stub" | awk '$1 == "SectionAlignment" {print $2}')
align=$((0x$align))
next=$(objdump -h "$stub" | awk '$1 ~ /^[0-9]+$/ {size = $3; at = $4} END {print size, at}')
next=$((0x${next#* } + 0x${next% *}))
set --
for section in osrel cmdline linux initrd; do
  case $section in linux) file=$kernel ;; initrd) file=$initrd ;; *) file=$work/$section ;; esac
  next=$(((next + align - 1) / align * align))
  set -- "$@" --add-section ".$section=$file" --change-section-vma ".$section=$(printf 0x%x "$next")"
  next=$((next + $(stat -Lc %s "$file")))
done
objcopy "$@" "$stub" "$work/uki"

# objcopy writes the time of day into the PE header, where it would be measured, and a checksum over it, which firmware
# does not read: four bytes each, at 8 and 88.
header=$(od -An -tu4 -j60 -N4 "$work/uki")
for at in 8 88; do
  printf '\000\000\000\000' | dd of="$work/uki" bs=1 seek=$((header + at)) conv=notrunc status=none
done
mv "$work/uki" "$out"
