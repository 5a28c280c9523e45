"""The specification is enough: tpm2-tools and an HTTP client make a node (PROTOCOL.md, FAULTS R8, E3)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.tools_node import MISSING, Refused, ToolFailed, ToolsNode, software_tpm
from tests.fixtures.service import Operator, ServiceProcess

pytestmark = [
    pytest.mark.swtpm,
    pytest.mark.tpm2_tools,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Which keys a node has."""

    ek: str
    ak: tuple[str, str]
    certificate: bool = False

    def __str__(self) -> str:
        return f"{self.ek}-ek-{'-'.join(self.ak)}{'-certificate' if self.certificate else ''}"


KINDS = [
    Kind(ek="rsa", ak=("ecc", "ecdsa"), certificate=True),
    Kind(ek="rsa", ak=("rsa", "rsassa")),
    Kind(ek="rsa", ak=("rsa", "rsapss")),
    Kind(ek="ecc", ak=("ecc", "ecdsa")),
    Kind(ek="ecc", ak=("ecc384", "ecdsa")),
    Kind(ek="ecc", ak=("rsa", "rsassa")),
]


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every kind of EK with every kind of AK."""
    found: Kind = request.param
    return found


@pytest.fixture
def node(kind: Kind, service: ServiceProcess, tmp_path: Path) -> Iterator[ToolsNode]:
    """A node of this kind, not yet introduced."""
    with (
        software_tpm(tmp_path, ek_certificate=kind.certificate) as tools,
        ToolsNode(tools, service.url, ek=kind.ek, ak=kind.ak) as node,
    ):
        yield node


@pytest.fixture
def rsa_node(service: ServiceProcess, tmp_path: Path) -> Iterator[ToolsNode]:
    """A node with an RSA EK and an ECC AK, activated."""
    with (
        software_tpm(tmp_path, ek_certificate=False) as tools,
        ToolsNode(tools, service.url, ek="rsa", ak=("ecc", "ecdsa")) as node,
    ):
        node.activate(node.introduce())
        yield node


def test_a_machine_goes_from_nothing_to_an_opened_configuration_and_a_wipe(
    node: ToolsNode, kind: Kind, service: ServiceProcess, operator: Operator
) -> None:
    """Introduce, activate, approval, attest, sealed config, lock, revoke with wipe, acknowledge."""
    # Introduced: the answer names an id, and no machine of that id exists.
    more = {}
    if kind.certificate:
        more = {"ek_source": "cert", "ek_cert_pem": base64.b64encode(node.ek_certificate()).decode()}
    activation = node.introduce(**more)
    assert node.status == "pending_approval"
    assert operator.request("GET", f"/machines/{node.machine_id}").status_code == 404

    # Activated: now it exists, without role, and waits for an operator, whatever it wished.
    answer = node.activate(activation)
    assert (answer["ak_accepted"], answer["status"], answer["role"]) == (True, "pending_approval", None)
    assert not answer.get("config_token")
    shown = operator.machine(node.machine_id)
    assert shown["ek_fingerprint"] == node.ek_fingerprint
    assert shown["ek_source"] == ("cert" if kind.certificate else "pub")
    assert (shown["desired_role"], shown["role"]) == ("controlplane", None)

    # Attests while it waits: nothing is to be done, and the operator sees the result.
    answer = node.attest()
    assert (answer["status"], answer["action"]) == ("pending_approval", "none")
    assert not answer.get("config_token")
    assert operator.machine(node.machine_id)["trust"] == "verified"

    # Approved: the next attestation brings the token.
    operator.approve(node.machine_id, hostname="w-1", assigned_ip="10.0.0.11/24")
    answer = node.attest(want_result=True)
    assert (answer["status"], answer["action"]) == ("attested", "apply-config")
    assert (answer["hostname"], answer["role"]) == ("w-1", "worker-app")
    assert node.verified(answer["attestation_result"])

    # Sealed to this TPM and AK; inside is the base of the role with this machine's values.
    envelope = node.fetch(answer["config_token"])
    config = node.unseal(envelope).decode()
    assert service.canary in config
    assert "w-1" in config
    assert "10.0.0.11/24" in config
    assert node.machine_id in config
    assert node.fetch(answer["config_token"]) == envelope, (
        "a repeated fetch is the same answer, byte for byte"
    )

    # Acknowledged: in steady state nothing is to be done, and nothing is signed.
    node.acknowledge(answer["directive"])
    answer = node.attest()
    assert (answer["status"], answer["action"]) == ("attested", "none")
    assert answer.get("directive") is None

    # Locked, unlocked, revoked with a wipe: each told by a directive over the nonce just used.
    operator.act(node.machine_id, "lock", reason="maintenance")
    assert node.attest()["action"] == "lock"
    operator.act(node.machine_id, "unlock")
    answer = node.attest()
    assert answer["action"] == "unlock"
    node.acknowledge(answer["directive"])
    assert node.attest()["action"] == "none"
    operator.act(node.machine_id, "revoke", wipe=True, reason="retired")
    answer = node.attest()
    assert (answer["status"], answer["action"]) == ("revoked", "wipe")
    assert operator.machine(node.machine_id)["wiped_at"] is None

    # Acknowledged before the wipe; the row says so, and the machine is told nothing more.
    node.acknowledge(answer["directive"])
    shown = operator.machine(node.machine_id)
    assert shown["wiped_at"] is not None
    assert shown["wipe_pending"] is False
    assert node.attest()["action"] == "none"
    assert operator.audit_is_valid()


@pytest.mark.threat("T14")
def test_our_quotes_convince_tpm2_checkquote(rsa_node: ToolsNode) -> None:
    """The service and tpm2_checkquote agree about one quote, and about the same quote with a bit flipped."""
    challenge = rsa_node.challenge()
    nonce = base64.b64decode(challenge["nonce"])
    body = rsa_node.evidence(challenge)
    tools = rsa_node.tools
    tools("readpublic", "-c", "ak.ctx", "-f", "pem", "-o", "ak.pem")
    check = ("-u", "ak.pem", "-s", "quote.sig", "-f", "quote.pcrs", "-g", "sha256", "-q", nonce.hex())
    tools("checkquote", "-m", "quote.msg", *check)
    assert rsa_node.post("/attest", body)["status"] == "pending_approval"

    # A bit of the clock: nothing but the signature is about it.
    flipped = bytearray(tools.bytes("quote.msg"))
    flipped[80] ^= 1
    tools.path("flipped.msg").write_bytes(flipped)
    with pytest.raises(ToolFailed):
        tools("checkquote", "-m", "flipped.msg", *check)
    challenge = rsa_node.challenge()
    body = rsa_node.evidence(challenge)
    signed = bytearray(base64.b64decode(body["pcr_quote"]))
    signed[80] ^= 1
    with pytest.raises(Refused) as refused:
        rsa_node.post("/attest", body | {"pcr_quote": base64.b64encode(signed).decode()})
    assert refused.value.code == "evidence-rejected"


@pytest.mark.threat("T6")
def test_a_reset_ak_is_replaced_only_after_an_operator_said_so(
    rsa_node: ToolsNode, operator: Operator
) -> None:
    """A second AK by tpm2_createak: 409, until an operator resets the first; then the first is nobody."""
    old = rsa_node.evidence(rsa_node.challenge())
    rsa_node.create_ak("rsa", "rsassa")
    with pytest.raises(Refused) as refused:
        rsa_node.introduce()
    assert (refused.value.status, refused.value.code) == (409, "ak-conflict")

    operator.act(rsa_node.machine_id, "ak-reset", reason="board repaired")
    with pytest.raises(Refused) as refused:
        rsa_node.post("/attest", old)
    assert refused.value.code in ("ak-not-activated", "challenge-unknown")
    rsa_node.activate(rsa_node.introduce())
    assert rsa_node.attest()["status"] == "pending_approval"


def test_a_proof_with_another_secret_is_refused(rsa_node: ToolsNode) -> None:
    """Knowing everything but the secret is not enough, and the failed proof spends the challenge."""
    activation = rsa_node.introduce()
    path = f"/machines/{rsa_node.machine_id}/ak-activate"
    proof = rsa_node.proof(activation, b"\0" * 32)
    for expected in ((403, "activation-failed"), (409, "challenge-used")):
        with pytest.raises(Refused) as refused:
            rsa_node.post(path, {"challenge_id": activation["challenge_id"], "proof": proof})
        assert (refused.value.status, refused.value.code) == expected


def test_the_older_fingerprint_is_understood_too(rsa_node: ToolsNode) -> None:
    """SHA-384 of the public area as sent, in upper case: the same machine (PROTOCOL §0)."""
    older = hashlib.sha384(rsa_node.ek_public).hexdigest().upper()
    machine_id = rsa_node.machine_id
    rsa_node.introduce(ek_fingerprint=older)
    assert rsa_node.machine_id == machine_id


def test_the_credential_is_bound_to_the_ak(rsa_node: ToolsNode) -> None:
    """A credential for one AK does not open for another AK of the same TPM: the TPM itself refuses."""
    activation = rsa_node.introduce()
    blob, secret = (base64.b64decode(activation[n]) for n in ("credential_blob", "encrypted_secret"))
    assert len(rsa_node.open_credential(blob, secret)) == 32
    rsa_node.create_ak("rsa", "rsassa")
    with pytest.raises(ToolFailed, match="integrity"):
        rsa_node.open_credential(blob, secret)


def test_the_proof_of_the_specification_is_the_proof_of_the_page(rsa_node: ToolsNode) -> None:
    """The HMAC is over exactly what PROTOCOL §2 says: one separator more or less is another proof."""
    activation = rsa_node.introduce()
    secret = rsa_node.open_credential(
        *(base64.b64decode(activation[n]) for n in ("credential_blob", "encrypted_secret"))
    )
    message = b"itl-ak-activate-v1\0" + rsa_node.machine_id.encode() + activation["challenge_id"].encode()
    message += hashlib.sha256(rsa_node.ek_public).digest() + rsa_node.tools.bytes("ak.name")
    wrong = base64.b64encode(hmac.digest(secret, message, "sha256")).decode()
    with pytest.raises(Refused) as refused:
        rsa_node.post(
            f"/machines/{rsa_node.machine_id}/ak-activate",
            {"challenge_id": activation["challenge_id"], "proof": wrong},
        )
    assert refused.value.code == "activation-failed"
