"""Who vouches for TPMs: chains at the introduction, operators and the bundle, minimum assurance (TPM.md §2.6, §6)."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.errors import BundleInvalid
from attestation.evidence import ek_certificate
from attestation.tpm import Public
from attestation.wire import b64decode, b64encode
from attestation_service.process import maintenance
from attestation_service.settings import SettingsInvalid
from attestation_service.verifier import endorsements
from attestation_testing.certificates import SIMULATOR, CertificateAuthority
from tests.fixtures.vendor import ISSUER, ROOT, vouched, write_bundle
from tests.unit.service import people
from tests.unit.service.conftest import HeldClock, Service, Starter, settings_for
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio

STRANGER = CertificateAuthority("Stranger", seed=3)
AT = HeldClock().at


def sha256(authority: CertificateAuthority) -> str:
    return hashlib.sha256(authority.certificate).hexdigest()


def members(node: SoftwareNode, **how: Any) -> dict[str, Any]:
    """Return what an introduction carries of a certificate."""
    return vouched(node.ek, **how)


def revoking(ek: Public, at: datetime = AT) -> bytes:
    """Return a list of the issuer, good at *at*, that revokes the certificate of *ek*."""
    serial = ek_certificate.verify(
        ek_certificate.parse(b64decode(vouched(ek)["ek_cert_pem"], "ek")), ek=ek, at=at, allow_simulator=False
    ).serial
    name = x509.load_der_x509_certificate(ISSUER.certificate).subject
    entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(at).build()
    crl = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(name)
        .last_update(at - timedelta(days=1))
        .next_update(at + timedelta(days=1))
        .add_revoked_certificate(entry)
        .sign(ISSUER._key, hashes.SHA256())
    )
    return crl.public_bytes(Encoding.DER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the test vendor's root."""
    return write_bundle(tmp_path / "bundle")


async def trusting(start: Starter, folder: Path, **changed: Any) -> Service:
    return await start(tpm_ca_bundle_dir=folder, **changed)


async def trust(
    service: Service, authority: CertificateAuthority, role: str = "anchor", vendor: str = "IFX", **more: Any
) -> Any:
    body = {
        "certificate": b64encode(authority.certificate),
        "role": role,
        "vendor": vendor,
        "reason": "compared",
    }
    return await service.operator("POST", "/trust/certificates", body, **more)


async def test_a_chain_to_an_anchor_is_level_three(start: Starter, folder: Path) -> None:
    """The level stands on the machine, with the path, the bundle and an audit entry that says why."""
    service, node = await trusting(start, folder), SoftwareNode()
    await service.introduce(node, **members(node))
    detail = await service.detail(node)
    assert (detail["assurance"], detail["ek_chain_ok"]) == ("ek-chain", True)
    shown = (await service.operator("GET", f"/machines/{node.machine_id}/endorsement")).json()
    assert (shown["ok"], shown["vendor"], shown["anchor_sha256"]) == (True, "IFX", sha256(ROOT))
    assert [step["role"] for step in shown["path"]] == ["leaf", "intermediate", "anchor"]
    assert shown["unknown_issuer"] is None
    bundle = (await service.operator("GET", "/trust/bundle")).json()
    assert shown["bundle_sha256"] == bundle["sha256"]
    (entry,) = await service.audit(action="register")
    assert entry["detail"].startswith("assurance ek-chain")


@pytest.mark.threat("T80", "T122")
@pytest.mark.parametrize(
    ("wrong", "reason", "unknown"),
    [
        ({"issuer": STRANGER, "chain": ()}, "Stranger", True),
        ({"manufacturer": "id:53544D20"}, "STM", False),
        ({"chain": ()}, "Infineon Test Issuer", True),
    ],
    ids=["unknown root", "another vendor's name", "issuer not sent"],
)
async def test_without_a_chain_a_machine_waits(
    start: Starter, folder: Path, wrong: dict[str, Any], reason: str, unknown: bool
) -> None:
    """Also with a registration token, which keeps its use; the operator sees how far the path went."""
    service, node = await trusting(start, folder), SoftwareNode()
    token = await service.operator(
        "POST", "/registration-tokens", {"role": "worker-app", "expires_in_seconds": 600}
    )
    activated = await service.introduce(
        node, registration_token=token.json()["token"], **members(node, **wrong)
    )
    assert activated["status"] == "pending_approval"
    detail = await service.detail(node)
    assert (detail["assurance"], detail["ek_chain_ok"], detail["role"]) == ("tofu", False, None)
    (listed,) = (await service.operator("GET", "/registration-tokens")).json()["items"]
    assert listed["uses_left"] == 1
    shown = (await service.operator("GET", f"/machines/{node.machine_id}/endorsement")).json()
    assert shown["ok"] is False
    assert reason in shown["reason"]
    assert (shown["unknown_issuer"] is not None) is unknown


@pytest.mark.threat("T83", "T122")
async def test_a_token_admits_what_is_vouched_for(start: Starter, folder: Path) -> None:
    """Leaving the certificate out opens no door; who makes the token may ask for less, and the role still counts."""
    service = await trusting(start, folder)

    async def with_token(role: str, *, certified: bool = False, **terms: str) -> str:
        node = SoftwareNode()
        token = await service.operator(
            "POST", "/registration-tokens", {"role": role, "expires_in_seconds": 600, **terms}
        )
        body = members(node) if certified else {}
        activated = await service.introduce(node, registration_token=token.json()["token"], **body)
        return str(activated["status"])

    assert await with_token("controlplane", certified=True) == "registered"
    assert await with_token("worker-app") == "pending_approval"
    assert await with_token("worker-app", minimum_assurance="tofu") == "registered"
    assert await with_token("controlplane", minimum_assurance="tofu") == "pending_approval"
    assert (
        await with_token("worker-app", minimum_assurance="ek-allowlist", certified=True) == "pending_approval"
    )
    (entry, *_) = await service.audit(action="token_issued")
    assert "assurance at least ek-allowlist" in entry["detail"]


async def test_a_simulator_never_rises(start: Starter, folder: Path) -> None:
    """Even below a trusted anchor: its keys lie in a file."""
    service, node = await trusting(start, folder, tpm_allow_simulator=True), SoftwareNode()
    await service.introduce(node, **members(node, manufacturer=SIMULATOR))
    assert (await service.detail(node))["assurance"] == "tofu"


async def test_nobody_is_asked_where_that_is_switched_off(start: Starter, folder: Path) -> None:
    """A development setting: nothing is vouched for, nothing is held back, and the start warned of it."""
    service, node = await trusting(start, folder, tpm_verify_ca=False), SoftwareNode()
    token = await service.operator(
        "POST",
        "/registration-tokens",
        {"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "tofu"},
    )
    activated = await service.introduce(node, registration_token=token.json()["token"], **members(node))
    assert activated["status"] == "registered"
    assert (await service.detail(node))["assurance"] == "tofu"
    (entry,) = await service.audit(action="settings_weakened")
    assert "ITL_TPM_VERIFY_CA" in entry["detail"]


@pytest.mark.threat("T83")
async def test_a_control_plane_must_be_vouched_for(service: Service) -> None:
    """Approval and change of role say so at once, with the ways out; other roles are open to it."""
    node = SoftwareNode()
    await service.introduce(node)
    path = f"/machines/{node.machine_id}"
    refused = await service.operator("POST", f"{path}/approve", {"role": "controlplane"})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:itl:problem:assurance-too-low")
    assert "controlplane demands ek-chain, this machine has tofu" in refused.json()["detail"]
    assert (await service.detail(node))["status"] == "pending_approval"
    await service.act(node, "approve", {"role": "worker-app"})
    changed = await service.operator("POST", f"{path}/role", {"role": "controlplane", "reason": "grow"})
    assert changed.status_code == 409


async def test_an_operator_accepts_one_ek(service: Service) -> None:
    """It is level 4 from then on, also when it comes back; the audit says who accepted it."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "controlplane", "accept_ek": True, "hostname": "cp-1"})
    detail = await service.detail(node)
    assert (detail["assurance"], detail["ek_allow_listed"]) == ("ek-allowlist", True)
    (listed,) = (await service.operator("GET", "/allow-list")).json()["items"]
    assert (listed["ek_fingerprint"], listed["role"], listed["hostname"]) == (
        node.ek_fingerprint,
        "controlplane",
        "cp-1",
    )
    (entry,) = await service.audit(action="approve")
    assert entry["detail"] == "role controlplane, hostname cp-1; EK accepted"
    assert (await service.attest(node))["status"] == "attested"


async def test_a_policy_states_another_minimum(service: Service) -> None:
    """Higher for a role, lower for one cluster; the narrower place decides."""
    document = {
        "format": "itl-tpm-policy/1",
        "version": 1,
        "bank": "sha256",
        "pcrs": {"7": {"any_of": [SoftwareNode().pcrs[7].hex()]}},
    }
    for name, minimum in (("strict", "ek-chain"), ("lab", "tofu")):
        body = {**document, "name": name, "assurance": {"minimum": minimum}}
        answer = await service.operator("POST", "/policies", body)
        assert answer.status_code == 201, answer.text
    put = await service.operator("PUT", "/policies/assignments/fleet/*", {"policy": "strict@1"})
    assert put.status_code == 200, put.text
    node = SoftwareNode()
    await service.introduce(node)
    path = f"/machines/{node.machine_id}/approve"
    assert (await service.operator("POST", path, {"role": "worker-app"})).status_code == 409
    await service.operator("PUT", "/policies/assignments/cluster/default", {"policy": "lab@1"})
    assert (await service.operator("POST", path, {"role": "controlplane"})).status_code == 200


async def test_a_trusted_anchor_lifts_who_waits(start: Starter) -> None:
    """Without a restart: judged again in the background, with an audit entry; a fresh worker sees it too."""
    service, node = await start(), SoftwareNode()
    await service.introduce(node, **members(node))
    assert (await service.detail(node))["assurance"] == "tofu"
    before = (await service.operator("GET", "/trust/bundle")).json()["sha256"]
    added = await trust(service, ROOT)
    assert (added.status_code, added.json()["origin"], added.json()["status"]) == (201, "operator", "active")
    after = (await service.operator("GET", "/trust/bundle")).json()["sha256"]
    (entry,) = await service.audit(action="trust_add")
    assert f"bundle {before} to {after}" in entry["detail"]
    assert before != after
    other = await start(clock=service.clock)
    await maintenance.once(other.resources)
    assert (await service.detail(node))["assurance"] == "ek-chain"
    (entry,) = await service.audit(action="assurance_changed")
    assert entry["detail"].startswith("tofu to ek-chain")
    await maintenance.once(service.resources)
    assert len(await service.audit(action="assurance_changed")) == 1


@pytest.mark.threat("T81", "T83")
async def test_distrust_works_at_once(start: Starter, folder: Path) -> None:
    """Level and lease fall in the unit of the act; the next attestation of a control plane fails; restoring lifts."""
    service, node = await trusting(start, folder), SoftwareNode()
    await service.introduce(node, **members(node))
    await service.act(node, "approve", {"role": "controlplane"})
    await service.attest(node)
    assert (await service.detail(node))["trust"] == "verified"
    path = f"/trust/certificates/{sha256(ROOT)}"
    answer = await service.operator("POST", f"{path}/distrust", {"reason": "stolen"})
    assert (answer.status_code, answer.json()["status"]) == (200, "distrusted")
    detail = await service.detail(node)
    assert (detail["assurance"], detail["trust"]) == ("tofu", "stale")
    assert "machines that fall: 1" in (await service.audit(action="trust_distrust"))[0]["detail"]
    await service.attest(node)
    detail = await service.detail(node)
    assert (detail["trust"], detail["last_result"]["failed"]) == ("failed", "assurance")
    again = await service.operator("POST", f"{path}/distrust", {"reason": "stolen"})
    assert again.status_code == 409
    assert (await service.operator("POST", f"{path}/restore", {"reason": "alarm"})).status_code == 200
    await maintenance.once(service.resources)
    assert (await service.detail(node))["assurance"] == "ek-chain"
    assert (await service.operator("POST", f"{path}/restore", {"reason": "alarm"})).status_code == 409


@pytest.mark.threat("T81")
async def test_what_was_distrusted_between_introduction_and_proof_vouches_for_nothing(
    start: Starter, folder: Path
) -> None:
    """The proof is judged by the bundle of its own instant."""
    service, node = await trusting(start, folder), SoftwareNode()
    answer = await service.post("/api/v1/self-register", node.introduction(**members(node)))
    await service.operator("POST", f"/trust/certificates/{sha256(ROOT)}/distrust", {"reason": "stolen"})
    body = node.activation(answer.json())
    assert (await service.post(f"/api/v1/machines/{node.machine_id}/ak-activate", body)).status_code == 200
    assert (await service.detail(node))["assurance"] == "tofu"


@pytest.mark.threat("T82")
async def test_an_intermediate_must_chain(start: Starter, folder: Path) -> None:
    """Else it would be an anchor by another name, by one operator."""
    service = await trusting(start, folder)
    refused = await trust(service, STRANGER, "intermediate")
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:itl:problem:trust-bundle-invalid")
    refused = await trust(service, ISSUER, "intermediate", "STM")
    assert refused.status_code == 422
    assert "an anchor of IFX, not of STM" in refused.json()["detail"]
    assert (await trust(service, ISSUER, "intermediate")).status_code == 201
    node = SoftwareNode()
    await service.introduce(node, **members(node, chain=()))
    assert (await service.detail(node))["assurance"] == "ek-chain"
    assert (await trust(service, ISSUER, "intermediate")).status_code == 409


EXPIRED = CertificateAuthority("Expired", seed=9, at=HeldClock().at - timedelta(days=36501))


@pytest.mark.parametrize(
    ("certificate", "vendor", "word"),
    [
        (b"\x30\x03abc", "IFX", ""),
        (CertificateAuthority("Leaf", seed=8, ca=False).certificate, "IFX", "accept one EK with"),
        (EXPIRED.certificate, "IFX", "not now"),
        (ROOT.certificate, "XXX", "not in the TCG vendor registry"),
    ],
    ids=["no certificate", "no CA", "expired", "no vendor"],
)
async def test_what_cannot_vouch_is_refused(
    service: Service, certificate: bytes, vendor: str, word: str
) -> None:
    """Nothing is stored, the digest stays."""
    before = (await service.operator("GET", "/trust/bundle")).json()
    body = {"certificate": b64encode(certificate), "role": "anchor", "vendor": vendor, "reason": "x"}
    answer = await service.operator("POST", "/trust/certificates", body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:itl:problem:trust-bundle-invalid")
    assert word in answer.json()["detail"]
    assert (await service.operator("GET", "/trust/bundle")).json() == before


@pytest.mark.threat("T82")
async def test_an_anchor_needs_two(start: Starter) -> None:
    """One vote is not enough, break-glass is none; distrust needs one; restoring two again."""
    service = await start(dual_control_roles=("worker-app",))
    service.app.state.resources, known = people.introduce(service.resources)
    anna, bob = known.headers("anna"), known.headers("bob")
    refused = await trust(service, ROOT)
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:itl:problem:break-glass-cannot-vote")
    first = await trust(service, ROOT, headers=anna)
    assert first.status_code == 202, first.text
    assert (await trust(service, ROOT, headers=anna)).status_code == 202
    other_vendor = await trust(service, ROOT, vendor="STM", headers=bob)
    assert (other_vendor.status_code, other_vendor.json()["type"]) == (409, "urn:itl:problem:proposal-rival")
    assert (await trust(service, ROOT, headers=bob)).status_code == 201
    (entry,) = await service.audit(action="trust_add")
    assert "agreed by" in entry["detail"]
    path = f"/trust/certificates/{sha256(ROOT)}"
    assert (
        await service.operator("POST", f"{path}/distrust", {"reason": "x"}, headers=anna)
    ).status_code == 200
    restored = [
        (await service.operator("POST", f"{path}/restore", {"reason": "x"}, headers=who)).status_code
        for who in (anna, bob)
    ]
    assert restored == [202, 200]


async def test_unknown_certificates_are_unknown(service: Service) -> None:
    """Shown, distrusted, restored, or asked of a machine that came without."""
    path = f"/trust/certificates/{'ab' * 32}"
    assert (await service.operator("GET", path)).status_code == 404
    for act in ("distrust", "restore"):
        assert (await service.operator("POST", f"{path}/{act}", {"reason": "x"})).status_code == 404
    node = SoftwareNode()
    await service.introduce(node)
    answer = await service.operator("GET", f"/machines/{node.machine_id}/endorsement")
    assert answer.json()["type"] == "urn:itl:problem:trust-certificate-unknown"
    missing = await service.operator("GET", f"/machines/{'0' * 8}-0000-0000-0000-{'0' * 12}/endorsement")
    assert missing.json()["type"] == "urn:itl:problem:machine-unknown"


async def test_a_certificate_can_be_asked_about(start: Starter, folder: Path) -> None:
    """The same answer as at an introduction; nothing is stored."""
    service, node = await trusting(start, folder), SoftwareNode()
    sent = members(node)
    body = {"certificate": sent["ek_cert_pem"], "chain": sent["ek_chain"]}
    answer = (await service.operator("POST", "/trust/verify", body)).json()
    assert (answer["ok"], answer["vendor"]) == (True, "IFX")
    body["chain"] = []
    assert (await service.operator("POST", "/trust/verify", body)).json()["ok"] is False
    bad = await service.operator("POST", "/trust/verify", {"certificate": b64encode(b"no")})
    assert bad.status_code == 400
    assert (await service.operator("GET", "/machines")).json()["items"] == []


async def test_a_certificate_that_comes_later_is_judged(start: Starter, folder: Path) -> None:
    """A machine that came without one introduces itself again with one: it rises, its status stays."""
    service, node = await trusting(start, folder), SoftwareNode()
    await service.introduce(node)
    assert (await service.detail(node))["assurance"] == "tofu"
    await service.introduce(node, **members(node))
    detail = await service.detail(node)
    assert (detail["assurance"], detail["status"]) == ("ek-chain", "pending_approval")
    assert (detail["ek_source"], detail["ek_certificate"]["manufacturer"]) == ("cert", "IFX")


async def test_nothing_worse_takes_the_place_of_a_vendors_word(start: Starter, folder: Path) -> None:
    """A machine cannot lower itself, void votes or fill the log by showing other certificates of its EK."""
    service, node = await trusting(start, folder), SoftwareNode()
    await service.introduce(node, **members(node, issuer=STRANGER, chain=()))
    first = await service.detail(node)
    await service.introduce(node, **members(node))
    second = await service.detail(node)
    assert (first["assurance"], second["assurance"]) == ("tofu", "ek-chain")
    assert second["ek_certificate"]["sha256"] != first["ek_certificate"]["sha256"]
    await service.introduce(node, **members(node, issuer=STRANGER, chain=()))
    third = await service.detail(node)
    assert (third["version"], third["ek_certificate"]) == (second["version"], second["ek_certificate"])
    shown = (await service.operator("GET", f"/machines/{node.machine_id}/endorsement")).json()
    assert (shown["ok"], shown["vendor"]) == (True, "IFX")


async def test_where_certificates_come_from_is_shown(start: Starter, folder: Path) -> None:
    """Shipped, from the folder, by an operator."""
    service = await trusting(start, folder)
    await trust(service, STRANGER, vendor="NTC")
    listed = (await service.operator("GET", "/trust/bundle")).json()["certificates"]
    by_sha = {each["sha256"]: each["origin"] for each in listed}
    assert by_sha[sha256(ROOT)] == "directory"
    assert by_sha[sha256(STRANGER)] == "operator"
    assert set(by_sha.values()) == {"shipped", "directory", "operator"}


def test_strict_needs_an_anchor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that must know vendors does not start knowing none."""
    from attestation.endorsements.bundle import TrustBundle

    monkeypatch.setattr(endorsements, "load", lambda _folder: TrustBundle([], "00" * 32))
    with pytest.raises(SettingsInvalid, match="no active anchor"):
        endorsements.Anchors(settings_for(tmp_path, tpm_verify_ca_strict=True))
    endorsements.Anchors(settings_for(tmp_path, tpm_verify_ca_strict=False))


@pytest.mark.threat("T80")
async def test_a_simulator_below_an_anchor_of_its_own_does_not_rise_either(
    start: Starter, tmp_path: Path
) -> None:
    """A developer's bundle may hold such an anchor; the level stays that of keys in a file. A token admits it."""
    place = tmp_path / "own" / "anchors" / "simulator"
    place.mkdir(parents=True)
    (place / "root.der").write_bytes(ROOT.certificate)
    service, node = await start(tpm_ca_bundle_dir=tmp_path / "own", tpm_allow_simulator=True), SoftwareNode()
    token = await service.operator(
        "POST",
        "/registration-tokens",
        {"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "tofu"},
    )
    sent = members(node, manufacturer=SIMULATOR)
    activated = await service.introduce(node, registration_token=token.json()["token"], **sent)
    assert activated["status"] == "registered"
    assert (await service.detail(node))["assurance"] == "tofu"
    shown = (await service.operator("GET", f"/machines/{node.machine_id}/endorsement")).json()
    assert shown["reason"] == "a software TPM: no vendor vouches for its keys"


async def test_an_expired_issuer_enrols_nobody_and_lifts_nobody(start: Starter, folder: Path) -> None:
    """Recording is for machines that were vouched for in time; another bundle does not lift the others."""
    old = CertificateAuthority("Old", seed=5, parent=ROOT, at=HeldClock().at - timedelta(days=36501))
    service, node = await trusting(start, folder, ek_expiry="record"), SoftwareNode()
    await service.introduce(node, **members(node, issuer=old, chain=(old,)))
    assert (await service.detail(node))["assurance"] == "tofu"
    await trust(service, STRANGER, vendor="NTC")
    await maintenance.once(service.resources)
    assert (await service.detail(node))["assurance"] == "tofu"


async def test_who_falls_in_the_background_has_no_lease(start: Starter, folder: Path) -> None:
    """What was believed of a vouched machine is not believed of another."""
    service, node = await trusting(start, folder), SoftwareNode()
    await service.introduce(node, **members(node))
    await service.act(node, "approve", {"role": "worker-app"})
    await service.attest(node)
    other = await start(clock=service.clock)
    await maintenance.once(other.resources)
    detail = await other.detail(node)
    assert (detail["assurance"], detail["trust"]) == ("tofu", "stale")


@pytest.mark.parametrize("between", ["distrust", "reintroduction"])
async def test_a_judgement_that_was_overtaken_is_not_written(
    start: Starter, folder: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """Between judging and writing the bundle changes, or the machine comes with another certificate."""
    service, node = await start(), SoftwareNode()
    await service.introduce(node, **members(node))
    await trust(service, ROOT)
    write = type(service.store).write
    waiting = [True]

    async def overtaken(store: Any, work: Any) -> Any:
        if waiting and waiting.pop():
            if between == "distrust":
                path = f"/trust/certificates/{sha256(ROOT)}/distrust"
                assert (await service.operator("POST", path, {"reason": "stolen"})).status_code == 200
            else:
                await service.introduce(node, **members(node, issuer=ROOT, chain=()))
        return await write(store, work)

    monkeypatch.setattr(type(service.store), "write", overtaken)
    res = service.resources
    await endorsements.rejudge(res.store, res.anchors, res.clock)
    shown = (await service.operator("GET", f"/machines/{node.machine_id}/endorsement")).json()
    lifted = await service.audit(action="assurance_changed")
    if between == "distrust":
        assert (shown["ok"], lifted) == (False, [])
    else:
        assert [step["role"] for step in shown["path"]] == ["leaf", "anchor"]
        assert len(lifted) == 1


async def test_a_list_that_revokes_the_certificate_is_obeyed(
    start: Starter, folder: Path, tmp_path: Path
) -> None:
    """Also where not knowing is only recorded; an illegible list stops the start."""
    node, crls = SoftwareNode(), tmp_path / "crls"
    crls.mkdir()
    (crls / "issuer.crl").write_bytes(revoking(node.ek))
    service = await trusting(start, folder, tpm_crl_dir=crls)
    await service.introduce(node, **members(node))
    shown = (await service.operator("GET", f"/machines/{node.machine_id}/endorsement")).json()
    assert (shown["ok"], shown["revocation"].partition(":")[0]) == (False, "revoked")
    assert [step["ok"] for step in shown["path"]] == [False, True, True]
    assert shown["unknown_issuer"] is None, "nobody is asked to trust whoever revoked it"
    (crls / "other.pem").write_bytes(b"no list")
    with pytest.raises(BundleInvalid, match=r"other\.pem"):
        endorsements.Anchors(settings_for(tmp_path, tpm_crl_dir=crls))
    with pytest.raises(BundleInvalid, match="nowhere"):
        endorsements.Anchors(settings_for(tmp_path, tpm_crl_dir=tmp_path / "nowhere"))


async def test_what_is_known_keeps_vendor_and_role(service: Service) -> None:
    """A distrusted anchor does not come back as another vendor's."""
    await trust(service, STRANGER, vendor="NTC")
    path = f"/trust/certificates/{sha256(STRANGER)}/distrust"
    assert (await service.operator("POST", path, {"reason": "x"})).status_code == 200
    again = await trust(service, STRANGER, vendor="STM")
    assert (again.status_code, again.json()["type"]) == (409, "urn:itl:problem:already-exists")
    assert (await trust(service, STRANGER, vendor="NTC")).json()["status"] == "active"


async def test_accepting_an_ek_is_what_both_must_ask_for(start: Starter, folder: Path) -> None:
    """Who votes to admit a machine that is vouched for has not voted to believe its EK for ever."""
    service, node = await trusting(start, folder, dual_control_roles=("controlplane",)), SoftwareNode()
    service.app.state.resources, known = people.introduce(service.resources)
    await service.introduce(node, **members(node))
    path, body = f"/machines/{node.machine_id}/approve", {"role": "controlplane"}
    plain = await service.operator("POST", path, body, headers=known.headers("anna"))
    path = f"{path}?new_proposal=true"
    accepting = await service.operator("POST", path, body | {"accept_ek": True}, headers=known.headers("bob"))
    assert (plain.status_code, accepting.status_code) == (202, 202)
    assert (await service.detail(node))["status"] == "pending_approval"
