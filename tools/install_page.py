"""A page of docs/operate as a script: every line that it tells to copy, in order, and what must be true afterwards.

`tools/fresh.sh install` and `tools/fresh.sh replicas` run it in a bare Debian under a systemd of its own. What is
missing there is put in its place, and nothing else: a name for this computer, and a software TPM that listens outside
(`FRESH_TPM`). Needs the standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

OPERATE = Path(__file__).resolve().parents[1] / "docs/operate"

BEFORE = r"""
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
echo '127.0.0.1 attest.example' >>/etc/hosts
mkdir -p /etc/systemd/system/itl-tpm-register.service.d
printf '[Service]\nEnvironment=ITL_TPM=%s\n' "$FRESH_TPM" >/etc/systemd/system/itl-tpm-register.service.d/fresh.conf
attestation-agent() { ITL_TPM=$FRESH_TPM command attestation-agent "$@"; }
PS4='+ '
set -x
"""

ADMITTED = r"""
set +x
export ITL_ADMIN_TOKEN_FILE=/etc/itl-attestation/admin-token
echo 'what must be true now'
for _ in $(seq 60); do attestation machine explain app-1 >/tmp/explained && break; sleep 2; done
cat /tmp/explained
grep -q 'app-1 .* is attested and trusted' /tmp/explained
for _ in $(seq 30); do [ -s /run/itl-tpm/machineconfig.yaml ] && break; sleep 1; done
grep -q 'hostname: "\?app-1' /run/itl-tpm/machineconfig.yaml
for process in $(pgrep -f bin/attestation-service); do [ "$(stat -c %U "/proc/$process")" = itl ]; done
attestation audit verify
man -w attestation-service attestation-agent itl-tpm-register attestation-machine-approve
"""

AFTER = {
    "install": r"""
for place in service agent cli; do
  here=/opt/itl-attestation/$place
  compiled=$(find "$here" -name '*.pyc' -printf '%s\n' | awk '{ n += $1 } END { printf "%d", n / 1e6 }')
  whole=$(du -s --block-size=MB --apparent-size "$here" | cut -f1)
  printf 'size of %s: %s, %s MB of them compiled\n' "$place" "$whole" "$compiled"
  [ ! -e "$here/bin/pytest" ]
  [ ! -e "$here/bin/pip" ]
done
systemctl reload attestation-service
systemctl stop itl-tpm-register attestation-service
! systemctl is-failed itl-tpm-register attestation-service
systemd-analyze security --no-pager attestation-service itl-tpm-register
echo "install.md: every line was copied, and a machine is attested"
""",
    "replicas": r"""
ready() { curl --silent --fail --output /dev/null "http://127.0.0.1:$1/readyz"; }
for replica in 8081 8082 8083; do ready $replica; done
echo 'restarted one after the other, while somebody asks without a pause'
touch /tmp/asking
(
  asked=0
  while [ -e /tmp/asking ]; do
    curl -sS --fail --cacert /etc/itl-attestation/tls.pem https://attest.example/readyz >/tmp/answer || exit 1
    asked=$((asked + 1))
  done
  echo "$asked requests, none refused"
) & asking=$!
for replica in 8081 8082 8083; do systemctl restart attestation-service@$replica; done
rm /tmp/asking
wait $asking
echo 'one is killed: the others answer, and it comes back'
systemctl kill --signal=KILL attestation-service@8082
attestation machine explain app-1
for _ in $(seq 60); do ready 8082 && break; sleep 1; done
ready 8082
attestation audit verify
who="SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = 'attestation'"
[ "$(runuser -u postgres -- psql -Atc "$who" postgres)" = itl_service ]
! runuser -u itl -- psql --username itl_service attestation -c 'CREATE TABLE of_ours (x int)'
journalctl --no-pager -o cat -u 'attestation-service@*' -g 'chore.taken|service.started'
systemctl stop itl-tpm-register 'attestation-service@*'
! systemctl is-failed itl-tpm-register attestation-service@808{1,2,3}
echo "replicas.md: every line was copied, and a machine is attested by three replicas"
""",
}
"""What must be true after each page, and what it says then."""


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


def script(name: str) -> str:
    """Return the whole script of a page, e.g. `install`."""
    page = (OPERATE / f"{name}.md").read_text(encoding="utf-8")
    return f"#!/bin/bash\n{BEFORE}\n{lines(page)}\n{ADMITTED}\n{AFTER[name]}"


if __name__ == "__main__":
    sys.stdout.write(script(sys.argv[1]))
