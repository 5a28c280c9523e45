"""Who a node is and whether it is a member, as operators chose for its cluster: compared, asked last, never guessed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from attestation.appraisal.node_csr import Answer
from attestation.endorsements.membership import Undecided
from attestation.evidence.node_csr import Layout, UnverifiedContainer, VMIdentity
from attestation.machines import Machine
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
from tests.unit.service.node_requests import (
    APPROVED,
    admitted,
    ask,
    body,
    challenged,
    container,
    decision,
    serving,
)
from tests.unit.service.test_service_accounts import cluster, settings

pytestmark = pytest.mark.anyio

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
GCE = "1.3.6.1.4.1.11129.2.1.21"
CA = CertificateAuthority("Instances", seed=1)
OTHER_CA = CertificateAuthority("Others", seed=2)
KNOWN = machine()
UNACTIVATED = replace(KNOWN, tpm=replace(KNOWN.tpm, ak_public=None, ak_name=None))
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
    directory: Path, container_: UnverifiedContainer, of: Machine | None = KNOWN, **rule: Any
) -> Identified:
    """Return who sent something to a cluster that goes by certificates of instances."""
    chosen = {"identity": "gce-instance-2018", "identity_anchors": anchors(directory, CA)} | rule
    found = settings(directory, cluster(**chosen))
    (cluster_rule,) = found.clusters
    return ClusterIdentities(found).identify(container_, of, cluster_rule, AT)


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
