"""docs/operate/install.md as a script: every line that it tells to copy, in order, and what must be true afterwards.

`tools/fresh.sh install` runs it in a bare Debian. What is missing there is put in its place, and nothing else: a name
for this computer, a software TPM that listens outside (`FRESH_TPM`), and a `systemctl` that reads the units and runs
their ExecStart as their user, because no systemd runs in a chroot. Needs the standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/operate/install.md"

BEFORE = r"""
set -euo pipefail
echo '127.0.0.1 attest.example' >>/etc/hosts
mkdir -p /etc/systemd/system/itl-tpm-register.service.d
printf '[Service]\nEnvironment=ITL_TPM=%s\n' "$FRESH_TPM" >/etc/systemd/system/itl-tpm-register.service.d/fresh.conf
attestation-agent() { ITL_TPM=$FRESH_TPM command attestation-agent "$@"; }
cat >/usr/local/bin/systemctl <<'SYSTEMCTL'
#!/bin/bash
# What systemd does with a unit, as far as ours say it.
set -euo pipefail
for name in ${!ITL_@}; do unset "$name"; done
[ "$1 ${2:-}" = "enable --now" ] || { [ "$1" = daemon-reload ] && exit 0; echo "systemctl $*: not here" >&2; exit 1; }
unit=$3 files=(/etc/systemd/system/"$3".service /etc/systemd/system/"$3".service.d/*.conf)
say() { { cat "${files[@]}" 2>/dev/null || true; } | sed -n "s/^$1=//p"; }
user=$(say User); user=${user:-root}
for kind in State:/var/lib Runtime:/run; do
  name=$(say "${kind%%:*}Directory")
  [ -z "$name" ] || install -d -m "$(say "${kind%%:*}DirectoryMode")" -o "$user" "${kind#*:}/$name"
done
( umask "$(say UMask)"
  set -a; . "$(say EnvironmentFile)"; while read -r line; do eval "$line"; done < <(say Environment); set +a
  exec setsid runuser -u "$user" -- $(say ExecStart) ) </dev/null >"/var/log/$unit.log" 2>&1 &
echo $! >"/run/$unit.pid"
for _ in $(seq 60); do
  grep -q '"service.started"\|"agent.starts"' "/var/log/$unit.log" && exit 0
  kill -0 "$(cat "/run/$unit.pid")" 2>/dev/null || break
  sleep 0.5
done
cat "/var/log/$unit.log" >&2
exit 1
SYSTEMCTL
chmod 755 /usr/local/bin/systemctl
trap 'tail -n 20 /var/log/attestation-service.log /var/log/itl-tpm-register.log 2>/dev/null >&2' ERR
PS4='+ install.md: '
set -x
"""

AFTER = r"""
set +x
export ITL_ADMIN_TOKEN_FILE=/etc/itl-attestation/admin-token
echo 'what must be true now'
for _ in $(seq 60); do attestation machine explain app-1 >/tmp/explained && break; sleep 2; done
cat /tmp/explained
grep -q 'app-1 .* is attested and trusted' /tmp/explained
for _ in $(seq 30); do [ -s /run/itl-tpm/machineconfig.yaml ] && break; sleep 1; done
grep -q 'hostname: "\?app-1' /run/itl-tpm/machineconfig.yaml
for process in /proc/[0-9]*; do
  grep -aqs 'bin/attestation-service' "$process/cmdline" || continue
  grep -aqs runuser "$process/cmdline" || [ "$(stat -c %U "$process")" = itl ]
done
attestation audit verify
for place in service agent cli; do
  here=/opt/itl-attestation/$place
  compiled=$(find "$here" -name '*.pyc' -printf '%s\n' | awk '{ n += $1 } END { printf "%d", n / 1e6 }')
  whole=$(du -s --block-size=MB --apparent-size "$here" | cut -f1)
  printf 'size of %s: %s, %s MB of them compiled\n' "$place" "$whole" "$compiled"
  [ ! -e "$here/bin/pytest" ]
  [ ! -e "$here/bin/pip" ]
done
kill "$(cat /run/itl-tpm-register.pid)" "$(cat /run/attestation-service.pid)"
echo "install.md: every line was copied, and a machine is attested"
"""


def lines(page: str) -> str:
    """Return what a page tells to copy: its blocks of bash, with its headings as comments."""
    found: list[str] = []
    inside = ""
    for line in page.splitlines():
        if line.lstrip().startswith("```"):
            inside = "" if inside else line.strip()
        elif inside == "```bash" or (not inside and line.startswith("#")):
            found.append(line)
    return "\n".join(found)


def script(page: str) -> str:
    """Return the whole script."""
    return f"#!/bin/bash\n{BEFORE}\n{lines(page)}\n{AFTER}"


if __name__ == "__main__":
    sys.stdout.write(script(PAGE.read_text(encoding="utf-8")))
