#!/usr/bin/env bash
# Writes database.sql anew: the last version whose newest revision was 0009 makes a database and fills it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
root=$(git -C "$here" rev-parse --show-toplevel)
git -C "$root" archive 667d4282216ddc55ef87e2211ff1b1f7cc32aa42 src/sdk tests/contract | tar x -C "$old"
cd "$old"
PYTHONPATH="$old/src/sdk:$old" python - "$here/database.sql" <<'PY'
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace

from attestation.audit import AuditEvent
from attestation.endorsements import ChainVerdict
from attestation.machines import Operation, Role, Status
from attestation.machines.events import NodeEvent
from attestation.machines.dual_control import Vote, of_machine
from attestation.results import Passed, Verdict
from attestation.store import (
    Certificate, Countersignature, CountersignatureKind, PolicyAssignment, StoredCheckpoint, StoredEKCertificate,
    RateLimit, StoredCRL, StoredEvidence, StoredPolicy, TrustCertificate, migrate, open_store,
)
from attestation.store.logs import pack
from tests.contract.store_samples import (
    MINUTE, NOW, a_challenge, a_config_token, a_full_machine, a_machine, a_registration_token, a_result,
    an_allow_list_row,
)

LATER = NOW + 60 * MINUTE
FLEET = [
    a_full_machine(1),
    a_machine(2, cluster_id="lab"),  # waits: only its own word for its cluster
    *(  # attested; two with one AK, called alike
        a_machine(n, status=Status.ATTESTED, role=Role.WORKER_APP, attested_at=NOW, redeliver=n == 5, hostname=name,
                  assigned_ip="10.0.0.31/24", ak_name=a_machine(3).ak_name)
        for n, name in ((3, "w-3"), (4, "W-3."), (5, None))
    ),
]


def fill(tx):
    for machine in FLEET:
        tx.machines.add(machine)
    third, fifth = FLEET[2].machine_id, FLEET[4].machine_id
    tx.ek_certificates.put(StoredEKCertificate(
        machine_id=third, certificate=b"der", chain=(b"ca",), judged_at=NOW,
        verdict=ChainVerdict(ok=False, vendor=None, anchor_sha256=None, path=(), reason="no anchor", revocation="none"),
    ))
    tx.logs.put(pack("tcg", b"a log"), NOW)
    four = {pcr: b"\xaa" * 32 for pcr in (0, 4, 8, 9)}
    for appraised, values in ((True, four), (True, {0: b"\xaa" * 32, 4: bytes(32)}), (False, four), (True, {})):
        result = replace(
            a_result(), verdict=Verdict.VERIFIED, boot_state_appraised=appraised,
            outcomes=tuple(Passed(f"pcr{pcr}", "") for pcr in (0, 4, 8, 9)),
        )
        tx.results.add(third, result, StoredEvidence(pcr_bank="sha256" if values else None, pcr_values=values))
    tx.challenges.issue(a_challenge())
    tx.registration_tokens.add(a_registration_token())
    tx.config_tokens.issue(a_config_token(machine_id=fifth))
    tx.allow_list.put(an_allow_list_row())
    tx.policies.add(StoredPolicy(
        name="p", version=1, sha256="ab" * 32, document="{}", created_at=NOW, created_by="anna",
    ))
    tx.policies.assign(PolicyAssignment(
        scope="role", subject="worker-app", policy="p@1", assigned_at=NOW, assigned_by="anna",
    ))
    tx.trust.add(TrustCertificate(
        sha256="cd" * 32, certificate=b"der", role="anchor", vendor="v", status="active", reason=None, added_at=NOW,
        added_by="anna", changed_at=NOW, changed_by="anna",
    ))
    proposal = of_machine(Operation.UNLOCK, FLEET[0], role=Role.CONTROLPLANE, hostname="cp-1", assigned_ip=None)
    tx.approvals.cast(proposal, Vote(operator_cn="anna", operator_sub="iss#anna", created_at=NOW, expires_at=LATER))
    issuer = "0" * 16
    tx.issuers.reserve(issuer, "machine", "ecdsa-p384", "file:/ca.pem", owner="w", at=NOW, until=LATER)
    tx.issuers.complete(issuer, "active", certificate=b"der", spki_sha256="ef" * 32, key_origin="made", at=NOW)
    for number, reason in enumerate(("keyCompromise", "superseded"), start=1):
        serial = f"{number:040x}"
        tx.certificates.reserve(Certificate(
            serial=serial, issuer_id=issuer, profile="node-client", state="reserved", machine_id=third, subject="CN=x",
            spki_sha256=f"{number:064x}", requester="r", key_tier=1, assurance=None, renews=None, not_before=NOW,
            not_after=LATER, reserved_at=NOW,
        ))
        tx.certificates.issued(serial, b"der", NOW)
        tx.certificates.revoke_serial(serial, reason, "why", NOW + number * MINUTE)
    tx.issuers.put_crl(StoredCRL(
        issuer_id=issuer, number=1, revision=2, entries=2, this_update=NOW, next_update=LATER, crl=b"der",
    ))
    tx.rate_limits.take("key", NOW, RateLimit(requests=1, per_seconds=60))
    tx.outbox.add(NodeEvent.REGISTERED, third, {"a": 1}, NOW)


def entry(number):
    return lambda tx: tx.audit.append(AuditEvent(operator_cn="anna", action="a", detail=f"{number} \u00e9"), NOW)


url = "sqlite:///made.db"
migrate(url)
store = open_store(url)
store.write_sync(fill)
for number in range(3):
    store.write_sync(entry(number))
seal = Countersignature(kind=CountersignatureKind.TIMESTAMP, signer="tsa", value=b"x", created_at=NOW)
store.write_sync(lambda tx: tx.audit.tree.add_checkpoint(
    StoredCheckpoint(size=3, root=bytes(32), note="note", created_at=NOW)))
store.write_sync(lambda tx: tx.audit.tree.countersign(3, seal))
store.close()
with closing(sqlite3.connect("made.db")) as db, open(sys.argv[1], "w", encoding="utf-8") as file:
    file.writelines(f"{line}\n" for line in db.iterdump())
PY
