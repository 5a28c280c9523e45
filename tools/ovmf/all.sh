#!/bin/sh
# all.sh: every boot of tests/vectors/eventlog/ovmf, one after the other, in the current (empty) folder.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
share=/usr/share/OVMF
hex() { printf %s "$1" | od -An -tx1 | tr -d ' \n'; }
run() { sh "$here/boot.sh" "$1" "$2" "$3" "$4" "$5" "$(hex "challenge of $1 $2")"; }
C="console=ttyS0,115200"
[ -d root ] || sh "$here/fetch.sh"
sh "$here/initrd.sh" build/initrd.img
kernel=$(ls root/kernel/boot/vmlinuz-*) other=$(ls root/other-kernel/boot/vmlinuz-*)

# n1: shim, GRUB and a kernel of Debian; Microsoft's keys in the firmware; three PCR banks.
sh "$here/disk.sh" build/off.img linuxefi "$kernel" build/initrd.img "$C"
run n1 sb-off OVMF_CODE_4M $share/OVMF_VARS_4M.fd build/off.img
ms="OVMF_CODE_4M.ms $share/OVMF_VARS_4M.ms.fd"
sh "$here/disk.sh" build/on.img linux "$kernel" build/initrd.img "$C"
# shellcheck disable=SC2086 -- two arguments
{
  run n1 sb-on $ms build/on.img
  run n1 sb-on-again $ms build/on.img
  sh "$here/disk.sh" build/kernel.img linux "$other" build/initrd.img "$C"
  run n1 sb-on-kernel $ms build/kernel.img
  sh "$here/disk.sh" build/cmdline.img linux "$kernel" build/initrd.img "$C init=/bin/sh init=/init"
  run n1 sb-on-cmdline $ms build/cmdline.img
  { cat build/initrd.img; printf 'changed' | gzip -9n; } > build/initrd2.img
  sh "$here/disk.sh" build/initrd-image.img linux "$kernel" build/initrd2.img "$C"
  run n1 sb-on-initrd $ms build/initrd-image.img
  sh "$here/disk.sh" build/ima.img linux "$kernel" build/initrd.img "$C rootfstype=ramfs ima_policy=tcb"
  run n1 sb-on-ima $ms build/ima.img
}
# The same variables with three more hashes in dbx.
revoke=""
for what in one two three; do revoke="$revoke --dbx $(printf 'revoked %s' $what | sha256sum | cut -d' ' -f1)"; done
# shellcheck disable=SC2086
python3 "$here/variables.py" build/n1/OVMF_VARS_4M.ms.fd build/dbx.fd $revoke
run n1 sb-on-dbx OVMF_CODE_4M.ms build/dbx.fd build/on.img

# The kernel signed by its owner, with a key enrolled as the machine owner's (MOK) instead of Debian's.
[ -s build/mok.pem ] || openssl req -x509 -newkey rsa:2048 -nodes -keyout build/mok.key -out build/mok.pem -days 3650 \
  -subj "/CN=Machine owner of the test machines" 2> build/openssl.log
cp "$kernel" build/mok-kernel
sbattach --remove build/mok-kernel 2> build/sbattach.log
sbsign --key build/mok.key --cert build/mok.pem --output build/mok-kernel.signed build/mok-kernel 2> build/sbsign.log
python3 "$here/variables.py" build/n1/OVMF_VARS_4M.ms.fd build/mok.fd --MokList build/mok.pem
sh "$here/disk.sh" build/mok.img linux build/mok-kernel.signed build/initrd.img "$C"
run n1 sb-on-mok OVMF_CODE_4M.ms build/mok.fd build/mok.img

# n2: a unified kernel image signed with a key of our own, whose certificate alone the firmware trusts; one bank.
[ -s build/own.pem ] || openssl req -x509 -newkey rsa:2048 -nodes -keyout build/own.key -out build/own.pem -days 3650 \
  -subj "/CN=Secure Boot key of the test machines" 2> build/openssl.log
python3 "$here/variables.py" $share/OVMF_VARS_4M.snakeoil.fd build/own.fd --PK build/own.pem --KEK build/own.pem --db build/own.pem
export BANKS=sha256 TPM=tpm-crb
for boot in uki uki-kernel; do
  [ $boot = uki ] && linux=$kernel || linux=$other
  sh "$here/uki.sh" build/$boot.efi "$linux" build/initrd.img "$C" build/own.key build/own.pem
  sh "$here/disk.sh" build/$boot.img uki build/$boot.efi
  run n2 $boot OVMF_CODE_4M.secboot build/own.fd build/$boot.img
done
