"""A confidential machine written from docs/protocol/node.md §10, apart from our agent and our SDK.

The hardware is that of the test kit; every byte that the machine makes, sends and opens is made here, by the words of
the page, of `hashlib`, `hmac` and `cryptography` alone.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from attestation.wire import pem
from attestation_testing.tee import amd, intel
from tests.fixtures.collateral import GOOD
from tests.unit.service.conftest import CANARY, Service, Starter

pytestmark = pytest.mark.anyio

NAME = bytes(range(1, 33))


def lp(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@dataclass
class Machine:
    """One machine: what its processor makes of 64 bytes, and the key that it keeps."""

    service: Service
    tee: str
    chip: bytes
    guest: bytes
    report: Callable[[bytes], dict[str, Any]]
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP384R1()))
    machine_id: str = ""
    pinned: dict[str, Any] = field(default_factory=dict)

    @property
    def spki(self) -> bytes:
        """Of the subject key, DER."""
        return self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    @property
    def fingerprint(self) -> str:
        """Of chip and guest."""
        parts = (b"itl-hw/v1", self.tee.encode(), self.chip, self.guest)
        return hashlib.sha384(b"".join(map(lp, parts))).hexdigest()

    def states(self, nonce: bytes) -> list[dict[str, Any]]:
        """Return what the processor says of this nonce, id and key."""
        subject = hashlib.sha384(self.spki).digest()
        parts = (b"itl-report-data/v1", self.tee.encode(), nonce, self.machine_id.encode(), subject)
        return [self.report(hashlib.sha512(b"".join(map(lp, parts))).digest())]

    def believes(self, jws: str, typ: str, nonce: str) -> dict[str, Any]:
        """Return the claims of a statement that a pinned key signed for this machine and this request."""
        header, claims, signature = (
            base64.urlsafe_b64decode(p + "=" * (-len(p) % 4)) for p in jws.split(".")
        )
        said = json.loads(header)
        assert (said["alg"], said["typ"]) == ("ES384", typ)
        (jwk,) = (each for each in self.pinned["keys"] if each["kid"] == said["kid"])
        x, y = (int.from_bytes(base64.urlsafe_b64decode(jwk[n] + "=="), "big") for n in "xy")
        public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP384R1()).public_key()
        r, s = int.from_bytes(signature[:48], "big"), int.from_bytes(signature[48:], "big")
        signed = jws.rpartition(".")[0].encode()
        public.verify(utils.encode_dss_signature(r, s), signed, ec.ECDSA(SHA384()))
        found: dict[str, Any] = json.loads(claims)
        assert found["binding"] == {
            "machine_id": self.machine_id,
            "ek_fingerprint": self.fingerprint,
            "ak_name": hashlib.sha384(self.spki).hexdigest(),
        }
        assert found["node_nonce"] == nonce
        return found

    async def introduce(self) -> str:
        """Introduce and prove; return the status of the welcome."""
        body = {"tee": self.tee, "subject_key": b64(self.spki)}
        answer = await self.service.post("/api/v1/self-register", body)
        assert answer.status_code == 200, answer.text
        offered = answer.json()
        self.machine_id = offered["machine_id"]
        nonce = b64(secrets.token_bytes(32))
        answer = await self.service.post(
            f"/api/v1/machines/{self.machine_id}/tee-activate",
            {
                "challenge_id": offered["challenge"]["challenge_id"],
                "evidence": self.states(base64.b64decode(offered["challenge"]["nonce"])),
                "node_nonce": nonce,
            },
        )
        assert answer.status_code == 200, answer.text
        self.pinned = answer.json()["service_keys"]
        welcome = self.believes(answer.json()["welcome"], "itl-welcome+jwt", nonce)
        assert welcome["challenge_id"] == offered["challenge"]["challenge_id"]
        status: str = welcome["status"]
        return status

    async def attest(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Attest; return the answer, and the claims of its directive."""
        got = await self.service.get("/api/v1/attest/challenge", params={"machine_id": self.machine_id})
        challenge = got.json()
        assert (challenge["pcr_selection"], challenge["evidence"]) == (
            {},
            ["sev-snp" if self.tee == "sev-snp" else "tdx-quote"],
        )
        nonce = b64(secrets.token_bytes(32))
        answer = await self.service.post(
            "/api/v1/attest",
            {
                "machine_id": self.machine_id,
                "ek_fingerprint": self.fingerprint,
                "nonce_id": challenge["nonce_id"],
                "evidence": self.states(base64.b64decode(challenge["nonce"])),
                "node_nonce": nonce,
            },
        )
        assert answer.status_code == 200, answer.text
        told = answer.json()
        if "directive" not in told:
            return told, None
        ordered = self.believes(told["directive"], "itl-directive+jwt", nonce)
        assert ordered["nonce"] == challenge["nonce"]
        return told, ordered

    async def fetch(self, told: dict[str, Any], ordered: dict[str, Any]) -> bytes:
        """Fetch the configuration of a directive, and open it."""
        nonce = b64(secrets.token_bytes(32))
        answer = await self.service.get(
            f"/api/v1/config/{told['config_token']}",
            headers={"Accept": "application/vnd.itl.config.encrypted+json", "Itl-Node-Nonce": nonce},
        )
        assert answer.status_code == 200, answer.text
        sealed = answer.json()
        stated = self.believes(answer.headers["Itl-Config-Signature"], "itl-config+jwt", nonce)
        assert sealed["format"] == "tee-p384-aes256gcm-v1"
        assert sealed["token_id"] == stated["token_id"] == ordered["token_id"]
        assert sealed["config_sha256"] == stated["config_sha256"]
        aad = "".join(
            f"{line}\n"
            for line in (sealed["format"], self.machine_id, sealed["token_id"], sealed["config_sha256"])
        ).encode()
        epk = load_der_public_key(base64.b64decode(sealed["epk"]))
        assert isinstance(epk, ec.EllipticCurvePublicKey)
        # RFC 5869 with an empty salt, one block.
        extracted = hmac.digest(b"", self.key.exchange(ec.ECDH(), epk), "sha384")
        agreed = hmac.digest(extracted, aad + b"\x01", "sha384")[:32]
        iv, ciphertext = base64.b64decode(sealed["iv"]), base64.b64decode(sealed["ciphertext"])
        opened = AESGCM(agreed).decrypt(iv, ciphertext, aad)
        assert hashlib.sha256(opened).hexdigest() == sealed["config_sha256"]
        return opened

    async def acknowledge(self, told: dict[str, Any], outcome: str = "done") -> None:
        """Say how a directive ended."""
        got = await self.service.get("/api/v1/attest/challenge", params={"machine_id": self.machine_id})
        challenge = got.json()
        digest = hashlib.sha256(told["directive"].encode()).digest()
        said = b"itl-ack-v2\0" + base64.b64decode(challenge["nonce"]) + digest + outcome.encode()
        answer = await self.service.post(
            f"/api/v1/machines/{self.machine_id}/ack",
            {
                "nonce_id": challenge["nonce_id"],
                "directive_sha256": digest.hex(),
                "outcome": outcome,
                "evidence": self.states(hashlib.sha256(said).digest()),
            },
        )
        assert answer.status_code == 200, answer.text


PROCESSOR = amd.Processor(pki=amd.Pki())
PLATFORM = intel.Platform()


def believing(directory: Path) -> dict[str, Any]:
    """Return settings of a service that believes the vendors of the test kit, with their collateral in a folder."""
    anchors = directory / "anchors.pem"
    made = [PROCESSOR.pki.ark, PROCESSOR.pki.ask, PROCESSOR.pki.asvk, intel.shared_pki().root]
    anchors.write_text("".join(pem("CERTIFICATE", each) for each in made), encoding="ascii")
    for name, data in GOOD.items():
        path = directory / "collateral" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {
        "tee_test_anchors": anchors,
        "tpm_allow_simulator": True,
        "collateral_dir": directory / "collateral",
    }


@pytest.fixture
async def service(start: Starter, tmp_path: Path) -> Service:
    """A service that believes the vendors of the test kit."""
    return await start(**believing(tmp_path))


def snp(service: Service, **changed: Any) -> Machine:
    """A guest of SEV-SNP."""

    def report(data: bytes) -> dict[str, Any]:
        made = PROCESSOR.report(data, host_data=NAME, **changed)
        value = {"report": b64(made), "vek": b64(PROCESSOR.vek)}
        return {"media_type": "application/vnd.itl.sev-snp", "value": value}

    return Machine(service, "sev-snp", PROCESSOR.chip_id, NAME, report)


def tdx(service: Service, **changed: Any) -> Machine:
    """A guest of TDX."""
    name = NAME + bytes(16)

    def quote(data: bytes) -> dict[str, Any]:
        made = PLATFORM.quote(intel.td_report(data, mrconfigid=name, **changed))
        return {"media_type": "application/vnd.itl.tdx-quote", "value": {"quote": b64(made)}}

    return Machine(service, "tdx", PLATFORM.ppid, name, quote)


POLICIES = {
    "sev-snp": {"sev_snp": {"measurement": [amd.MEASUREMENT.hex()]}},
    "tdx": {"tdx": {"mrtd": [intel.MRTD.hex()]}},
}


async def ruled(service: Service, tee: str) -> None:
    """Let a policy say what is launched."""
    document = {"format": "itl-policy/2", "name": "guests", "version": 1, "mode": "enforce", **POLICIES[tee]}
    answer = await service.operator("POST", "/policies", document)
    assert answer.status_code == 201, answer.text
    answer = await service.operator("PUT", "/policies/assignments/fleet/*", {"policy": "guests@1"})
    assert answer.status_code == 200, answer.text


async def approve(service: Service, machine: Machine, **granted: Any) -> dict[str, Any]:
    """Admit it."""
    body = {"role": "worker-app", **granted}
    answer = await service.operator("POST", f"/machines/{machine.machine_id}/approve", body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("make", [snp, tdx])
async def test_the_page_is_enough(service: Service, make: Callable[[Service], Machine]) -> None:
    """From nothing to an opened configuration, a lock, and an acknowledged wipe."""
    machine = make(service)
    await ruled(service, machine.tee)
    assert await machine.introduce() == "pending_approval"
    told, ordered = await machine.attest()
    assert (told["action"], ordered) == ("none", None)
    shown = (await approve(service, machine))["hardware"]
    assert (shown["chip"], shown["guest"]) == (machine.chip.hex(), machine.guest.hex())
    told, ordered = await machine.attest()
    assert ordered is not None
    assert ordered["action"] == "apply-config"
    assert CANARY.encode() in await machine.fetch(told, ordered)
    await machine.acknowledge(told)
    detail = (await service.operator("GET", f"/machines/{machine.machine_id}")).json()
    assert (detail["trust"], detail["assurance"], detail["redeliver_pending"]) == ("verified", "tee", False)
    at = f"/machines/{machine.machine_id}"
    assert (await service.operator("POST", f"{at}/revoke", {"wipe": True})).status_code == 200
    told, ordered = await machine.attest()
    assert ordered is not None
    assert ordered["action"] == "wipe"
    await machine.acknowledge(told)
    assert (await service.operator("GET", at)).json()["wiped_at"] is not None


@pytest.mark.threat("T207")
@pytest.mark.parametrize(
    ("make", "changed", "check"),
    [
        (snp, {"measurement": bytes(48)}, "measurement"),
        (snp, {"policy": 0xB0000}, "debug"),
        (tdx, {"mrtd": bytes(48)}, "mrtd"),
        (tdx, {"td_attributes": (1 | 1 << 28).to_bytes(8, "little")}, "debug"),
    ],
)
async def test_what_is_authentic_but_not_as_expected_fails(
    service: Service, make: Callable[..., Machine], changed: dict[str, Any], check: str
) -> None:
    """Another launch, a debug guest: shown to operators in their words, and nothing is delivered."""
    machine = make(service, **changed)
    await ruled(service, machine.tee)
    await machine.introduce()
    await approve(service, machine)
    told, ordered = await machine.attest()
    assert (told["status"], told["action"], ordered) == ("registered", "none", None)
    newest = (await service.operator("GET", f"/machines/{machine.machine_id}/results")).json()["items"][0]
    failed = [each["check"] for each in newest["checks"] if each["outcome"] == "failed"]
    assert any(check in each for each in failed), failed
