"""A node made of tpm2-tools and an HTTP client, after PROTOCOL.md alone.

It shares no line with the product: it imports nothing of ours, so what both understand alike is the protocol.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NEEDED = ("swtpm", "swtpm_setup", "tpm2_createek", "tpm2_quote", "tpm2_checkquote")
MISSING = [tool for tool in NEEDED if shutil.which(tool) is None]
ENVELOPE = "application/vnd.itl.config.encrypted+json"
CREDENTIAL_FILE_HEAD = bytes.fromhex("badcc0de00000001")
"""tpm2-tools puts this before TPM2B_ID_OBJECT ‖ TPM2B_ENCRYPTED_SECRET (TPM.md §1.3)."""


def b64(data: bytes) -> str:
    """Write bytes as the protocol does: standard base64 with padding."""
    return base64.b64encode(data).decode()


class Tools:
    """tpm2-tools on one software TPM, in a directory of their own."""

    def __init__(self, directory: Path, socket: Path) -> None:
        self.directory = directory
        self._environment = os.environ | {"TPM2TOOLS_TCTI": f"swtpm:path={socket}"}

    def path(self, name: str) -> Path:
        """Return the path of a file that the tools read or write."""
        return self.directory / name

    def bytes(self, name: str) -> bytes:
        """Return what a tool wrote."""
        return self.path(name).read_bytes()

    def __call__(self, tool: str, *arguments: str, flush: bool = True) -> str:
        """Run `tpm2_<tool>`; transient objects are flushed, because there is no resource manager."""
        out = self._run(tool, *arguments)
        if flush:
            self._run("flushcontext", "-t")
        return out

    def _run(self, tool: str, *arguments: str) -> str:
        done = subprocess.run(
            [f"tpm2_{tool}", *arguments],
            cwd=self.directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if done.returncode != 0:
            raise ToolFailed(f"tpm2_{tool} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


class ToolFailed(Exception):
    """A tool ended with an error; the text is its own."""


@contextmanager
def software_tpm(directory: Path, *, ek_certificate: bool) -> Iterator[Tools]:
    """Run a software TPM; with *ek_certificate* one that was manufactured with a certificate in NV."""
    state = directory / "state"
    state.mkdir(parents=True)
    if ek_certificate:
        _manufacture(directory, state)
    # A socket's path may have 107 bytes, less than pytest's directories can have.
    socket = Path(f"/tmp/itl-{os.getpid()}-{hashlib.sha256(bytes(directory)).hexdigest()[:12]}.swtpm")
    control = Path(f"{socket}.ctrl")
    process = subprocess.Popen(
        [
            *("swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}"),
            *("--server", f"type=unixio,path={socket}", "--ctrl", f"type=unixio,path={control}"),
            *("--flags", "startup-clear,not-need-init"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not (socket.exists() and control.exists()):
            assert process.poll() is None, "swtpm ended at once"
            assert time.monotonic() < deadline, "swtpm did not start"
            time.sleep(0.01)
        yield Tools(directory, socket)
    finally:
        process.terminate()
        process.wait(60)
        socket.unlink(missing_ok=True)
        control.unlink(missing_ok=True)


def _manufacture(directory: Path, state: Path) -> None:
    authority = directory / "authority"
    authority.mkdir()
    (directory / "localca.conf").write_text(
        f"statedir = {authority}\nsigningkey = {authority}/signkey.pem\n"
        f"issuercert = {authority}/issuercert.pem\ncertserial = {authority}/certserial\n"
    )
    (directory / "localca.options").write_text(
        "--platform-manufacturer Example\n--platform-version 1.0\n--platform-model Example\n"
    )
    (directory / "setup.conf").write_text(
        f"create_certs_tool = {shutil.which('swtpm_localca')}\n"
        f"create_certs_tool_config = {directory}/localca.conf\n"
        f"create_certs_tool_options = {directory}/localca.options\nactive_pcr_banks = sha256\n"
    )
    subprocess.run(
        [
            *("swtpm_setup", "--tpm2", "--tpmstate", str(state), "--config", str(directory / "setup.conf")),
            *("--create-ek-cert", "--pcr-banks", "sha256", "--lock-nvram"),
        ],
        check=True,
        capture_output=True,
        timeout=240,
    )


class Refused(Exception):
    """The service answered with a problem."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"{response.status_code} {response.text}")
        self.status = response.status_code
        self.code = json.loads(response.text)["type"].removeprefix("urn:itl:problem:")


class ToolsNode:
    """One node: its TPM, its keys, and what it learned from the service.

    Args:
        tools: tpm2-tools on its TPM.
        service: Address of the service.
        ek: `rsa` or `ecc`, for tpm2_createek.
        ak: Key and scheme for tpm2_createak, e.g. `("ecc", "ecdsa")`.
    """

    machine_id: str
    status: str
    service_keys: dict[str, Any]

    def __init__(self, tools: Tools, service: str, *, ek: str, ak: tuple[str, str]) -> None:
        self.tools = tools
        self._http = httpx.Client(base_url=service, timeout=60)
        self._challenge: dict[str, Any] | None = None
        tools("createek", "-c", "ek.ctx", "-G", ek, "-u", "ek.pub")
        self.create_ak(*ak)
        self.ek_public = tools.bytes("ek.pub")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def create_ak(self, key: str, scheme: str) -> None:
        """Create an AK as a child of the EK."""
        self._scheme = scheme
        self.tools(
            "createak",
            *("-C", "ek.ctx", "-c", "ak.ctx", "-G", key, "-g", "sha256", "-s", scheme),
            *("-u", "ak.pub", "-n", "ak.name"),
        )

    @property
    def ek_fingerprint(self) -> str:
        """SHA-384 of the DER SubjectPublicKeyInfo of the EK (§0)."""
        self.tools("readpublic", "-c", "ek.ctx", "-f", "der", "-o", "ek.der")
        return hashlib.sha384(self.tools.bytes("ek.der")).hexdigest()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST JSON and return the answer.

        Raises:
            Refused: Anything but 200.
        """
        return _checked(self._http.post(f"/api/v1{path}", json=body))

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """GET JSON."""
        return _checked(self._http.get(f"/api/v1{path}", params=query))

    # §1

    def introduction(self, **more: Any) -> dict[str, Any]:
        """Return the body of an introduction; with a certificate where the TPM has one for this EK."""
        body = {
            "ek_public": b64(self.ek_public),
            "ek_source": "pub",
            "ek_fingerprint": self.ek_fingerprint,
            "ak_public": b64(self.tools.bytes("ak.pub")),
            "hw_mac": "52:54:00:12:34:56",
            "hw_uuid": "6d0dd0aa-5b0e-4d63-8c3f-2f9b0a4b8a11",
            "desired_role": "controlplane",
        }
        return body | more

    def ek_certificate(self) -> bytes:
        """Read the certificate of the RSA-2048 EK from NV (TPM.md §2.4)."""
        self.tools("nvread", "0x01c00002", "-o", "ek.cert", flush=False)
        return self.tools.bytes("ek.cert")

    def introduce(self, *, path: str = "/self-register", **more: Any) -> dict[str, Any]:
        """Introduce this node and remember its id."""
        answer = self.post(path, self.introduction(**more))
        self.machine_id, self.status = answer["machine_id"], answer["status"]
        activation: dict[str, Any] = answer["activation"]
        return activation

    # §2

    def open_credential(self, credential_blob: bytes, encrypted_secret: bytes) -> bytes:
        """Run TPM2_ActivateCredential under a policy session with PolicySecret(endorsement)."""
        self.tools.path("cred.blob").write_bytes(CREDENTIAL_FILE_HEAD + credential_blob + encrypted_secret)
        return self.open_credential_file("cred.blob")

    def open_credential_file(self, name: str) -> bytes:
        """Open a credential in the file format of tpm2-tools."""
        tools = self.tools
        tools("startauthsession", "--policy-session", "-S", "session.ctx")
        try:
            tools("policysecret", "-S", "session.ctx", "-c", "e")
            tools(
                "activatecredential",
                *("-c", "ak.ctx", "-C", "ek.ctx", "-i", name, "-o", "secret", "-P", "session:session.ctx"),
            )
        finally:
            tools("flushcontext", "session.ctx")
        secret = tools.bytes("secret")
        tools.path("secret").unlink()
        return secret

    def proof(self, activation: dict[str, Any], secret: bytes) -> str:
        """Return the HMAC over the context."""
        message = b"\0".join(
            [b"itl-ak-activate-v1", self.machine_id.encode(), activation["challenge_id"].encode(), b""]
        )
        message += hashlib.sha256(self.ek_public).digest() + self.tools.bytes("ak.name")
        return b64(hmac.digest(secret, message, "sha256"))

    def activate(self, activation: dict[str, Any]) -> dict[str, Any]:
        """Open the credential, send the proof, pin the service keys."""
        secret = self.open_credential(
            base64.b64decode(activation["credential_blob"]), base64.b64decode(activation["encrypted_secret"])
        )
        assert len(secret) == 32
        answer = self.post(
            f"/machines/{self.machine_id}/ak-activate",
            {
                "challenge_id": activation["challenge_id"],
                "proof": self.proof(activation, secret),
                "node_nonce": self.new_nonce(),
            },
        )
        self.status, self.service_keys = answer["status"], answer["service_keys"]
        welcome = self.statement(answer["welcome"], "itl-welcome+jwt")
        assert welcome["challenge_id"] == activation["challenge_id"]
        assert welcome["status"] == answer["status"]
        return answer

    # §8

    def new_nonce(self) -> str:
        """Choose a nonce for the next request."""
        self._node_nonce = b64(secrets.token_bytes(32))
        return self._node_nonce

    def statement(self, token: str, kind: str) -> dict[str, Any]:
        """Verify a statement: signed, of this kind, for this TPM, in answer to the request just sent."""
        assert json.loads(_b64url(token.partition(".")[0]))["typ"] == kind
        claims = self.verified(token)
        assert claims["binding"] == {
            "machine_id": self.machine_id,
            "ek_fingerprint": self.ek_fingerprint,
            "ak_name": self.tools.bytes("ak.name").hex(),
        }
        assert claims["node_nonce"] == self._node_nonce
        return claims

    # §§3-4

    def challenge(self) -> dict[str, Any]:
        """Take the challenge of the last answer, or fetch one."""
        challenge, self._challenge = self._challenge, None
        return challenge or self.get("/attest/challenge", machine_id=self.machine_id)

    def quote(self, selection: dict[str, list[int]], qualifying_data: bytes) -> tuple[bytes, bytes]:
        """Return TPMS_ATTEST and TPMT_SIGNATURE."""
        self.tools(
            "quote",
            *("-c", "ak.ctx", "-l", _pcr_argument(selection), "-q", qualifying_data.hex(), "-g", "sha256"),
            *("--scheme", self._scheme, "-m", "quote.msg", "-s", "quote.sig", "-o", "quote.pcrs"),
        )
        return self.tools.bytes("quote.msg"), self.tools.bytes("quote.sig")

    def pcr_values(self, selection: dict[str, list[int]]) -> dict[str, dict[str, str]]:
        """Read the selected PCRs."""
        values: dict[str, dict[str, str]] = {}
        bank: dict[str, str] = {}
        for line in self.tools("pcrread", _pcr_argument(selection), flush=False).splitlines():
            name, _, value = (part.strip() for part in line.partition(":"))
            if not value:
                bank = values.setdefault(name, {})
            else:
                bank[name] = value.removeprefix("0x").lower()
        return values

    def evidence(self, challenge: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Return the body of an attestation that answers *challenge*."""
        selection = challenge["pcr_selection"]
        quote, signature = self.quote(selection, base64.b64decode(challenge["nonce"]))
        body = {
            "machine_id": self.machine_id,
            "ek_fingerprint": self.ek_fingerprint,
            "nonce_id": challenge["nonce_id"],
            "pcr_quote": b64(quote),
            "pcr_signature": b64(signature),
            "pcr_values": self.pcr_values(selection),
            "node_nonce": self.new_nonce(),
        }
        return body | more

    def attest(self, **more: Any) -> dict[str, Any]:
        """Attest; a directive is checked before its action is believed."""
        challenge = self.challenge()
        answer = self.post("/attest", self.evidence(challenge, **more))
        self.status, self._challenge = answer["status"], answer["next_challenge"]
        if answer["action"] != "none":
            directive = self.statement(answer["directive"], "itl-directive+jwt")
            assert directive["action"] == answer["action"]
            assert directive["nonce"] == challenge["nonce"]
            self._token_id = directive.get("token_id")
        return answer

    def verified(self, token: str) -> dict[str, Any]:
        """Verify a compact JWS (ES384) under the pinned keys and return its payload."""
        head, payload, signature = (_b64url(part) for part in token.split("."))
        header = json.loads(head)
        assert header["alg"] == "ES384"
        key = next(k for k in self.service_keys["keys"] if k.get("kid") == header.get("kid"))
        numbers = ec.EllipticCurvePublicNumbers(
            int.from_bytes(_b64url(key["x"])), int.from_bytes(_b64url(key["y"])), ec.SECP384R1()
        )
        numbers.public_key().verify(
            encode_dss_signature(int.from_bytes(signature[:48]), int.from_bytes(signature[48:])),
            token.rpartition(".")[0].encode(),
            ec.ECDSA(hashes.SHA384()),
        )
        claims: dict[str, Any] = json.loads(payload)
        return claims

    # §5

    def fetch(self, config_token: str) -> dict[str, Any]:
        """Fetch the sealed configuration; directive, envelope and statement name the same one."""
        headers = {"Accept": ENVELOPE, "Itl-Node-Nonce": self.new_nonce()}
        response = self._http.get(f"/api/v1/config/{config_token}", headers=headers)
        envelope = _checked(response)
        claims = self.statement(response.headers["Itl-Config-Signature"], "itl-config+jwt")
        assert claims["token_id"] == envelope["token_id"] == self._token_id
        assert claims["config_sha256"] == envelope["config_sha256"]
        return envelope

    def unseal(self, envelope: dict[str, Any]) -> bytes:
        """Open the envelope: the key inside the TPM, the configuration with AES-256-GCM."""
        assert envelope["format"] == "ek-aes256gcm-v2"
        assert envelope["machine_id"] == self.machine_id
        key = self.open_credential(
            base64.b64decode(envelope["credential_blob"]), base64.b64decode(envelope["encrypted_secret"])
        )
        bound = [envelope[n] for n in ("format", "machine_id", "token_id", "config_sha256")]
        plaintext = AESGCM(key).decrypt(
            base64.b64decode(envelope["iv"]),
            base64.b64decode(envelope["ciphertext"]),
            "".join(f"{text}\n" for text in bound).encode(),
        )
        assert hashlib.sha256(plaintext).hexdigest() == envelope["config_sha256"]
        return plaintext

    # §6

    def acknowledge(self, directive: str, outcome: str = "done") -> dict[str, Any]:
        """Acknowledge a directive with a quote over nonce, directive and outcome."""
        challenge = self.challenge()
        digest = hashlib.sha256(directive.encode()).digest()
        nonce = base64.b64decode(challenge["nonce"])
        qualifying = hashlib.sha256(b"itl-ack-v2\0" + nonce + digest + outcome.encode()).digest()
        quote, signature = self.quote(challenge["pcr_selection"], qualifying)
        return self.post(
            f"/machines/{self.machine_id}/ack",
            {
                "nonce_id": challenge["nonce_id"],
                "directive_sha256": digest.hex(),
                "outcome": outcome,
                "pcr_quote": b64(quote),
                "pcr_signature": b64(signature),
            },
        )


def _pcr_argument(selection: dict[str, list[int]]) -> str:
    return "+".join(f"{bank}:{','.join(map(str, pcrs))}" for bank, pcrs in selection.items())


def _checked(response: httpx.Response) -> dict[str, Any]:
    if response.status_code != 200:
        raise Refused(response)
    answer: dict[str, Any] = response.json()
    return answer


def _b64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
