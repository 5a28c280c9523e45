"""No sequence of unauthenticated requests yields a config, token, certificate or role (FAULTS R1-R5).

Each scenario is an attack over HTTP, made with software TPMs. Three things must hold: it is refused with the
documented code, operators see the same world afterwards, and no answer held a secret (`Scene`).
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from attestation.device import AKType, Identity, NodeTPM, Quote
from attestation.device.node import AK_TEMPLATES
from attestation.errors import TPMResponseError
from attestation.tpm import Attr, PCRSelection
from attestation_service.settings import Settings
from attestation_testing import (
    CertificateAuthority,
    EKCertificateOptions,
    SoftwareAK,
    SoftwareEK,
    SoftwareNode,
    SoftwareTPM,
    ak_template,
)
from tests.fixtures.in_process import HeldClock, InProcessService, in_process_service
from tests.fixtures.machine import Machine, b64, refused
from tests.fixtures.tpm import MakeTPM
from tests.scenarios.conftest import MakeDevice
from tests.scenarios.scene import Scene

pytestmark = pytest.mark.swtpm

DEFAULT_LIMITS = {
    name: Settings.model_fields[name].default
    for name in Settings.model_fields
    if name.startswith("rate_limit_")
}
REGISTERED_VENDOR = EKCertificateOptions(manufacturer="id:49465800")


@pytest.fixture
def victim(scene: Scene, make_device: MakeDevice) -> Machine:
    """A machine that an operator admitted and that attested; its config is not fetched yet."""
    machine = scene.machine(make_device("victim", certificate=True), hw_mac="52:54:00:00:00:01")
    machine.admitted(scene.operator)
    return machine


@pytest.fixture
def mallory(scene: Scene, make_device: MakeDevice) -> Machine:
    """A machine with a TPM of its own that nobody admitted; not introduced yet."""
    return scene.stranger(make_device("mallory"))


# Who one is


@pytest.mark.threat("T3")
def test_a_self_made_ek_gets_no_further_than_the_waiting_room(
    scene: Scene, tpm_ca: CertificateAuthority
) -> None:
    """A key pair in Python with a self-made certificate of a real vendor: shown as unproven, given nothing."""
    node = SoftwareNode(
        secrets.randbits(64), authority=tpm_ca, at=datetime.now(UTC), options=REGISTERED_VENDOR
    )
    forger = scene.stranger(node)
    forger.enrol(desired_role="controlplane", hw_mac="52:54:00:00:00:01")
    shown = scene.operator.machine(forger.machine_id)
    assert (shown["status"], shown["role"]) == ("pending_approval", None)
    assert (shown["assurance"], shown["ek_chain_ok"], shown["ek_allow_listed"]) == ("tofu", False, False)
    for _ in range(3):
        answer = forger.attest(want_result=True)
        assert (answer["status"], answer["action"]) == ("pending_approval", "none")
        assert answer.get("role") is None


@pytest.mark.threat("T3")
def test_an_ek_of_no_template_is_refused(scene: Scene, mallory: Machine) -> None:
    """Any decryption key would open a credential; only what equals a TCG template may play an EK."""
    public = bytearray(SoftwareEK("L-2").public.tpm2b())
    public[2 + 7] &= ~0x02  # fixedTPM
    with scene.nothing_changes():
        answer = mallory.introduce(ek_public=b64(bytes(public)))
        assert refused(answer) == (403, "ek-template-rejected")


@pytest.mark.threat("T4")
def test_a_copied_ek_certificate_over_another_ek_is_refused(
    scene: Scene, victim: Machine, mallory: Machine
) -> None:
    """The certificate of a stranger beside one's own EK (R1)."""
    with scene.nothing_changes():
        answer = mallory.introduce(ek_source="cert", ek_cert_pem=b64(victim.identity.ek_certificate or b""))
        assert refused(answer) == (403, "ek-certificate-rejected")


def test_a_second_tpm_with_the_same_certificate_is_refused(
    scene: Scene, victim: Machine, make_tpm: MakeTPM
) -> None:
    """A certificate written into another TPM's NV: that TPM has no such key, whatever its NV says."""
    twin = make_tpm("twin")
    twin.install_certificate(victim.identity.ek_certificate or b"")
    with twin.node() as device, scene.nothing_changes():
        stranger = scene.stranger(device)
        assert stranger.identity.ek_source == "pub", "our own agent does not even claim it"
        certified = {"ek_source": "cert", "ek_cert_pem": b64(victim.identity.ek_certificate or b"")}
        assert refused(stranger.introduce(**certified)) == (403, "ek-certificate-rejected")


def test_the_copied_ek_and_certificate_of_an_admitted_machine_lead_to_a_conflict(
    scene: Scene, victim: Machine, mallory: Machine
) -> None:
    """All that is public about a machine, with an AK of one's own (R4)."""
    copied = victim.introduction(ak_public=b64(mallory.device.ak_public()), hw_serial="changed")
    with scene.nothing_changes():
        assert refused(mallory.post("/self-register", copied)) == (409, "ak-conflict")
        assert refused(mallory.post("/register", copied)) == (409, "ak-conflict")


@pytest.mark.threat("T1")
def test_the_copied_introduction_of_an_admitted_machine_opens_nothing(
    scene: Scene, victim: Machine, mallory: Machine
) -> None:
    """The whole introduction of a machine, word for word: the credential opens only in its TPM."""
    with scene.nothing_changes():
        answer = mallory.post("/self-register", victim.introduction())
        assert answer.json()["machine_id"] == victim.machine_id
        offer = answer.json()["activation"]
        with pytest.raises(TPMResponseError):
            mallory.activation(answer.json())
        guess = {"challenge_id": offer["challenge_id"], "proof": b64(secrets.token_bytes(32))}
        assert refused(mallory.activate(guess, victim.machine_id)) == (403, "activation-failed")
        assert refused(mallory.activate(guess, victim.machine_id)) == (409, "challenge-used")
    assert victim.attest()["status"] == "attested", "the machine itself notices nothing"


@pytest.mark.threat("T2")
def test_no_machine_exists_before_its_activation(scene: Scene, mallory: Machine) -> None:
    """Introductions only make challenges, however many (R2)."""
    with scene.nothing_changes():
        for path in ("/self-register", "/register"):
            answer = mallory.introduce(path, desired_role="controlplane")
            assert answer.status_code == 200
            found = scene.operator.request("GET", f"/machines/{answer.json()['machine_id']}")
            assert found.status_code == 404
            asked = mallory.http.get(
                "/api/v1/attest/challenge", params={"machine_id": answer.json()["machine_id"]}
            )
            assert refused(asked) == (404, "machine-unknown")


# The attestation key


@pytest.mark.threat("T5")
@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        (Attr.RESTRICTED | Attr.SIGN_ENCRYPT | Attr.USER_WITH_AUTH, "a software key brought into a TPM"),
        (Attr.SIGN_ENCRYPT | Attr.USER_WITH_AUTH, "a software key, unrestricted"),
        (AK_TEMPLATES[AKType.ECC_P256][4:8], "without fixedTPM"),
    ],
    ids=["imported", "unrestricted", "without-fixedTPM"],
)
def test_a_software_ak_that_says_so_is_refused(
    scene: Scene, mallory: Machine, attributes: int | bytes, why: str
) -> None:
    """A key that can be outside of a TPM cannot say honestly that it cannot (R4)."""
    if isinstance(attributes, bytes):
        attributes = int.from_bytes(attributes) & ~Attr.FIXED_TPM
    fake = SoftwareAK(ak_template(attributes=attributes))
    with scene.nothing_changes():
        answer = mallory.introduce(ak_public=b64(fake.public.tpm2b()))
        assert refused(answer) == (403, "ak-attributes-rejected"), why


@pytest.mark.threat("T5")
def test_a_software_ak_that_lies_cannot_be_activated(scene: Scene, make_tpm: MakeTPM) -> None:
    """With fixedTPM set, no TPM opens a credential for a key that it does not hold (TPM.md §3.1)."""
    fake = SoftwareAK()
    with make_tpm("liar").node() as device, scene.nothing_changes():
        liar = scene.stranger(device)
        answer = liar.introduce(ak_public=b64(fake.public.tpm2b()))
        assert answer.status_code == 200, "its public area looks good; that is why activation exists"
        with pytest.raises(TPMResponseError):
            liar.activation(answer.json())
        body = {"challenge_id": answer.json()["activation"]["challenge_id"], "proof": b64(bytes(32))}
        assert refused(liar.activate(body)) == (403, "activation-failed")
        assert refused(liar.http.get("/api/v1/attest/challenge", params={"machine_id": liar.machine_id})) == (
            404,
            "machine-unknown",
        )


@pytest.mark.threat("T6")
def test_a_second_ak_of_the_same_tpm_waits_for_an_operator(
    scene: Scene, make_tpm: MakeTPM, tpm_ca: CertificateAuthority
) -> None:
    """Even the machine itself cannot replace its AK (R4)."""
    tpm = make_tpm("restless")
    with tpm.node() as device:
        scene.machine(device).admitted(scene.operator)
    with tpm.node(ak=AKType.RSA_2048) as device, scene.nothing_changes():
        assert refused(scene.stranger(device).introduce()) == (409, "ak-conflict")


# Quotes


@pytest.mark.threat("T9")
def test_a_replayed_quote_is_refused(scene: Scene, victim: Machine, mallory: Machine) -> None:
    """A captured attestation again, and its quote under a fresh challenge (R11, R13)."""
    evidence = victim.evidence(victim.challenge())
    assert victim.send(evidence).is_success
    with scene.nothing_changes():
        assert refused(mallory.send(evidence)) == (409, "challenge-used")
        mallory.machine_id = victim.machine_id
        fresh = mallory.challenge()
        replayed = evidence | {"nonce_id": fresh["nonce_id"]}
        assert refused(mallory.send(replayed)) == (403, "evidence-rejected")
        assert refused(mallory.send(replayed)) == (409, "challenge-used"), "refused evidence spends it too"
    assert victim.attest()["status"] == "attested"


@pytest.mark.threat("T9")
def test_a_quote_for_another_machine_is_refused(scene: Scene, victim: Machine, mallory: Machine) -> None:
    """A good TPM, a good quote, somebody else's name and challenge."""
    mallory.enrol()
    own_id = mallory.machine_id
    with scene.nothing_changes():
        own = mallory.challenge()
        mallory.machine_id = victim.machine_id
        theirs = mallory.challenge()
        as_victim = {"machine_id": victim.machine_id, "ek_fingerprint": victim.ek_fingerprint}
        assert refused(mallory.send(mallory.evidence(theirs, **as_victim))) == (403, "evidence-rejected")
        assert refused(mallory.send(mallory.evidence(own, **as_victim))) == (404, "challenge-unknown")
        mallory.machine_id = own_id
        named = mallory.evidence(own, ek_fingerprint=victim.ek_fingerprint)
        assert refused(mallory.send(named)) == (422, "ek-fingerprint-mismatch")


def test_a_quote_of_another_ak_is_refused(scene: Scene, make_tpm: MakeTPM) -> None:
    """The right TPM and the right challenge, but not the key that was activated."""
    tpm = make_tpm("two-keys")
    with tpm.node() as device:
        machine = scene.machine(device)
        machine.admitted(scene.operator)
    with tpm.node(ak=AKType.RSA_2048) as device, scene.nothing_changes():
        other = scene.stranger(device)
        other.machine_id = machine.machine_id
        assert refused(other.send(other.evidence(other.challenge()))) == (403, "evidence-rejected")


@pytest.mark.threat("T9")
def test_a_quote_made_in_software_is_refused(scene: Scene, victim: Machine) -> None:
    """A TPMS_ATTEST by hand, perfect but for the signature."""

    class Forger:
        """Claims to be the victim's TPM."""

        def identify(self) -> Identity:
            return victim.identity

        def ak_public(self) -> bytes:
            return victim.device.ak_public()

        def activate(self, credential_blob: bytes, encrypted_secret: bytes) -> bytes:
            return secrets.token_bytes(32)

        def quote(self, qualifying_data: bytes, selection: PCRSelection) -> Quote:
            return SoftwareAK().quote(qualifying_data, selection)

    with scene.nothing_changes():
        forger = scene.stranger(Forger())
        forger.machine_id = victim.machine_id
        assert refused(forger.send(forger.evidence(forger.challenge()))) == (403, "evidence-rejected")
        offer = forger.introduce().json()
        assert refused(forger.activate(forger.activation(offer))) == (403, "activation-failed")


# Names that prove nothing


@pytest.mark.threat("T1")
def test_a_guessed_mac_uuid_or_serial_releases_nothing(
    scene: Scene, victim: Machine, mallory: Machine
) -> None:
    """Two machines claim one MAC, and both exist; asking by it shows the same to everybody (R3)."""
    claimed = {"hw_mac": "52:54:00:00:00:01", "hw_uuid": str(uuid.uuid4()), "hw_serial": "S-1"}
    mallory.enrol(**claimed)
    assert mallory.machine_id != victim.machine_id
    shown = scene.operator.machine(mallory.machine_id)
    assert (shown["hw_mac"], shown["status"]) == (claimed["hw_mac"], "pending_approval")
    with scene.nothing_changes():
        for accept in (None, "application/yaml", "application/vnd.itl.config.encrypted+json", "*/*"):
            headers = {"Accept": accept} if accept else {}
            answers = [
                mallory.http.get("/api/v1/config", params=params, headers=headers)
                for params in (
                    {"mac": claimed["hw_mac"], "uuid": claimed["hw_uuid"], "serial": "S-1"},
                    {"mac": claimed["hw_mac"].replace(":", "-")},
                    {"mac": "52:54:00:ff:ff:ff"},
                    {},
                )
            ]
            assert {a.status_code for a in answers} <= {200, 204}
            assert len({a.content for a in answers}) == 1, "a stranger cannot tell a known MAC from another"
            assert "v1alpha1" not in answers[0].text.replace("v1alpha1\nkind: ExtensionServiceConfig", "")


@pytest.mark.threat("T2")
def test_a_desired_role_is_never_obeyed(scene: Scene, mallory: Machine) -> None:
    """It is shown to the operator, and that is all (R2)."""
    answer = mallory.enrol(desired_role="controlplane")
    assert answer["role"] is None
    shown = scene.operator.machine(mallory.machine_id)
    assert (shown["desired_role"], shown["role"], shown["status"]) == (
        "controlplane",
        None,
        "pending_approval",
    )
    scene.operator.approve(mallory.machine_id, "generic")
    assert scene.operator.machine(mallory.machine_id)["role"] == "generic"


@pytest.mark.threat("T1")
def test_a_header_that_names_an_ek_is_nothing(scene: Scene, victim: Machine, mallory: Machine) -> None:
    """`X-EK-Fingerprint` and its kin on every route of machines and some of operators (R1, R16)."""
    headers = {
        "X-EK-Fingerprint": victim.ek_fingerprint,
        "X-EK-Cert": b64(victim.identity.ek_certificate or b""),
        "X-Machine-ID": victim.machine_id,
        "X-SSL-Client-Verify": "SUCCESS",
        "X-Forwarded-For": "127.0.0.1",
    }
    mallory.machine_id = victim.machine_id
    with scene.nothing_changes():
        for method, path in (
            ("GET", "/machines"),
            ("GET", f"/machines/{victim.machine_id}"),
            ("POST", f"/machines/{victim.machine_id}/approve"),
            ("GET", "/audit"),
        ):
            # A body behind a GET would end the connection: nobody reads it.
            body: dict[str, str] | None = {} if method == "POST" else None
            answer = mallory.http.request(method, f"/api/v1{path}", headers=headers, json=body)
            assert refused(answer) == (401, "unauthenticated")
            assert "www-authenticate" in answer.headers
            # A certificate from a stranger is not merely as if absent: somebody tries to be a proxy.
            named = {**headers, "X-Client-Cert": b64(victim.identity.ek_certificate or b"")}
            answer = mallory.http.request(method, f"/api/v1{path}", headers=named, json=body)
            assert refused(answer) == (403, "client-cert-untrusted")
        evidence = mallory.evidence(mallory.challenge(), ek_fingerprint=victim.ek_fingerprint)
        assert refused(mallory.send(evidence, **headers)) == (403, "evidence-rejected")
        acknowledgement = mallory.acknowledgement("a.b.c")
        answer = mallory.post(f"/machines/{victim.machine_id}/ack", acknowledgement, **headers)
        assert refused(answer) == (403, "evidence-rejected")
        answer = mallory.http.get("/api/v1/config", headers=headers)
        assert answer.status_code == 200


def test_the_fingerprint_of_a_stranger_is_refused(scene: Scene, victim: Machine, mallory: Machine) -> None:
    """One's own EK under another's fingerprint, and another's certificate hash (PROTOCOL §0)."""
    with scene.nothing_changes():
        for named in (victim.ek_fingerprint, "0" * 96, "0" * 64):
            answer = mallory.introduce(ek_fingerprint=named)
            assert refused(answer) == (422, "ek-fingerprint-mismatch")


# Activation


@pytest.mark.threat("T7")
def test_a_replayed_activation_is_refused(scene: Scene, make_device: MakeDevice) -> None:
    """A captured proof again, and under a new challenge of the same machine (N63, N70)."""
    machine = scene.machine(make_device("captured"))
    offer = machine.introduce().json()
    proof = machine.activation(offer)
    assert machine.activate(proof).is_success
    stranger = scene.http()
    path = f"/api/v1/machines/{machine.machine_id}/ak-activate"
    with scene.nothing_changes():
        assert refused(stranger.post(path, json=proof)) == (409, "challenge-used")
        again = stranger.post("/api/v1/self-register", json=machine.introduction()).json()
        body = proof | {"challenge_id": again["activation"]["challenge_id"]}
        assert refused(stranger.post(path, json=body)) == (403, "activation-failed")


@pytest.mark.threat("T7")
def test_the_activation_of_somebody_elses_challenge_is_refused(
    scene: Scene, mallory: Machine, make_device: MakeDevice
) -> None:
    """Another's challenge under one's own id, one's own under another's, another's with one's own proof."""
    other = scene.stranger(make_device("other"))
    with scene.nothing_changes():
        theirs, own = other.introduce().json(), mallory.introduce().json()
        body = mallory.activation(own)
        stolen = body | {"challenge_id": theirs["activation"]["challenge_id"]}
        assert refused(mallory.activate(stolen, mallory.machine_id)) == (404, "challenge-unknown")
        assert refused(mallory.activate(body, other.machine_id)) == (404, "challenge-unknown")
        assert refused(mallory.activate(stolen, other.machine_id)) == (403, "activation-failed")
        assert refused(other.activate(other.activation(theirs))) == (409, "challenge-used")


# Tokens


def registration_token(scene: Scene, **other: Any) -> dict[str, Any]:
    """Have the operator issue one."""
    body = {"role": "worker-app", "expires_in_seconds": 60, "minimum_assurance": "tofu"} | other
    token: dict[str, Any] = scene.operator.call("POST", "/registration-tokens", json=body)
    return token


@pytest.mark.threat("T21")
@pytest.mark.parametrize("guess", ["0", "x" * 43, "../../etc/passwd", "%00", "' OR 1=1 --"])
def test_a_guessed_registration_token_admits_nobody(scene: Scene, mallory: Machine, guess: str) -> None:
    """Neither a short, a long nor a curious one."""
    registration_token(scene)
    with scene.nothing_changes():
        answer = mallory.introduce("/register", registration_token=guess)
        assert refused(answer) == (403, "registration-token-invalid")


@pytest.mark.threat("T21")
def test_a_spent_or_revoked_registration_token_admits_nobody(
    scene: Scene, mallory: Machine, make_device: MakeDevice
) -> None:
    """One use is one machine, also for two that hold the token at the same time; a revoked one is none."""
    token = registration_token(scene)
    first, second = scene.machine(make_device("first")), mallory
    offers = [m.introduce("/register", registration_token=token["token"]).json() for m in (first, second)]
    answer = first.activate(first.activation(offers[0])).json()
    assert (answer["status"], answer["role"]) == ("registered", "worker-app")
    with scene.nothing_changes():
        late = second.activate(second.activation(offers[1]))
        assert refused(late) == (403, "registration-token-invalid")
        answer_ = second.introduce("/register", registration_token=token["token"])
        assert refused(answer_) == (403, "registration-token-invalid")

    token = registration_token(scene, uses=5)
    scene.operator.call("DELETE", f"/registration-tokens/{token['token_id']}")
    with scene.nothing_changes():
        answer_ = second.introduce("/register", registration_token=token["token"])
        assert refused(answer_) == (403, "registration-token-invalid")


@pytest.mark.threat("T21")
def test_an_expired_registration_token_admits_nobody(local_scene: Scene, local: InProcessService) -> None:
    """Also where it expired between introduction and activation."""
    token = registration_token(local_scene, uses=5)["token"]
    early, late = (local_scene.stranger(SoftwareNode(seed)) for seed in (1, 2))
    offer = early.introduce("/register", registration_token=token).json()
    local.clock.pass_(seconds=59)
    local_scene.machine(SoftwareNode(3)).enrol("/register", registration_token=token)
    offer = early.introduce("/register", registration_token=token).json()
    local.clock.pass_(seconds=2)
    with local_scene.nothing_changes():
        assert refused(early.activate(early.activation(offer))) == (403, "registration-token-invalid")
        answer = late.introduce("/register", registration_token=token)
        assert refused(answer) == (403, "registration-token-invalid")


@pytest.mark.threat("T21", "T121")
def test_a_desired_cluster_is_never_obeyed(scene: Scene, make_device: MakeDevice) -> None:
    """It chooses neither policies nor configuration: the token decides, and what names no cluster means `default`."""
    token = registration_token(scene)["token"]
    machine = scene.machine(make_device("first"))
    answer = machine.enrol("/register", registration_token=token, cluster_id="lab")
    assert answer["status"] == "registered"
    shown = scene.operator.call("GET", f"/machines/{answer['machine_id']}")
    assert (shown["cluster_id"], shown["desired_cluster_id"]) == ("default", "lab")


@pytest.mark.threat("T16")
@pytest.mark.parametrize("accept", ["application/vnd.itl.config.encrypted+json", "application/json", ""])
def test_a_guessed_config_token_is_unknown(scene: Scene, victim: Machine, accept: str) -> None:
    """404, whatever is guessed; and what a console shows has at most 32 bytes."""
    stranger = scene.http()
    guesses = ["0", secrets.token_urlsafe(32), victim.machine_id, "null", "x" * 256]
    with scene.nothing_changes():
        for guess in guesses:
            answer = stranger.get(
                f"/api/v1/config/{guess}", headers={"Accept": accept} if accept else {"Accept": ""}
            )
            assert answer.status_code == 404
            if not accept:
                assert len(answer.content) <= 32
            else:
                assert refused(answer)[1] == "config-token-unknown"


@pytest.mark.threat("T16")
@pytest.mark.parametrize("act", ["lock", "revoke", "ak-reset"])
def test_a_config_token_is_worth_nothing_after(scene: Scene, make_device: MakeDevice, act: str) -> None:
    """A lock, a revocation or an AK reset withdraws the token, fetched before or not (R23)."""
    for fetched in (False, True):
        machine = scene.machine(make_device(f"{act}-{fetched}"))
        token = machine.admitted(scene.operator)["config_token"]
        if fetched:
            assert machine.fetch(token).is_success
        scene.operator.act(machine.machine_id, act, reason="test")
        stranger = scene.http()
        with scene.nothing_changes():
            for accept in ("application/vnd.itl.config.encrypted+json", "application/json"):
                answer = stranger.get(f"/api/v1/config/{token}", headers={"Accept": accept})
                assert refused(answer) == (410, "token-consumed")


@pytest.mark.threat("T15")
def test_a_stolen_config_token_yields_an_envelope_that_only_one_tpm_opens(
    scene: Scene, make_device: MakeDevice, mallory: Machine
) -> None:
    """Who steals the token from the wire gets what anybody may see: ciphertext."""
    machine = scene.machine(make_device("robbed"))
    token = machine.admitted(scene.operator)["config_token"]
    stolen = machine.fetch(token)
    assert scene.canary.encode() not in base64.b64decode(stolen.json()["ciphertext"])
    mallory.machine_id = machine.machine_id
    with pytest.raises(TPMResponseError):
        mallory.unseal(stolen.json())
    assert scene.canary.encode() in machine.unseal(stolen.json())


def test_a_config_token_is_worth_nothing_after_its_window(
    local_scene: Scene, local: InProcessService
) -> None:
    """Five minutes the same answer, then none (N100); an unused one expires; a failed proof withdraws it."""
    machine = local_scene.machine(SoftwareNode(1))
    admitted = machine.admitted(local_scene.operator)
    token = admitted["config_token"]
    first = machine.fetch(token)
    # Until it says that it is applied, each attestation offers it anew, and the offer before is over.
    assert machine.acknowledge(machine.acknowledgement(admitted["directive"])).is_success
    local.clock.pass_(minutes=2)
    machine.next_challenge = None
    machine.attest()
    assert machine.fetch(token).content == first.content
    local.clock.pass_(minutes=2, seconds=58)
    machine.next_challenge = None
    machine.attest()
    local.clock.pass_(seconds=3)
    stranger = local_scene.stranger(SoftwareNode(2))
    with local_scene.nothing_changes():
        assert refused(stranger.fetch(token)) == (410, "token-consumed")


# Acknowledgements and directives


@pytest.mark.threat("T20")
def test_a_forged_directive_cannot_be_acknowledged(scene: Scene, make_device: MakeDevice) -> None:
    """A machine acknowledges only the last directive that the service sent to it, and nobody else does."""
    machine = scene.machine(make_device("revoked"))
    machine.admitted(scene.operator)
    scene.operator.act(machine.machine_id, "revoke", wipe=True)
    directive = machine.attest()["directive"]
    mallory = scene.stranger(make_device("mallory"))
    mallory.machine_id = machine.machine_id
    with scene.nothing_changes():
        # Not with another TPM; not for another directive; not with another outcome than was signed.
        assert refused(mallory.acknowledge(mallory.acknowledgement(directive))) == (403, "evidence-rejected")
        head, payload, signature = directive.split(".")
        forged = f"{head}.{payload}.{signature[:-4]}AAAA"
        assert refused(machine.acknowledge(machine.acknowledgement(forged))) == (409, "transition-forbidden")
        other = machine.acknowledgement(directive) | {"outcome": "failed"}
        assert refused(machine.acknowledge(other)) == (403, "evidence-rejected")
    body = machine.acknowledgement(directive)
    assert machine.acknowledge(body).is_success
    with scene.nothing_changes():
        assert refused(mallory.acknowledge(body)) == (409, "challenge-used")
        assert refused(machine.acknowledge(machine.acknowledgement(directive))) == (
            409,
            "transition-forbidden",
        )


def test_a_quote_of_an_attestation_is_no_acknowledgement(scene: Scene, make_device: MakeDevice) -> None:
    """What was signed for one purpose is not taken for the other."""
    machine = scene.machine(make_device("two-purposes"))
    machine.admitted(scene.operator)
    scene.operator.act(machine.machine_id, "revoke", wipe=True)
    directive = machine.attest()["directive"]
    challenge = machine.challenge()
    evidence = machine.evidence(challenge)
    with scene.nothing_changes():
        body = machine.acknowledgement(directive, challenge=challenge)
        body |= {name: evidence[name] for name in ("pcr_quote", "pcr_signature")}
        assert refused(machine.acknowledge(body)) == (403, "evidence-rejected")


# Form


@pytest.mark.threat("T31")
@pytest.mark.parametrize("member", ["ek_cert", "status", "role", "machine_id", "nonce_signature", "admin"])
def test_an_unknown_member_is_an_error(scene: Scene, victim: Machine, mallory: Machine, member: str) -> None:
    """A misspelt security field never goes unnoticed (PROTOCOL §0), and what was sent is not repeated."""
    value = "s3cret-of-the-client"
    bodies = [
        ("/self-register", mallory.introduction()),
        ("/register", mallory.introduction()),
        (f"/machines/{victim.machine_id}/ak-activate", {"challenge_id": "0" * 32, "proof": b64(bytes(32))}),
        ("/attest", victim.evidence(victim.challenge())),
        (f"/machines/{victim.machine_id}/ack", victim.acknowledgement("a.b.c")),
    ]
    with scene.nothing_changes():
        for path, body in bodies:
            if member in body:
                continue
            answer = mallory.post(path, body | {member: value})
            assert refused(answer) == (422, "schema-violation"), path
            assert any(member in error["field"] for error in answer.json()["errors"])
            assert value not in answer.text


def test_a_registration_token_at_the_wrong_door_is_an_error(scene: Scene, mallory: Machine) -> None:
    """`/self-register` knows no tokens: a node that sends one there learns of its mistake."""
    with scene.nothing_changes():
        answer = mallory.introduce("/self-register", registration_token="x")
        assert refused(answer) == (422, "schema-violation")


@pytest.mark.threat("T3")
def test_a_simulator_is_refused_unless_somebody_allowed_it(
    blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The default does not take a software TPM's certificate for hardware (TPM.md §2.3)."""
    blank_tpm.manufacture(tpm_ca, at=HeldClock().now())
    for allowed in (True, False):
        directory = tmp_path_factory.mktemp("simulator")
        with (
            in_process_service(directory, tpm_allow_simulator=allowed) as service,
            blank_tpm.node() as device,
            service.client() as http,
        ):
            assert isinstance(device, NodeTPM)
            machine = Machine(device, http)
            assert machine.identity.ek_source == "cert"
            answer = machine.introduce()
            if allowed:
                assert answer.is_success, "nothing else is wrong with its certificate"
                continue
            assert refused(answer) == (403, "ek-certificate-rejected")
            # Without the certificate it is what it is: an EK that nobody vouches for.
            answer = machine.introduce(ek_source="pub", ek_cert_pem=None)
            assert answer.is_success
            assert base64.b64decode(answer.json()["activation"]["credential_blob"])


# Floods


def test_a_flood_blocks_nobody_but_its_sender(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A stranger who asks a hundred times in a machine's name is slowed down; the machine is not (R13)."""
    directory = tmp_path_factory.mktemp("flood")
    with in_process_service(directory, **DEFAULT_LIMITS) as service:
        operator = service.operator()
        with service.client("192.0.2.1") as home, service.client("203.0.113.66") as away:
            machine = Machine(SoftwareNode(1), home)
            machine.admitted(operator)
            stranger = Machine(SoftwareNode(2), away)
            asked = {"machine_id": machine.machine_id}
            answers = [away.get("/api/v1/attest/challenge", params=asked) for _ in range(100)]
            limited = [a for a in answers if a.status_code == 429]
            assert len(limited) >= 70
            assert all(int(a.headers["retry-after"]) >= 1 for a in limited)
            assert {refused(a)[1] for a in limited} == {"rate-limited"}
            for _ in range(600):
                answer = stranger.introduce(ek_public="AAAA")
                if answer.status_code == 429:
                    break
                assert refused(answer) == (400, "malformed-evidence")
            else:
                raise AssertionError("rubbish without end was read")
            assert machine.attest()["status"] == "attested"
            assert operator.machine(machine.machine_id)["trust"] == "verified"
        denied = operator.audit(action="denied")
        assert len(denied) <= 10, "a stranger cannot fill the audit log"
        operator.http.close()


@pytest.mark.threat("T25")
def test_pending_machines_are_limited(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Above the quota nobody new gets in, from one address or from all; who is known or admitted does (R14)."""
    directory = tmp_path_factory.mktemp("quota")
    with in_process_service(directory, pending_limit=3, pending_limit_per_address=2) as service:
        operator = service.operator()
        token = operator.call(
            "POST",
            "/registration-tokens",
            json={"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "tofu"},
        )["token"]
        addresses = ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3"]
        with contextlib.ExitStack() as stack:
            machines = [
                Machine(SoftwareNode(seed), stack.enter_context(service.client(address)))
                for seed, address in enumerate(addresses)
            ]
            machines[0].enrol()
            machines[1].enrol()
            assert refused(machines[2].introduce()) == (429, "pending-quota-exceeded")
            machines[3].enrol()
            answer = machines[4].introduce()
            assert refused(answer) == (429, "pending-quota-exceeded")
            assert int(answer.headers["retry-after"]) >= 1
            machines[0].enrol()
            assert machines[2].enrol("/register", registration_token=token)["status"] == "registered"
        assert len(operator.machines()) == 4
        operator.http.close()
