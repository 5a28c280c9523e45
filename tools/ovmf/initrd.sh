#!/bin/sh
# initrd.sh OUTPUT: busybox, tpm2-tools and init; the same bytes every time (fixed dates, sorted names).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
R=$(mktemp -d)
trap 'rm -rf "$R"' EXIT
mkdir -p "$R/bin" "$R/dev" "$R/proc" "$R/sys" "$R/tmp" "$R/modules"
cp /bin/busybox "$R/bin/"
for a in sh mount cat base64 tar mkdir poweroff sync sleep grep gzip wc echo insmod uname tail cut sha256sum; do
  ln -s busybox "$R/bin/$a"
done
cp /usr/bin/tpm2 "$R/bin/tpm2"
for t in createek createak quote nvread flushcontext evictcontrol readpublic; do ln -s tpm2 "$R/bin/tpm2_$t"; done
tcti=/usr/lib/x86_64-linux-gnu/libtss2-tcti-device.so.0
for f in $tcti $(ldd /usr/bin/tpm2 $tcti | grep -o '/[^ ]*[^: ]' | sort -u); do
  mkdir -p "$R$(dirname "$f")"
  cp -L "$f" "$R$f"
done
# Signed by Debian, so a kernel that is locked down by Secure Boot loads them.
for k in root/kernel root/other-kernel; do
  for m in "$k"/lib/modules/*; do
    mkdir -p "$R/modules/$(basename "$m")"
    find "$m" -name qemu_fw_cfg.ko -o -name efivarfs.ko | xargs cp -t "$R/modules/$(basename "$m")"
  done
done
cp "$here/init" "$R/init"
chmod 755 "$R/init"
find "$R" -exec touch -h -d @1700000000 {} +
(cd "$R" && find . -print0 | LC_ALL=C sort -z | cpio --null --reproducible -R 0:0 -o -H newc --quiet | gzip -9n) > "$1"
