#!/bin/sh
# boot.sh MACHINE BOOT CODE VARIABLES IMAGE NONCE-HEX: boot once, evidence in build/MACHINE/BOOT/out.
# CODE: name below /usr/share/OVMF without .fd. VARIABLES: a file; copied at the machine's first boot with that
# name, kept from then on, as firmware variables belong to the machine.
# Environment: BANKS, TPM=tpm-tis|tpm-crb, ACCEL=tcg|kvm, LIMIT_SECONDS.
set -eu
N=$PWD/build/$1 W=$PWD/build/$1/$2 ca=$PWD/build/ca code=$3 vars=$PWD/build/$1/$(basename "$4")
rm -rf "$W"
mkdir -p "$N/tpm" "$W/out" "$ca"
if [ ! -s "$N/tpm/tpm2-00.permall" ]; then
  cat > "$N/setup.conf" <<S
create_certs_tool = swtpm_localca
create_certs_tool_config = $N/localca.conf
create_certs_tool_options = /etc/swtpm-localca.options
S
  cat > "$N/localca.conf" <<S
statedir = $ca
signingkey = $ca/signkey.pem
issuercert = $ca/issuercert.pem
certserial = $ca/certserial
S
  swtpm_setup --tpm2 --tpmstate "$N/tpm" --create-ek-cert --config "$N/setup.conf" \
    --pcr-banks "${BANKS:-sha1,sha256,sha384}" --lock-nvram --vmid "$1" > "$N/setup.log"
fi
[ -f "$vars" ] || cp "$4" "$vars"
swtpm socket --tpm2 --tpmstate "dir=$N/tpm" --ctrl "type=unixio,path=$W/tpm.sock" --flags startup-clear \
  > "$W/swtpm.log" 2>&1 &
tpm=$!
trap 'kill $tpm 2>/dev/null || true' EXIT
while [ ! -S "$W/tpm.sock" ]; do sleep .1; done
smm=on
[ "$code" = OVMF_CODE_4M ] && smm=off # the Secure Boot builds need SMM
began=$(date +%s.%N)
ended=0
timeout "${LIMIT_SECONDS:-400}" nice qemu-system-x86_64 -accel "${ACCEL:-tcg}" -cpu max -m 512 -machine q35,smm=$smm \
  -display none -nodefaults -no-reboot -global driver=cfi.pflash01,property=secure,value=$smm \
  -drive "if=pflash,format=raw,unit=0,file=/usr/share/OVMF/$code.fd,readonly=on" \
  -drive "if=pflash,format=raw,unit=1,file=$vars" \
  -chardev "socket,id=ct,path=$W/tpm.sock" -tpmdev emulator,id=t0,chardev=ct -device "${TPM:-tpm-tis},tpmdev=t0" \
  -drive "if=none,id=d0,format=raw,file=$5,readonly=on" -device virtio-blk-pci,drive=d0,bootindex=1 \
  -fw_cfg "name=opt/nonce,string=$6" \
  -serial "file:$W/console.log" -serial "file:$W/serial2.log" -monitor none > "$W/qemu.log" 2>&1 || ended=$?
seconds=$(echo "$(date +%s.%N) $began" | awk '{printf "%.1f", $1 - $2}')
echo "$1/$2: qemu ended with $ended after $seconds s"
echo "$seconds" > "$W/seconds.txt"
tr -d '\r' < "$W/serial2.log" | sed -n '/^=====EVIDENCE=====$/,/^=====END=====$/p' | grep -v ===== | base64 -d |
  tar xz -C "$W/out"
