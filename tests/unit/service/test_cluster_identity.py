"""Who a node is and whether it is a member, as operators chose for its cluster: compared, asked last, never guessed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.appraisal.node_csr import Answer
from attestation.endorsements.ek_trust import PathValidation
from attestation.endorsements.membership import Member, Membership, NotMember, Undecided
from attestation.endorsements.node_identity import SHIPPED, IdentitySource, NodeIdentity
from attestation.evidence.node_csr import Layout, UnverifiedContainer, VMIdentity
from attestation.machines import Machine
from attestation.store import StoredAKCertificate
from attestation.tpm import parse_public
from attestation_service.settings import SettingsInvalid
from attestation_service.verifier import node_identity
from attestation_service.verifier.cluster_identity import ClusterIdentities, Identified
from attestation_testing import SoftwareNode
from attestation_testing.ak_certificates import (
    AKCertificateOptions,
    AKDefect,
    gce_instance_2018,
    make_ak_certificate,
)
from attestation_testing.certificates import CertificateAuthority
from tests.unit.appraisal.node_csr_kit import machine
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node_keys import ecc_key
from tests.unit.service.node_requests import (
    APPROVED,
    SERVING,
    admitted,
    ask,
    body,
    challenged,
    container,
    decision,
    pkcs10,
    serving,
)
from tests.unit.service.test_service_accounts import cluster, settings

pytestmark = pytest.mark.anyio

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
GCE = "1.3.6.1.4.1.11129.2.1.21"
CA = CertificateAuthority("Instances", seed=1)
OTHER_CA = CertificateAuthority("Others", seed=2)
KNOWN = machine()
UNACTIVATED = replace(KNOWN, anchor=replace(KNOWN.anchor, ak_public=None, ak_name=None))
VM = VMIdentity(zone="europe-west1-b", id=1234, name="node-1", project_id=4711, project_name="our-project")


def ak_spki() -> bytes:
    """Return the attestation key of the machine."""
    assert KNOWN.tpm.ak_public is not None
    return parse_public(KNOWN.tpm.ak_public).spki_der()


def certificate(
    spki: bytes | None = None, authority: CertificateAuthority = CA, defect: AKDefect | None = None
) -> bytes:
    """Return a certificate of an attestation key that names an instance."""
    options = AKCertificateOptions(extensions=[(GCE, gce_instance_2018())], defect=defect)
    return make_ak_certificate(spki or ak_spki(), authority, at=AT, options=options)


def sent(certificate_: bytes | None = None, said: VMIdentity | None = None) -> UnverifiedContainer:
    """Return what came, of which only this is looked at here."""
    return UnverifiedContainer(
        layout=Layout.GKE_V1,
        csr_der=b"",
        attest=b"",
        signature=b"",
        vm_identity=said,
        ak_certificate=certificate_,
    )


def anchors(directory: Path, *authorities: CertificateAuthority) -> str:
    """Write the anchors of an extractor."""
    folder = directory / "anchors"
    folder.mkdir(exist_ok=True)
    for number, authority in enumerate(authorities):
        (folder / f"{number}.der").write_bytes(authority.certificate)
    return str(folder)


def identified(
    directory: Path,
    container_: UnverifiedContainer | None,
    of: Machine | None = KNOWN,
    kept: StoredAKCertificate | None = None,
    **rule: Any,
) -> Identified:
    """Return who sent something to a cluster that goes by certificates of instances."""
    chosen = {"identity": "gce-instance-2018", "identity_anchors": anchors(directory, CA)} | rule
    found = settings(directory, cluster(**chosen))
    (cluster_rule,) = found.clusters
    return ClusterIdentities(found).identify(container_, of, kept, cluster_rule, AT)


def test_the_certificate_of_the_key_names_the_machine(tmp_path: Path) -> None:
    """Of an activated key; and of one that nobody activated, of which then nothing but the certificate is known."""
    found = identified(tmp_path, sent(certificate(), VM))
    assert (found.answer, found.certified_ak) == (Answer.YES, None)
    assert found.identity is not None
    assert (found.identity.value, found.identity.machine_id) == (
        "gce/4711/europe-west1-b/1234", KNOWN.machine_id,
    )  # fmt: skip
    alone = identified(tmp_path, sent(certificate(), VM), UNACTIVATED)
    assert (alone.answer, alone.certified_ak) == (Answer.YES, ak_spki())
    assert alone.identity is not None
    assert alone.identity.machine_id is None


@pytest.mark.parametrize(
    "container_",
    [
        sent(None, VM),
        sent(certificate(SoftwareNode(9).ak.public.spki_der())),
        sent(certificate(authority=OTHER_CA)),
        sent(certificate(defect=AKDefect.EXPIRED)),
        sent(b"\x30\x00"),
        sent(make_ak_certificate(ak_spki(), CA, at=AT)),
        sent(certificate(), replace(VM, zone="us-east1-b")),
        sent(certificate(), replace(VM, id=1)),
        sent(certificate(), replace(VM, name="node-2")),
        sent(certificate(), replace(VM, project_id=1)),
        sent(certificate(), replace(VM, project_name="x")),
    ],
    ids=[
        "none",
        "key",
        "anchor",
        "expired",
        "bytes",
        "names-nobody",
        "zone",
        "id",
        "name",
        "number",
        "project",
    ],
)
def test_another_certificate_is_none_of_the_machine(tmp_path: Path, container_: UnverifiedContainer) -> None:
    """Of another key, by another CA, over, unreadable, of nobody; or the machine says of itself something else."""
    assert identified(tmp_path, container_) == Identified(answer=Answer.NO)


def test_where_no_machine_is_known_nobody_is(tmp_path: Path) -> None:
    """Whatever the certificate says; and without certificates, without an activated key."""
    assert identified(tmp_path, sent(certificate()), None).answer is Answer.NO
    plain: dict[str, Any] = {"identity": "machine", "identity_anchors": None}
    assert identified(tmp_path, sent(), UNACTIVATED, **plain).answer is Answer.NO
    found = identified(tmp_path, sent(certificate()), **plain)
    assert found.identity is not None
    assert (found.answer, found.identity.value) == (Answer.YES, f"machine/{KNOWN.machine_id}")


def kept(
    der: bytes, *, chain: tuple[bytes, ...] = (), ok: bool = True, ak_name: bytes | None = KNOWN.tpm.ak_name
) -> StoredAKCertificate:
    """Return what vouched for the machine's AK at its introduction."""
    assert ak_name is not None
    return StoredAKCertificate(
        machine_id=KNOWN.machine_id,
        ak_name=ak_name,
        spki_sha256="0" * 64,
        certificate=der,
        chain=chain,
        validation=PathValidation(ok=ok, reason="", bundle_sha256="0" * 64),
        judged_at=AT,
    )


ITL = replace(sent(), layout=Layout.ITL_V1)
ISSUER = CertificateAuthority("Issuer of instances", parent=CA, seed=3)
IAK = SoftwareNode(9).ak.public.spki_der()


@pytest.mark.parametrize(
    "known",
    [
        kept(certificate()),
        kept(certificate(IAK)),
        kept(certificate(authority=ISSUER), chain=(ISSUER.certificate,)),
    ],
    ids=["own", "of-the-key-that-vouched", "with-its-chain"],
)
@pytest.mark.parametrize("container_", [ITL, None], ids=["itl-v1", "serving"])
def test_what_vouched_at_the_introduction_names_the_machine(
    tmp_path: Path, known: StoredAKCertificate, container_: UnverifiedContainer | None
) -> None:
    """A container of ours carries no certificate: the one that was given before counts, by the same anchors."""
    found = identified(tmp_path, container_, kept=known)
    assert (found.answer, found.certified_ak) == (Answer.YES, None)
    assert found.identity is not None
    assert (found.identity.value, found.identity.machine_id) == (
        "gce/4711/europe-west1-b/1234", KNOWN.machine_id,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("known", "of"),
    [
        (None, KNOWN),
        (kept(certificate(), ak_name=b"\x00\x0b" + bytes(32)), KNOWN),
        (kept(certificate(), ok=False), KNOWN),
        (kept(certificate(authority=OTHER_CA)), KNOWN),
        (kept(certificate(authority=ISSUER)), KNOWN),
        (kept(certificate(defect=AKDefect.EXPIRED)), KNOWN),
        (kept(certificate()), UNACTIVATED),
    ],
    ids=["none", "another-ak", "distrusted", "anchor", "no-chain", "expired", "unactivated"],
)
def test_what_vouched_for_another_key_names_nobody(
    tmp_path: Path, known: StoredAKCertificate | None, of: Machine
) -> None:
    """For an AK of before, by whom operators believe no more, or by the word of another CA."""
    assert identified(tmp_path, ITL, of, kept=known) == Identified(answer=Answer.NO)


def test_what_came_goes_before_what_was_kept(tmp_path: Path) -> None:
    """A wrong certificate is not made good by one of before."""
    wrong = sent(certificate(IAK))
    assert identified(tmp_path, wrong, kept=kept(certificate())) == Identified(answer=Answer.NO)


class Foreign:
    """Somebody else's extractor, which fails otherwise than it may, or answers what is no identity."""

    name = "foreign"
    certified = False

    def __init__(self, fault: Exception | None) -> None:
        self._fault = fault

    def extract(self, source: IdentitySource) -> Any:
        """Fail."""
        if self._fault is not None:
            raise self._fault
        return source.hostname


@pytest.mark.parametrize("fault", [KeyError("x"), RecursionError(), OSError("away"), None])
async def test_an_extractor_that_fails_decides_nothing(
    start: Starter, monkeypatch: pytest.MonkeyPatch, fault: Exception | None
) -> None:
    """It is nobody's fault but its own: neither an approval nor a denial, and no error 500."""
    monkeypatch.setattr(node_identity, "SHIPPED", {**SHIPPED, "foreign": Foreign(fault)})
    service = await serving(start, rule={"identity": "foreign"})
    node = await admitted(service)
    content = body(container(node, await challenged(service, node)))
    answer = await ask(service, "appraise", content)
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:itl:problem:unavailable")
    bad = body(container(node, await challenged(service, node), hostname="w-2"), uid="2")
    assert (await decision(service, bad))["reason"] == "SubjectInvalid"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"identity": "gce-instance"}, "gce-instance needs identity_anchors"),
        ({"identity_anchors": "/x"}, "machine reads no certificate"),
        ({"identity": "nobody-has-it"}, "none is installed"),
        ({"identity": "gce-instance", "identity_anchors": "/does/not/exist"}, "/does/not/exist"),
        ({"membership": "file"}, "its options are path"),
        ({"membership": "machine", "membership_options": {"x": "y"}}, "its options are none"),
    ],
)
def test_what_cannot_be_used_stops_the_start(tmp_path: Path, rule: dict[str, Any], words: str) -> None:
    """In words, with the cluster."""
    with pytest.raises(SettingsInvalid, match="ITL_KUBERNETES_CLUSTERS: default: ") as raised:
        ClusterIdentities(settings(tmp_path, cluster(**rule)))
    assert words in str(raised.value)


# ---------------------------------------------------------------- membership, over HTTP


def members(directory: Path, listed: dict[str, str]) -> dict[str, Any]:
    """Write a list of members, and return what a rule says of it."""
    file = directory / "members.json"
    file.write_text(json.dumps({"format": "itl-node-members/1", "members": listed}))
    return {"membership": "file", "membership_options": {"path": str(file)}}


async def asked(service: Service, hostname: str = "w-1") -> dict[str, Any]:
    """Have a good request decided."""
    node = await admitted(service, hostname)
    return await decision(service, body(container(node, await challenged(service, node), hostname=hostname)))


@pytest.mark.parametrize("listed", [{}, {"machine/00000000-0000-4000-8000-000000000000": "w-1"}])
async def test_who_is_not_on_the_list_is_no_member(start: Starter, listed: dict[str, str]) -> None:
    """Whatever its TPM proves."""
    service = await serving(start, rule=members(start.directory, listed))
    found = await asked(service)
    assert (found["decision"], found["reason"]) == ("deny", "NotMember")


@pytest.mark.parametrize(("name", "reason"), [("w-1", APPROVED), ("w-2", "NotMember")])
async def test_a_member_has_the_name_of_the_list(
    start: Starter, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    """And no other one."""
    service = await serving(start)
    node = await admitted(service)
    listed = members(start.directory, {f"machine/{node.machine_id}": name})
    again = await serving(start, service.clock, rule=listed)
    found = await decision(again, body(container(node, await challenged(again, node))))
    assert found["reason"] == reason


async def test_a_provider_that_does_not_answer_approves_nothing(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, and the challenge is still good; one that is not needed is not asked."""
    service = await serving(start)
    node = await admitted(service)
    content = body(container(node, await challenged(service, node)))
    calls: list[Sequence[Any]] = []

    async def nothing(*args: Any) -> Undecided:
        calls.append(args)
        return Undecided(reason="away")

    with monkeypatch.context() as patched:
        patched.setattr(node_identity.Asking, "is_member", nothing)
        assert (await ask(service, "appraise", content)).status_code == 503
        assert len(calls) == 1
        bad = body(container(node, await challenged(service, node), hostname="w-2"), uid="2")
        assert (await decision(service, bad))["reason"] == "SubjectInvalid"
        assert len(calls) == 1
    assert (await decision(service, content))["reason"] == APPROVED


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (Member(node_name="w-1"), APPROVED),
        (Member(node_name="w-2"), "NotMember"),
        (NotMember(reason="it left"), "NotMember"),
        (Undecided(reason="away"), "503"),
    ],
    ids=["member", "by-another-name", "left", "away"],
)
async def test_a_serving_certificate_is_for_members_too(
    start: Starter, monkeypatch: pytest.MonkeyPatch, says: Membership, expected: str
) -> None:
    """Who left the cluster after the client certificate gets none; nobody is asked about what is not good."""
    service = await serving(start)
    node = await admitted(service)
    assert (await decision(service, body(container(node, await challenged(service, node)))))[
        "reason"
    ] == APPROVED
    asked: list[NodeIdentity] = []

    async def answer(_self: object, _provider: object, identity: NodeIdentity) -> Membership:
        asked.append(identity)
        return says

    def request(uid: str, *names: str) -> dict[str, Any]:
        der = pkcs10(ecc_key(), "w-1", names=[x509.DNSName(each) for each in names])
        return body(
            x509.load_der_x509_csr(der).public_bytes(Encoding.PEM),
            uid=uid,
            signer_name=SERVING,
            username="system:node:w-1",
            groups=["system:nodes", "system:authenticated"],
            usages=["digital signature", "server auth"],
        )

    monkeypatch.setattr(node_identity.Asking, "is_member", answer)
    assert (await decision(service, request("2", "w-1", "api")))["reason"] == "SubjectInvalid"
    assert not asked
    found = await ask(service, "appraise", request("3", "w-1"))
    assert (found.json()["reason"] if found.status_code == 200 else str(found.status_code)) == expected
    assert [each.value for each in asked] == [f"machine/{node.machine_id}"]


async def test_a_serving_certificate_where_certificates_come_with_the_evidence(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is named by a request without evidence: the client certificate before it counts."""
    service = await serving(start)
    node = await admitted(service)
    await decision(service, body(container(node, await challenged(service, node))))
    monkeypatch.setattr(ClusterIdentities, "identify", lambda *_: Identified(answer=Answer.NO))
    der = pkcs10(ecc_key(), "w-1", names=[x509.DNSName("w-1")])
    content = body(
        x509.load_der_x509_csr(der).public_bytes(Encoding.PEM),
        uid="2",
        signer_name=SERVING,
        username="system:node:w-1",
        groups=["system:nodes", "system:authenticated"],
        usages=["digital signature", "server auth"],
    )
    assert (await decision(service, content))["reason"] == APPROVED
