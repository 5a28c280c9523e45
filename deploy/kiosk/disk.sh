#!/bin/sh
# disk.sh OUTPUT MEBIBYTES UKI NAME [FILE=PATH-ON-IT]…
# A disk with one partition, from which UEFI starts: GPT, FAT32 with the label NAME, the UKI at EFI/BOOT/BOOTX64.EFI and
# what else is named. The same bytes each time. Needs sfdisk and mtools; no rights, nothing is mounted.
set -eu
out=$1 size=$2 uki=$3 name=$4
shift 4
PATH=$PATH:/usr/sbin:/sbin
# Ids from the name: two media of one recipe are told apart by what boots from them, not by these.
id=$(printf %s "$name" | sha256sum | cut -c1-12)
sectors=$(((size - 2) * 2048))
rm -f "$out"
truncate -s "${size}M" "$out"
sfdisk -q "$out" << S
label: gpt
label-id: 6E6F6465-0000-4000-8000-$id
start=2048, size=$sectors, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, uuid=6E6F6465-0001-4000-8000-$id, name="$name"
S
MTOOLS_SKIP_CHECK=1 SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1700000000}
export MTOOLS_SKIP_CHECK SOURCE_DATE_EPOCH
mformat -i "$out@@1M" -F -T "$sectors" -h 255 -s 63 -H 2048 -v "$name" -N "$(printf %.8s "$id")" ::
mmd -i "$out@@1M" ::/EFI ::/EFI/BOOT ::/EFI/itl
mcopy -i "$out@@1M" "$uki" ::/EFI/BOOT/BOOTX64.EFI
for pair in "$@"; do mcopy -i "$out@@1M" "${pair%%=*}" "::/${pair#*=}"; done
