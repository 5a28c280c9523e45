#!/usr/bin/env bash
# The kiosk's medium, from Debian's packages and the agent's wheels: deploy/kiosk/README.md.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: deploy/kiosk/build.sh [--suite SUITE] [--add PACKAGE]… [--component NAME]… [--keep FOLDER] WHEELS OUTPUT

  WHEELS      a folder with the wheels of the SDK and the agent (tools/build.py)
  OUTPUT      the image of the medium, to be copied onto a stick as it is
  --suite     Debian's; default: trixie
  --add       a further package of it, as firmware-bnx2x
  --component of the archive beside main, as non-free-firmware
  --keep      leave the parts there too: uki.efi, vmlinuz, initrd, linuxx64.efi.stub, root.tar

PIP says how pip is called (default: build/venv/bin/pip, else that of /usr/bin/python3), SOURCE_DATE_EPOCH how old all files are
(default: the last commit). KIOSK_KEY and KIOSK_CERTIFICATE, PEM files, sign it for Secure Boot.
TEXT
}

die() {
  printf 'deploy/kiosk/build.sh: %s\n' "$*" >&2
  exit 1
}

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
project=$(cd -- "$here/../.." && pwd -P)
suite=trixie keep='' added=() components=main
while [ $# -gt 0 ]; do
  case $1 in
    --suite) suite=$2 && shift 2 ;;
    --add) added+=("$2") && shift 2 ;;
    --component) components+=,$2 && shift 2 ;;
    --keep) keep=$2 && shift 2 ;;
    --help | -h) usage && exit 0 ;;
    -*) usage >&2 && exit 2 ;;
    *) break ;;
  esac
done
[ $# = 2 ] || { usage >&2 && exit 2; }
wheels=$1 output=$2
export PATH=$PATH:/usr/sbin:/sbin
missing=()
for pair in mmdebstrap:mmdebstrap mksquashfs:squashfs-tools cpio:cpio objcopy:binutils sfdisk:fdisk mcopy:mtools xz:xz-utils; do
  command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
# Not the first python3 of the path: that of ./dev has no pip.
pip=$project/build/venv/bin/pip
[ -x "$pip" ] || pip='/usr/bin/python3 -m pip'
: "${PIP:=$pip}"
# shellcheck disable=SC2086 # words on purpose
$PIP --version >/dev/null 2>&1 || missing+=(python3-pip)
[ -z "${KIOSK_KEY:-}" ] || command -v sbsign >/dev/null || missing+=(sbsigntool)
[ ${#missing[@]} = 0 ] || die "missing: apt-get install --no-install-recommends ${missing[*]}"
: "${SOURCE_DATE_EPOCH:=$(git -C "$project" log -1 --format=%ct 2>/dev/null || echo 1700000000)}"
export SOURCE_DATE_EPOCH

work=${keep:-$(mktemp -d)}
mkdir -p "$work"
[ -n "$keep" ] || trap 'rm -rf "$work"' EXIT
# From here on everything has an absolute name: the hooks run elsewhere.
work=$(cd -- "$work" && pwd -P)
export work here

words() { grep -v '^#' "$here/$1" | paste -sd"$2"; }

# 1. The program, for the Python of the suite and no other, from wheels whose hashes are pinned.
case $suite in bookworm) python=3.11 ;; trixie) python=3.13 ;; *) die "which Python $suite has is not known here" ;; esac
rm -rf "$work/agent" "$work/locked"
platforms=()
for minor in 17 28 34 36; do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
put() {
  local target=$1
  shift
  # shellcheck disable=SC2086 # words on purpose
  $PIP --disable-pip-version-check install --quiet --no-compile --no-warn-conflicts --root-user-action ignore \
    --only-binary :all: --python-version "$python" --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 \
    --target "$target" "$@"
}
put "$work/locked" --no-deps --require-hashes -r "$project/deploy/locks/agent.lock"
put "$work/agent" --no-deps "$wheels"/itl_attestation_sdk-*.whl "$wheels"/itl_attestation_agent-*.whl
[ -e "$work/agent/bin/attestation-kiosk" ] || die "the agent's wheel has no attestation-kiosk"

# 2. Debian.
export PYTHON=$python
mmdebstrap --quiet --variant=essential --components="$components" --format=tar \
  --include="$(words packages ,)$(printf ',%s' "${added[@]}" | sed 's/^,$//')" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
  --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --customize-hook='"$here/root.sh" "$1"' \
  "$suite" "$work/root.tar"

# 3. The root, the initrd around it, one program of both, a medium of that.
rm -f "$work/initrd.d/root.squashfs"
mksquashfs - "$work/initrd.d/root.squashfs" -tar -quiet -no-progress -comp zstd -Xcompression-level 9 -b 1M <"$work/root.tar"
find "$work/initrd.d" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
(cd "$work/initrd.d" && find . -print0 | LC_ALL=C sort -z | cpio --quiet --null --reproducible -R 0:0 -o -H newc) >"$work/initrd"
"$here/uki.sh" "$work/uki.efi" "$work/linuxx64.efi.stub" "$work/vmlinuz" "$work/initrd" \
  'console=tty0 console=ttyS0,115200n8 quiet loglevel=3 systemd.show_status=false panic=60'
if [ -n "${KIOSK_KEY:-}" ]; then
  sbsign --key "$KIOSK_KEY" --cert "$KIOSK_CERTIFICATE" --output "$work/uki.efi" "$work/uki.efi"
fi
size=$(($(stat -c %s "$work/uki.efi") / 1048576 + 48))
"$here/disk.sh" "$output" "$size" "$work/uki.efi" ITL-KIOSK "$here/itl-reg.conf=EFI/itl/itl-reg.conf.example"
printf '%s  %s\n' "$(sha256sum <"$output" | cut -d' ' -f1)" "$output"
