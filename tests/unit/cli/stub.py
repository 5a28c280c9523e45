"""A service made by hand: a few machines, and answers of the right form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from attestation.machines.labels import parse_selector
from tests.fixtures.over_httpx import OverHTTPX, answering

NOW = "2026-11-21T04:00:00Z"
HASH = "ab" * 32


def machine(machine_id: str, **changes: Any) -> dict[str, Any]:
    """Return a MachineDetail as JSON."""
    return {
        "machine_id": machine_id,
        "version": 3,
        "ek_fingerprint": machine_id.replace("-", "") * 3,
        "ek_source": "cert",
        "ek_template": "L-1",
        "ek_certificate": {
            "subject": "",
            "manufacturer": "IFX",
            "model": "SLB 9670",
            "firmware": "7.85",
            "sha256": HASH,
        },
        "assurance": "tofu",
        "ek_chain_ok": False,
        "ek_allow_listed": False,
        "hw_uuid": "unknown",
        "hw_mac": "aa:bb:cc:00:00:01",
        "hw_serial": "SN1",
        "hw_product": "PowerEdge",
        "desired_role": "worker-app",
        "role": None,
        "status": "pending_approval",
        "cluster_id": "default",
        "desired_cluster_id": "default",
        "hostname": None,
        "assigned_ip": None,
        "registered_from": "10.0.0.7",
        "registered_at": NOW,
        "attested_at": None,
        "locked_at": None,
        "revoked_at": None,
        "rejected_at": None,
        "wipe_pending": False,
        "wiped_at": None,
        "redeliver_pending": False,
        "configuration_not_delivered": None,
        "ak_activated_at": NOW,
        "ak_name": None,
        "reset_count": None,
        "restart_count": None,
        "firmware_version": None,
        "trust": "unknown",
        "trust_expires_at": None,
        "last_result": None,
        "approvals": [],
        **changes,
    }


def keys_of(known: dict[str, Any]) -> dict[str, Any]:
    """Return the KeysDetail of a machine as JSON."""
    proven = known["ak_activated_at"] is not None
    return {
        "machine_id": known["machine_id"],
        "ek_fingerprint": known["ek_fingerprint"],
        "ek_template": known["ek_template"],
        "ek_alternatives": [],
        "ak_name": known["ak_name"] or "000b" + "1a" * 32 if proven else None,
        "ak_activated_at": known["ak_activated_at"],
        "earlier": [],
        "activations": [],
    }


def result(machine_id: str, verdict: str = "Verified", **changes: Any) -> dict[str, Any]:
    """Return a ResultDetail as JSON."""
    return {
        "result_id": 1,
        "machine_id": machine_id,
        "at": NOW,
        "verdict": verdict,
        "policy": "identity-only@1",
        "boot_state_appraised": [],
        "pcr_digest": HASH,
        "checks": [
            {"check": "quote", "outcome": "passed"},
            {"check": "boot-state", "outcome": "flagged", "note": "boot state not appraised"},
        ],
        **changes,
    }


def audit_entry(number: int, **changes: Any) -> dict[str, Any]:
    """Return an AuditEntryDetail as JSON."""
    return {
        "id": number,
        "timestamp": "2026-11-21T04:00:00.000000Z",
        "operator_cn": "SYSTEM",
        "operator_sub": None,
        "action": "approve",
        "machine_id": None,
        "prev_state": "pending_approval",
        "new_state": "registered",
        "detail": None,
        "source_ip": None,
        "format": 1,
        "prev_hash": HASH,
        "entry_hash": HASH,
        **changes,
    }


def report(found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the ResultReport of a result as JSON."""
    return {
        **found,
        "assurance": "ek-chain",
        "policy_sha256": HASH,
        "bundle_sha256": None,
        "pcr_bank": "sha256",
        "pcr_values": {"4": "04" * 32, "7": "07" * 32, "11": "0b" * 32},
        "event_log_sha256": "e1" * 32,
        "event_log_kept": True,
        "ima_log_sha256": None,
        "ima_log_kept": False,
        "ek_key_attested": None,
        "compared_with": None,
        "changes": [],
        "boot": None,
        **changes,
    }


@dataclass
class Stub:
    """Answers the operators' API from what it is given; acts are recorded."""

    machines: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    """What the report of a result says beside the result, by its number."""
    event_log: bytes | None = None
    audit: list[dict[str, Any]] = field(default_factory=list)
    allow_list: list[dict[str, Any]] = field(default_factory=list)
    approvals: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=lambda: [change("workers@2"), change("workers@1")])
    proposals: list[dict[str, Any]] = field(default_factory=lambda: [proposal()])
    issuers: list[dict[str, Any]] = field(default_factory=list)
    certificates: list[dict[str, Any]] = field(default_factory=list)
    valid: bool = True
    state: dict[str, Any] | None = None
    whoami: dict[str, Any] = field(
        default_factory=lambda: {
            "name": "anna",
            "subject": "https://id.example/realms/itl#6f1c",
            "method": "oidc",
            "roles": ["operator"],
            "rights": ["read", "act"],
        }
    )
    checks: dict[str, str] = field(default_factory=lambda: {"database": "ok", "clock": "ok"})
    voters: tuple[str, ...] = ()
    """Where somebody is named, gated acts wait for another one: dual control."""
    votes_expire: str = "2099-01-01T00:00:00Z"
    acts: list[tuple[str, str, Any]] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    before: Callable[[httpx.Request], httpx.Response | None] = lambda request: None

    @property
    def carrier(self) -> OverHTTPX:
        """What carries requests to this stub."""
        return answering(self)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer *request*."""
        self.requests.append(request)
        early = self.before(request)
        if early is not None:
            return early
        path = request.url.path.removeprefix("/api/v1")
        if path in ("/healthz", "/readyz", "/service-keys"):
            return self._public(path)
        if request.method != "GET":
            self.acts.append((request.method, path, json.loads(request.content) if request.content else None))
        if (match := re.fullmatch(r"/machines/([^/]+)/labels", path)) and request.method == "POST":
            self._label(match[1], json.loads(request.content))
        if match := re.fullmatch(r"/machines/([^/]+)(/[^/]+)?", path):
            if self.voters and match[2] in GATED:
                return httpx.Response(202, json=self._pending(match[1], match[2][1:]))
            return self._machine(request, match[1], match[2])
        if match := re.fullmatch(r"/machines/([^/]+)/results/([0-9]+)(/event-log)?", path):
            return self._result(match[1], int(match[2]), log=match[3] is not None)
        gated = path in ("/registration-tokens", "/allow-list") or path.startswith("/policies/assignments/")
        if self.voters and request.method != "GET" and gated:
            return httpx.Response(202, json=self._pending(None, path[1:]))
        match request.method, path:
            case "GET", "/machines":
                return self._list(request)
            case "GET", "/audit":
                return page(self.audit)
            case "GET", "/audit/verify":
                wrong = None if self.valid else "entry 7: prev_hash differs"
                return httpx.Response(
                    200,
                    json={
                        "valid": self.valid,
                        "entries": 9,
                        "root_hash": HASH,
                        "first_invalid_id": None if self.valid else 7,
                        "error": wrong,
                        "state": self.state,
                    },
                )
            case "POST", "/registration-tokens":
                return httpx.Response(
                    200,
                    json=token(token="s3cr3t-token", jwks_sha256="ab" * 32, **json.loads(request.content)),
                )
            case "GET", "/registration-tokens":
                return page([token()])
            case "POST", "/allow-list":
                return httpx.Response(
                    200, json={"added": len(json.loads(request.content)["entries"]), "replaced": 0}
                )
            case "GET", "/allow-list":
                return page(self.allow_list)
            case "GET", "/extensions":
                about = {"name": "webhooks", "version": "1.0.0", "description": "Tells others."}
                listed = [{**about, "pending": 2, "dead_letters": 1}]
                return httpx.Response(200, json={"extensions": listed, "total": 1})
            case "GET", "/extensions/webhooks/dead-letters":
                letter = {"event_id": "e1", "event": "node.online", "machine_id": "m1", "attempts": 6}
                return httpx.Response(
                    200, json={"items": [{**letter, "created_at": NOW, "error": "ConnectError"}]}
                )
            case "GET", "/extensions/webhooks/dead-letters/e1":
                letter = {"event_id": "e1", "event": "node.online", "machine_id": "m1", "attempts": 6}
                more = {"created_at": NOW, "error": "ConnectError", "payload": {"node": {"role": "generic"}}}
                return httpx.Response(200, json={**letter, **more})
            case "POST", "/extensions/webhooks/retry":
                return httpx.Response(200, json={"events": 1})
            case "GET", "/whoami":
                return httpx.Response(200, json=self.whoami)
            case "GET", "/stats":
                return httpx.Response(200, json=STATS)
            case "GET", "/approvals":
                return page(self.proposals)
            case "GET", "/policies":
                return httpx.Response(
                    200, json={"policies": [policy()], "assignments": [assignment("fleet", "*")]}
                )
            case "POST", "/policies":
                return httpx.Response(201, json=policy())
            case "GET", "/policies/history":
                return page(self.history)
            case "POST", "/policies/test":
                return httpx.Response(200, json=trial())
            case "POST", "/policies/learn":
                return httpx.Response(200, json=learned())
            case "GET", "/ca":
                return httpx.Response(200, json={"issuers": self.issuers})
            case "GET", "/ca/check":
                used = [i for i in self.issuers if i["state"] in ("next", "active", "retiring")]
                return httpx.Response(200, json={"ok": True, "issuers": [issuer_check(i) for i in used]})
            case "GET", "/ca/certificates":
                return page(self.certificates)
            case "DELETE", _:
                return httpx.Response(204)
        if match := re.fullmatch(r"/approvals/([0-9a-f]{64})/proposal", path):
            found = [each for each in self.proposals if each["proposal_digest"] == match[1]]
            return httpx.Response(200, json=found[0]) if found else problem(404, "approval-unknown", "none")
        if match := re.fullmatch(r"/approvals/([0-9a-f]{64})/object", path):
            return httpx.Response(200, json={"proposal_digest": match[1], "voided": 1})
        if re.fullmatch(r"/policies/[a-z0-9-]+/[0-9]+", path):
            return httpx.Response(200, json=policy())
        if match := re.fullmatch(r"/policies/assignments/([a-z]+)/([^/]+)(/rollback)?", path):
            return httpx.Response(200, json=assignment(match[1], match[2]))
        return problem(404, "unknown", path)

    def _pending(self, machine_id: str | None, action: str) -> dict[str, Any]:
        return pending(self.voters, machine_id=machine_id, action=action, expires_at=self.votes_expire)

    def _public(self, path: str) -> httpx.Response:
        if path == "/healthz":
            return httpx.Response(200, json={"status": "ok"})
        if path == "/service-keys":
            return httpx.Response(200, json={"keys": [{"kid": "k1", "alg": "ES384", "kty": "EC"}]})
        good = all(state == "ok" for state in self.checks.values())
        body = {"status": "ok" if good else "unavailable", "version": "1.2.3", "checks": self.checks}
        return httpx.Response(200 if good else 503, json=body)

    def _list(self, request: httpx.Request) -> httpx.Response:
        asked = request.url.params
        found = [m for m in self.machines if asked.get("status") in (None, m["status"])]
        if q := asked.get("q"):
            found = [m for m in found if q in json.dumps(m)]
        if labels := asked.get("labels"):
            found = [m for m in found if parse_selector(labels).items() <= m.get("labels", {}).items()]
        return page(found)

    def _label(self, machine_id: str, body: dict[str, Any]) -> None:
        for known in self.machines:
            if known["machine_id"] == machine_id:
                worn = known.get("labels", {}) | body["set"]
                known["labels"] = {k: v for k, v in worn.items() if k not in body["remove"]}

    def _result(self, machine_id: str, number: int, *, log: bool) -> httpx.Response:
        found = [r for r in self.results if (r["machine_id"], r["result_id"]) == (machine_id, number)]
        if not found or (log and self.event_log is None):
            return problem(404, "result-unknown", "no such result")
        if log:
            return httpx.Response(200, content=self.event_log)
        return httpx.Response(200, json=report(found[0], **self.reports.get(number, {})))

    def _machine(self, request: httpx.Request, machine_id: str, act: str | None) -> httpx.Response:
        known = next((m for m in self.machines if m["machine_id"] == machine_id), None)
        if known is None:
            return problem(404, "machine-unknown", "no such machine")
        if act == "/approvals":
            return page([v for v in self.approvals if v["machine_id"] == machine_id])
        if act == "/keys":
            return httpx.Response(200, json=keys_of(known))
        if act == "/policy":
            return httpx.Response(200, json=effective(machine_id))
        if act == "/endorsement":
            return httpx.Response(200, json=endorsement(machine_id, ok=known["assurance"] != "tofu"))
        if act == "/results":
            return page([r for r in self.results if r["machine_id"] == machine_id])
        return httpx.Response(200, json=known)


def endorsement(machine_id: str, *, ok: bool) -> dict[str, Any]:
    """Return an EndorsementDetail as JSON: a vendor vouches, or nobody known here does."""
    path = [("ek", "OPTIGA EK"), *([("intermediate", "ECC CA 042"), ("anchor", "ECC Root")] if ok else [])]
    return {
        "ok": ok,
        "reason": "chains to an anchor" if ok else "no trusted certificate signed it",
        "vendor": "IFX" if ok else None,
        "anchor_sha256": HASH if ok else None,
        "revocation": "good" if ok else "unknown",
        "bundle_sha256": HASH,
        "path": [
            {"sha256": HASH, "subject": f"CN={name}", "role": role, "ok": True, "reason": ""}
            for role, name in path
        ],
        "machine_id": machine_id,
        "assurance": "ek-chain" if ok else "tofu",
        "ek_allow_listed": False,
        "judged_at": NOW,
        "certificate": "MIIB",
        "claimed_vendor": "IFX",
    }


GATED = ("/approve", "/unlock", "/role", "/ak-reset", "/redeliver", "/approve-hardware")
STATS = {
    "at": NOW,
    "machines": 1205,
    "by_status": {
        "pending_approval": 3,
        "registered": 0,
        "attested": 1200,
        "rejected": 1,
        "locked": 1,
        "revoked": 0,
    },
    "by_role": {
        "controlplane": 5,
        "worker-infra": 0,
        "worker-app": 1196,
        "generic": 0,
        "windows": 0,
        "linux": 0,
    },
    "without_role": 4,
    "by_trust": {"verified": 1199, "failed": 1, "stale": 1, "unknown": 4},
}


def issuer(issuer_id: str, state: str, **changes: Any) -> dict[str, Any]:
    """Return an IssuerDetail as JSON."""
    return {
        "issuer_id": issuer_id,
        "purpose": "machine",
        "algorithm": "ecdsa-p384",
        "state": state,
        "subject": f"CN=ITL Machine Enrollment CA {issuer_id[:8]},O=ITL Usions,C=NL",
        "key_uri": f"file:/var/lib/itl-reg/ca/itl-enrollment-ca-{issuer_id}.pem",
        "key_origin": "file",
        "spki_sha256": HASH,
        "certificate_sha256": HASH,
        "certificate": None,
        "cross_certificates": [],
        "not_before": NOW,
        "not_after": "2036-11-18T04:00:00Z",
        "crl_number": 0,
        "reserved_at": NOW,
        "created_at": NOW,
        "activated_at": None,
        "retiring_at": None,
        "retired_at": None,
        "activate_from": None,
        "retire_from": None,
        **changes,
    }


def issuer_check(shown: dict[str, Any]) -> dict[str, Any]:
    """Return the IssuerCheck of a key that signs as JSON."""
    same = ("issuer_id", "purpose", "algorithm", "state", "key_uri", "key_origin")
    exportable = shown["key_uri"].startswith("file:")
    told = {"signs": True, "problem": None, "exportable": exportable, "warnings": []}
    return {name: shown[name] for name in same} | told | {"encrypted": True if exportable else None}


def certificate(serial: str, state: str, **changes: Any) -> dict[str, Any]:
    """Return a CertificateDetail as JSON."""
    return {
        "serial": serial,
        "issuer_id": "3f6f0e1b2c3d4e5f",
        "profile": "node-client",
        "state": state,
        "machine_id": None,
        "subject": "CN=anna,OU=operator,O=ITL Usions,C=NL",
        "spki_sha256": HASH,
        "requester": "SYSTEM",
        "key_tier": None,
        "assurance": None,
        "renews": None,
        "not_before": NOW,
        "not_after": NOW,
        "reserved_at": NOW,
        "issued_at": NOW,
        "ended_at": None,
        "reason": None,
        "note": None,
        "certificate": None,
        **changes,
    }


def pending(voters: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    """Return a PendingApproval as JSON."""
    return {
        "machine_id": None,
        "status": "pending_second_approval",
        "message": "1 of 2 agree",
        "action": "approve",
        "proposal_digest": HASH,
        "approval_id": 17,
        "approvals_received": len(voters),
        "approvals_required": 2,
        "expires_at": "2099-01-01T00:00:00Z",
        "voters": list(voters),
        **changes,
    }


def vote(number: int, machine_id: str, **changes: Any) -> dict[str, Any]:
    """Return an ApprovalDetail as JSON."""
    return {
        "id": number,
        "machine_id": machine_id,
        "action": "approve",
        "subject": f"machine {machine_id}",
        "proposal_digest": HASH,
        "operator_cn": "anna",
        "role": "controlplane",
        "hostname": "cp-1",
        "assigned_ip": None,
        "created_at": NOW,
        "expires_at": "2099-01-01T00:00:00Z",
        "consumed": False,
        "withdrawn": False,
        "live": True,
        **changes,
    }


def proposal() -> dict[str, Any]:
    """Return a ProposalDetail as JSON."""
    machine_id = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
    return {
        "proposal_digest": HASH,
        "action": "approve",
        "subject": f"machine {machine_id}",
        "machine_id": machine_id,
        "approvals_received": 1,
        "approvals_required": 2,
        "expires_at": "2099-01-01T00:00:00Z",
        "voters": ["anna"],
        "proposal": {"action": "approve"},
        "approvals": [vote(17, machine_id)],
    }


def page(items: list[dict[str, Any]]) -> httpx.Response:
    """Return the only page of *items*."""
    return httpx.Response(200, json={"items": items, "next_cursor": None})


def problem(status: int, code: str, detail: str, **more: Any) -> httpx.Response:
    """Return a problem document."""
    body = {
        "type": f"urn:itl:problem:{code}",
        "title": code,
        "status": status,
        "detail": detail,
        "instance": "req-1",
    }
    return httpx.Response(status, json={**body, **more})


def token(**changes: Any) -> dict[str, Any]:
    """Return a RegistrationTokenDetail as JSON."""
    known = {
        "token_id": "t0000001",
        "role": "worker-app",
        "hostname": None,
        "assigned_ip": None,
        "cluster_id": None,
        "uses": 1,
        "uses_left": 1,
        "minimum_assurance": "ek-chain",
        "created_at": NOW,
        "created_by": "SYSTEM",
        "expires_at": "2099-01-01T00:00:00Z",
        "revoked_at": None,
    }
    return {**known, **{k: v for k, v in changes.items() if k != "expires_in_seconds"}}


def policy() -> dict[str, Any]:
    """Return a PolicyDetail as JSON."""
    return {
        "name": "workers",
        "version": 1,
        "sha256": HASH,
        "created_at": NOW,
        "created_by": "SYSTEM",
        "document": {
            "format": "itl-tpm-policy/1",
            "name": "workers",
            "version": 1,
            "bank": "sha256",
            "pcrs": {"7": {"any_of": [HASH]}},
        },
    }


def assignment(scope: str, subject: str) -> dict[str, Any]:
    """Return a PolicyAssignment as JSON."""
    return {
        "scope": scope,
        "subject": subject,
        "policy": "workers@1",
        "assigned_at": NOW,
        "assigned_by": "SYSTEM",
    }


def change(ref: str | None) -> dict[str, Any]:
    """Return a PolicyChangeDetail as JSON."""
    return {"scope": "role", "subject": "worker-app", "policy": ref, "at": NOW, "by": "anna"}


def effective(machine_id: str) -> dict[str, Any]:
    """Return an EffectivePolicy as JSON."""
    return {
        "machine_id": machine_id,
        "policy": "fleet@1+workers@2",
        "sha256": HASH,
        "assigned": [
            {"scope": "fleet", "subject": "*", "policy": "fleet@1"},
            {"scope": "role", "subject": "worker-app", "policy": "workers@2"},
        ],
        "document": {
            "pcrs": {
                "7": {"any_of": [HASH]},
                "11": {"any_of": [HASH, "cd" * 32, "ef" * 32, "01" * 32]},
                "1": {"ignore": "serial numbers"},
                "4": {"events": "approved-digests", "digests": [HASH]},
            },
            "secure_boot": {"required": True},
            "sources": {
                "pcrs.11": {"policy": "workers@2", "mode": "enforce"},
                "pcrs.4": {"policy": "workers@2", "mode": "enforce"},
                "pcrs.1": {"policy": "workers@2", "mode": "enforce"},
                "pcrs.7": {"policy": "fleet@1", "mode": "report"},
                "secure_boot.required": {"policy": "fleet@1", "mode": "report"},
            },
        },
    }


def trial(**changes: Any) -> dict[str, Any]:
    """Return a PolicyTestPage as JSON: one machine of ten would newly fail."""
    told = {"passed": 7, "failed": 2, "flagged": 0, "reported": 1, "undecided": 0}
    return {
        "policy": "workers@2",
        "sha256": HASH,
        "machines": 10,
        "judged": 10,
        "passed": 7,
        "failed": 2,
        "undecided": 0,
        "without_evidence": 1,
        "reported": 1,
        "recovering": 0,
        "failing": [failing("w-old", newly=False), failing("w-7", newly=True)],
        "checks": {"pcr7": told, "pcr11": told},
        "next_cursor": None,
        **changes,
    }


def failing(hostname: str | None, *, newly: bool) -> dict[str, Any]:
    """Return a PolicyTestMachine as JSON."""
    return {
        "machine_id": "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
        "hostname": hostname,
        "role": "worker-app",
        "failed": "pcr7, pcr11",
        "at": NOW,
        "before": "Verified" if newly else "Failed",
        "newly": newly,
    }


def learned() -> dict[str, Any]:
    """Return a LearnedPolicy as JSON."""
    return {
        "machines": 5,
        "left_out": 0,
        "document": {
            "format": "itl-tpm-policy/1",
            "name": "learned",
            "version": 1,
            "bank": "sha256",
            "pcrs": {"7": {"any_of": [HASH]}, "11": {"any_of": ["01" * 32, "cd" * 32]}},
        },
        "groups": [
            {"subject": "pcr7", "value": HASH, "machines": ["w-1", "w-2", "w-3", "w-4"]},
            {"subject": "pcr11", "value": "01" * 32, "machines": ["w-1"]},
            {"subject": "pcr11", "value": "cd" * 32, "machines": ["w-2", "w-3", "w-4"]},
        ],
        "outliers": [{"machine": "w-5", "reason": "pcr7 differs from 4 others"}],
        "notes": ["PCR 1 differs on every machine and is ignored"],
    }
