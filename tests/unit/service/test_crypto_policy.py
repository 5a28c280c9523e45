"""`ITL_CRYPTO_POLICY`: what it refuses at start, and which keys of others it refuses later."""

from __future__ import annotations

import base64
import json
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from attestation.algorithms import CryptoPolicy, Use
from attestation.device import EK_STRONG
from attestation.errors import (
    AlgorithmForbidden,
    IdentityProviderUnavailable,
    RevocationUnknown,
    Unauthenticated,
)
from attestation.keys import load_signer
from attestation.tpm import EK_TEMPLATES, Alg, Curve, Public, Scheme
from attestation_service.auth.mtls import MTLS
from attestation_service.auth.oidc import OIDC
from attestation_service.auth.provider_keys import ProviderAnswerInvalid, parse_jwks
from attestation_service.border.tls import ServerTLS, build
from attestation_service.context.request import Origin
from attestation_service.keys import crypto_policy
from attestation_service.main import main
from attestation_service.settings import Settings, SettingsInvalid
from tests.fixtures.operator_pki import OperatorCA
from tests.unit.service.conftest import HeldClock, StartService, settings_for
from tests.unit.service.node import SoftwareNode, ak_public, sealed_public
from tests.unit.service.realm import ISSUER, Realm, a_key

CNSA = [CryptoPolicy.CNSA1, CryptoPolicy.CNSA2]
AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
P256, P384, P521 = (ec.derive_private_key(9, curve()) for curve in (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1))
RSA_2048 = rsa.generate_private_key(public_exponent=65537, key_size=2048)
RSA_3072 = rsa.generate_private_key(public_exponent=65537, key_size=3072)


def certificate(key: Any, hashed: Any = hashes.SHA384(), signer: Any = P384) -> x509.Certificate:  # noqa: B008
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(AT)
        .not_valid_after(AT + timedelta(days=1))
        .sign(signer, hashed)
    )


# ---------------------------------------------------------------- at start

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("cnsa1", {"enrollment_ca_algorithm": "ml-dsa-87"}, "ITL_ENROLLMENT_CA_ALGORITHM: ml-dsa-87"),
    ("cnsa1", {"enrollment_ca_algorithm": "hybrid"}, "ITL_ENROLLMENT_CA_ALGORITHM: ml-dsa-87"),
    ("cnsa2", {"enrollment_ca_algorithm": "ecdsa-p384"}, "ITL_ENROLLMENT_CA_ALGORITHM: ecdsa-p384"),
    ("cnsa2", {"enrollment_ca_algorithm": "rsa-4096"}, "allowed: ml-dsa-87"),
    ("cnsa2", {"enrollment_ca_algorithm": "hybrid"}, "ITL_ENROLLMENT_CA_ALGORITHM: ecdsa-p384"),
    ("cnsa1", {"compat_server_keys": True}, "ITL_COMPAT_SERVER_KEYS: sha256"),
    ("cnsa2", {"compat_offline_bundle": True}, "ITL_COMPAT_OFFLINE_BUNDLE: sha256"),
    ("cnsa1", {"tls_ciphers": ("TLS_AES_128_GCM_SHA256",)}, "ITL_TLS_CIPHERS: TLS_AES_128_GCM_SHA256"),
    (
        "cnsa2",
        {"tls_ciphers": ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")},
        "allowed: TLS_AES_256_GCM_SHA384",
    ),
    ("cnsa2", {"tls_ciphers": ("ECDHE-ECDSA-AES256-GCM-SHA384",)}, "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ("cnsa1", {"tls_ciphers": ("ECDHE-RSA-CHACHA20-POLY1305",)}, "ECDHE-RSA-CHACHA20-POLY1305"),
]


def settings(policy: str, **chosen: Any) -> Settings:
    """Return settings with a CA and TLS of a good algorithm, but for what is *chosen*."""
    defaults: dict[str, Any] = {
        "enrollment_ca_unencrypted": True,
        "enrollment_ca_algorithm": {"cnsa2": "ml-dsa-87"}.get(policy, "ecdsa-p384"),
        "tls_cert_file": Path("/tls.pem"),
        "tls_key_file": Path("/tls.key"),
    }
    return Settings(**({"crypto_policy": policy} | defaults | chosen))


@pytest.mark.threat("T87")
@pytest.mark.parametrize(("policy", "chosen", "told"), REFUSED)
def test_settings_that_a_policy_forbids(policy: str, chosen: dict[str, Any], told: str) -> None:
    """The variable, the algorithm, and what would be allowed."""
    with pytest.raises(ValueError, match=told):
        settings(policy, **chosen)
    settings("default", **chosen)


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("cnsa1", {}),
        ("cnsa1", {"enrollment_ca_algorithm": "rsa-4096"}),
        ("cnsa1", {"tls_ciphers": ("TLS_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384")}),
        ("cnsa2", {}),
        # What is not used is not judged.
        ("cnsa2", {"enrollment_ca_algorithm": "ecdsa-p384", "enrollment_ca_unencrypted": False}),
        ("cnsa1", {"tls_cert_file": None, "tls_key_file": None, "tls_ciphers": ("TLS_AES_128_GCM_SHA256",)}),
    ],
)
def test_settings_that_a_policy_allows(policy: str, chosen: dict[str, Any]) -> None:
    """They start, and say at each start what is used outside the suite."""
    (told,) = (line for line in settings(policy, **chosen).warnings() if "ITL_CRYPTO_POLICY" in line)
    assert "audit-note" in told
    assert f"attestation crypto inventory --policy {policy}" in told


def test_without_a_policy_nothing_is_said() -> None:
    """The default lets nothing through: it forbids nothing."""
    assert not [line for line in Settings().warnings() if "ITL_CRYPTO_POLICY" in line]


@pytest.mark.parametrize("policy", CNSA)
@pytest.mark.parametrize("variable", ["tls_cert_file", "operator_ca"])
def test_certificates_in_files(variable: str, policy: CryptoPolicy, tmp_path: Path) -> None:
    """The key of the service's own certificate, and of every CA of operators."""
    path = tmp_path / "certificates.pem"
    chosen: dict[str, Any] = {variable: path, "crypto_policy": policy.value}
    if variable == "tls_cert_file":
        chosen["tls_key_file"] = path
    for good in (P384, RSA_3072):
        path.write_bytes(certificate(good).public_bytes(Encoding.PEM))
        crypto_policy.check_files(Settings(**chosen))
    for bad in (P256, P521, RSA_2048, ed25519.Ed25519PrivateKey.generate()):
        path.write_bytes(certificate(bad).public_bytes(Encoding.PEM))
        with pytest.raises(SettingsInvalid, match=f"ITL_{variable.upper()}: CN=somebody"):
            crypto_policy.check_files(Settings(**chosen))
        crypto_policy.check_files(Settings(**(chosen | {"crypto_policy": "default"})))
    # What follows the service's own certificate was signed by others; in a bundle each one counts.
    both = certificate(P384).public_bytes(Encoding.PEM) + certificate(P256).public_bytes(Encoding.PEM)
    path.write_bytes(both)
    if variable == "tls_cert_file":
        crypto_policy.check_files(Settings(**chosen))
    else:
        with pytest.raises(SettingsInvalid):
            crypto_policy.check_files(Settings(**chosen))
    for unreadable in (b"", b"text"):
        path.write_bytes(unreadable)
        with pytest.raises(SettingsInvalid, match=r"cannot be read: no certificate \(PEM"):
            crypto_policy.check_files(Settings(**chosen))


@pytest.mark.anyio
async def test_a_bundle_of_operators_that_changes(tmp_path: Path) -> None:
    """Read again, it is judged again: a weak CA does not come in by an exchanged file."""
    path = tmp_path / "operators.pem"
    strong, weak = (OperatorCA(AT, key=key) for key in (P384, P256))
    path.write_bytes(strong.pem)
    found = MTLS(Settings(operator_ca=path, crypto_policy="cnsa1"))
    await found._current()
    path.write_bytes(weak.pem)
    with pytest.raises(RevocationUnknown):
        await found._current()
    with pytest.raises(SettingsInvalid, match="ecdsa-p256 is forbidden"):
        MTLS(Settings(operator_ca=path, crypto_policy="cnsa1"))
    MTLS(Settings(operator_ca=path))


def test_main_refuses_before_any_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both kinds of refusal end the program with a reason and a status."""
    monkeypatch.chdir(tmp_path)
    for name in ("DB_URL", "ENROLLMENT_CA_DIR"):
        monkeypatch.setenv(
            f"ITL_{name}", f"sqlite:///{tmp_path}/m.db" if name == "DB_URL" else f"{tmp_path}/ca"
        )
    monkeypatch.setenv("ITL_SERVICE_URL", "http://127.0.0.1:8080")
    monkeypatch.setenv("ITL_CRYPTO_POLICY", "cnsa2")
    monkeypatch.setenv("ITL_ENROLLMENT_CA_UNENCRYPTED", "true")
    assert main(["--prepare"]) == 2
    assert "allowed: ml-dsa-87" in capsys.readouterr().err
    monkeypatch.setenv("ITL_ENROLLMENT_CA_UNENCRYPTED", "false")
    path = tmp_path / "operators.pem"
    path.write_bytes(certificate(P256).public_bytes(Encoding.PEM))
    monkeypatch.setenv("ITL_OPERATOR_CA", str(path))
    assert main(["--prepare"]) == 1
    assert "ITL_OPERATOR_CA" in capsys.readouterr().err
    monkeypatch.delenv("ITL_OPERATOR_CA")
    for name in ("TLS_CERT_FILE", "TLS_KEY_FILE"):
        monkeypatch.setenv(f"ITL_{name}", str(path))
    assert main(["--prepare"]) == 1
    assert "ITL_TLS_CERT_FILE: CN=somebody: ecdsa-p256 is forbidden" in capsys.readouterr().err


@pytest.mark.parametrize("policy", CryptoPolicy)
def test_the_service_key(policy: CryptoPolicy, tmp_path: Path) -> None:
    """P-384 is let through everywhere: our tokens have no other. A file with another key is refused."""
    chosen = Settings(crypto_policy=policy.value)
    options = crypto_policy.service_key_options(chosen)
    uri = f"file:{tmp_path}/key.pem"
    load_signer(uri, create=True, options=options)
    pem = P256.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key.pem").write_bytes(pem)
    with pytest.raises(AlgorithmForbidden, match="ecdsa-p256"):
        load_signer(uri, options=options)


def test_keys_of_a_use() -> None:
    """What back-ends are given refuses for that use."""
    allowed = crypto_policy.allowed(settings("cnsa2"), Use.CA)
    allowed("ml-dsa-87")
    with pytest.raises(AlgorithmForbidden):
        allowed("rsa-4096")


# ---------------------------------------------------------------- keys of others


def ek(name: str) -> Public:
    """Return the public area of an EK of that template."""
    public = next(t.public for t in EK_TEMPLATES if t.name == name)
    if public.type == Alg.RSA:
        n = rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key().public_numbers().n
        return sealed_public(
            replace(public, modulus=(n << (public.key_bits - 2048) | 1).to_bytes(public.key_bits // 8))
        )
    key = {Curve.NIST_P256: P256, Curve.NIST_P384: P384, Curve.NIST_P521: P521}[Curve(public.curve)]
    numbers, size = (
        key.public_key().public_numbers(),
        (public.curve == Curve.NIST_P521) * 66 or key.key_size // 8,
    )
    return sealed_public(replace(public, x=numbers.x.to_bytes(size), y=numbers.y.to_bytes(size)))


def ak(key: Any = P384, hash_alg: int = Alg.SHA384, name_alg: int = Alg.SHA384) -> Public:
    """Return the public area of an AK."""
    public = ak_public(P256.public_key())
    if isinstance(key, rsa.RSAPrivateKey):
        n = key.public_key().public_numbers().n
        public = replace(
            public,
            type=Alg.RSA,
            curve=0,
            x=b"",
            y=b"",
            key_bits=key.key_size,
            modulus=n.to_bytes(key.key_size // 8),
            scheme=Scheme(alg=Alg.RSASSA, hash_alg=hash_alg),
            name_alg=name_alg,
        )
    else:
        numbers = key.public_key().public_numbers()
        curve = {256: Curve.NIST_P256, 384: Curve.NIST_P384, 521: Curve.NIST_P521}[key.key_size]
        size = (key.key_size + 7) // 8
        public = replace(
            public,
            curve=curve,
            x=numbers.x.to_bytes(size),
            y=numbers.y.to_bytes(size),
            scheme=Scheme(alg=Alg.ECDSA, hash_alg=hash_alg),
            name_alg=name_alg,
        )
    return sealed_public(public)


@pytest.mark.threat("T87")
@pytest.mark.parametrize("policy", CNSA)
@pytest.mark.parametrize("template", ["L-1", "L-2", "H-1", "H-2", "H-3", "H-4", "H-6", "H-7"])
def test_endorsement_keys(template: str, policy: CryptoPolicy) -> None:
    """P-384 and RSA from 3072 bits, with SHA-384 and AES-256; under `cnsa2` too, for nothing better exists."""
    crypto_policy.demand_tpm_keys(CryptoPolicy.DEFAULT, ek(template), ak())
    if template in EK_STRONG:
        crypto_policy.demand_tpm_keys(policy, ek(template), ak())
        return
    with pytest.raises(AlgorithmForbidden, match=f"{policy}; allowed"):
        crypto_policy.demand_tpm_keys(policy, ek(template), ak())


@pytest.mark.threat("T87")
@pytest.mark.parametrize(
    ("public", "allowed"),
    [
        (ak(), {"cnsa1", "cnsa2"}),
        (ak(RSA_3072), {"cnsa1", "cnsa2"}),
        (ak(P384, Alg.SHA512, Alg.SHA512), {"cnsa2"}),
        (ak(P384, Alg.SHA256, Alg.SHA384), set()),
        (ak(P384, Alg.SHA384, Alg.SHA256), set()),
        (ak(P256), set()),
        (ak(P521), set()),
        (ak(RSA_2048), set()),
    ],
)
@pytest.mark.parametrize("policy", CNSA)
def test_attestation_keys(public: Public, allowed: set[str], policy: CryptoPolicy) -> None:
    """Its curve or length, the hash of its name, and that of its signatures."""
    if policy.value in allowed:
        crypto_policy.demand_tpm_keys(policy, ek("H-3"), public)
        return
    with pytest.raises(AlgorithmForbidden):
        crypto_policy.demand_tpm_keys(policy, ek("H-3"), public)


def test_a_weak_cipher_of_an_ek() -> None:
    """Not a template, but each property counts alone."""
    strong = ek("H-3")
    assert strong.symmetric is not None
    weak = replace(strong, symmetric=replace(strong.symmetric, key_bits=128))
    with pytest.raises(AlgorithmForbidden, match="aes-128-cfb"):
        crypto_policy.demand_tpm_keys(CryptoPolicy.CNSA1, weak, ak())
    crypto_policy.demand_tpm_keys(
        CryptoPolicy.CNSA1, replace(strong, symmetric=None), replace(ak(), scheme=None)
    )


@pytest.mark.anyio
async def test_a_machine_is_refused(start: StartService) -> None:
    """At its introduction, with a code and an entry in the audit."""
    service = await start(crypto_policy="cnsa1")
    node = SoftwareNode()
    answer = await service.post("/api/v1/self-register", node.introduction())
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:itl:problem:algorithm-forbidden")
    assert "allowed: rsa-3072, rsa-4096, ecdh-p384" in answer.json()["detail"]
    assert (await service.audit(action="denied"))[0]["detail"] == "introduce: algorithm-forbidden"


@pytest.mark.threat("T87")
@pytest.mark.anyio
async def test_a_machine_that_came_before_the_policy(start: StartService) -> None:
    """It attests no more; what it was trusted for runs out."""
    before = await start()
    node = SoftwareNode()
    await before.admitted(node)
    after = await start(crypto_policy="cnsa2")
    answer = await after.try_attest(node)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:itl:problem:algorithm-forbidden")
    assert (await before.attest(node))["status"] == "attested"


@pytest.mark.parametrize("policy", CNSA)
def test_operators_certificates(policy: CryptoPolicy) -> None:
    """Its key, and the hash under its CA's signature."""
    crypto_policy.check_operator_certificate(policy, certificate(P384))
    crypto_policy.check_operator_certificate(policy, certificate(RSA_3072))
    for refused in (certificate(P256), certificate(RSA_2048), certificate(P384, hashes.SHA256())):
        crypto_policy.check_operator_certificate(CryptoPolicy.DEFAULT, refused)
        with pytest.raises(Unauthenticated, match=f"ITL_CRYPTO_POLICY={policy}"):
            crypto_policy.check_operator_certificate(policy, refused)
    # Of Ed25519 no hash is told; under a CA like that the key of the leaf still counts.
    edwards = certificate(P384, None, ed25519.Ed25519PrivateKey.generate())
    crypto_policy.check_operator_certificate(policy, edwards)


@pytest.mark.anyio
async def test_an_operator_comes_with_a_weak_certificate(tmp_path: Path) -> None:
    """Whose CA is strong, and would be let in without the policy."""
    strong = OperatorCA(AT, key=P384)
    path = tmp_path / "operators.pem"
    path.write_bytes(strong.pem)
    origin = Origin(request_id="1", address="192.0.2.7")
    for policy, key, welcome in (("default", P256, True), ("cnsa1", P256, False), ("default", P384, True)):
        found = MTLS(settings(policy, operator_ca=path))
        presented = strong.issue("alice", key=key).der
        if welcome:
            assert (await found.operator(presented, origin, AT)).cn == "alice"
            continue
        with pytest.raises(Unauthenticated, match="ecdsa-p256 is forbidden"):
            await found.operator(presented, origin, AT)


@pytest.mark.anyio
async def test_an_operator_comes_with_a_token(tmp_path: Path) -> None:
    """Of a provider whose keys are RSA-2048 nobody is let in under a suite; of one on P-384 everybody."""
    clock = HeldClock()
    realm = Realm(clock)
    provider = OIDC(
        settings_for(tmp_path, oidc_issuer=ISSUER, crypto_policy="cnsa2"), clock, transport=realm.transport()
    )
    origin = Origin(request_id="1", address="192.0.2.7")
    with pytest.raises(IdentityProviderUnavailable):
        await provider.operator(realm.token(), origin, clock.at)
    realm.keys = [a_key("ES384")]
    clock.advance(3600)
    assert (await provider.operator(realm.token(), origin, clock.at)).cn == "anna"
    await provider.aclose()


@pytest.mark.anyio
async def test_a_rotation_to_what_is_forbidden(start: StartService) -> None:
    """Does not begin; that a key of such an algorithm retires is not refused for it."""
    service = await start(
        enrollment_ca_unencrypted=True, crypto_policy="cnsa2", enrollment_ca_algorithm="ml-dsa-87"
    )
    body = {"step": "prepare", "algorithm": "ecdsa-p384", "reason": "for older clients"}
    answer = await service.operator("POST", "/ca/rotation", body)
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:itl:problem:algorithm-forbidden")
    answer = await service.operator("POST", "/ca/rotation", body | {"step": "retire"})
    assert answer.json()["type"] != "urn:itl:problem:algorithm-forbidden"


@pytest.mark.anyio
async def test_each_worker_looks_at_the_files(start: StartService, tmp_path: Path) -> None:
    """What starts without `main`, too."""
    path = tmp_path / "tls.pem"
    path.write_bytes(certificate(P256).public_bytes(Encoding.PEM))
    with pytest.raises(SettingsInvalid, match="ITL_TLS_CERT_FILE"):
        await start(crypto_policy="cnsa1", tls_cert_file=path, tls_key_file=path)


def jwk(key: Any, **members: str) -> dict[str, str]:
    """Return a signing key as an identity provider publishes it."""

    def number(value: int, size: int) -> str:
        return base64.urlsafe_b64encode(value.to_bytes(size)).rstrip(b"=").decode()

    if isinstance(key, rsa.RSAPrivateKey):
        n = key.public_key().public_numbers().n
        return {"kty": "RSA", "use": "sig", "n": number(n, key.key_size // 8), "e": "AQAB", **members}
    if isinstance(key, ed25519.Ed25519PrivateKey):
        x = base64.urlsafe_b64encode(key.public_key().public_bytes_raw()).rstrip(b"=").decode()
        return {"kty": "OKP", "crv": "Ed25519", "use": "sig", "x": x, **members}
    numbers, size = key.public_key().public_numbers(), (key.key_size + 7) // 8
    curve = f"P-{key.key_size}"
    return {
        "kty": "EC",
        "crv": curve,
        "use": "sig",
        "x": number(numbers.x, size),
        "y": number(numbers.y, size),
        **members,
    }


@pytest.mark.parametrize(
    ("key", "cnsa1", "cnsa2"),
    [
        (P384, {"ES384"}, {"ES384"}),
        (RSA_3072, {"RS384"}, {"RS384", "RS512"}),
        (P256, set(), set()),
        (P521, set(), set()),
        (RSA_2048, set(), set()),
        (ed25519.Ed25519PrivateKey.generate(), set(), set()),
    ],
)
def test_keys_of_an_identity_provider(key: Any, cnsa1: set[str], cnsa2: set[str]) -> None:
    """A key verifies only what the policy allows; one that is left with nothing is left out, and the log says why."""
    document = json.dumps({"keys": [jwk(key, kid="x")]}).encode()
    assert parse_jwks(document).by_id["x"]
    for policy, allowed in ((CryptoPolicy.CNSA1, cnsa1), (CryptoPolicy.CNSA2, cnsa2)):
        if not allowed:
            with pytest.raises(ProviderAnswerInvalid, match=f"ITL_CRYPTO_POLICY={policy} forbids"):
                parse_jwks(document, policy)
            continue
        (found,) = parse_jwks(document, policy).by_id["x"]
        assert found.algorithms == allowed


# ---------------------------------------------------------------- TLS


def handshake(server: ssl.SSLContext, group: str) -> str:
    """Let a client that offers only *group* connect in memory; return the suite."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_ecdh_curve(group)
    a_in, a_out, b_in, b_out = (ssl.MemoryBIO() for _ in range(4))
    one, two = client.wrap_bio(a_in, a_out), server.wrap_bio(b_in, b_out, server_side=True)
    done: set[int] = set()
    for _ in range(8):
        for side, (end, out, other) in enumerate(((one, a_out, b_in), (two, b_out, a_in))):
            if side not in done:
                try:
                    end.do_handshake()
                    done.add(side)
                except ssl.SSLWantReadError:
                    pass
            other.write(out.read())
    assert done == {0, 1}
    return (one.cipher() or ("",))[0]


@pytest.mark.parametrize("policy", CryptoPolicy)
def test_tls_agrees_on_p384(policy: CryptoPolicy, tmp_path: Path) -> None:
    """Under a suite on nothing else; without one OpenSSL's own choice stands."""
    path, key = tmp_path / "tls.pem", tmp_path / "tls.key"
    path.write_bytes(certificate(P384).public_bytes(Encoding.PEM))
    key.write_bytes(P384.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    found = ServerTLS.of(Settings(crypto_policy=policy.value, tls_cert_file=path, tls_key_file=key))
    assert found is not None
    assert handshake(build(found), "secp384r1") == "TLS_AES_256_GCM_SHA384"
    for other in ("prime256v1", "secp521r1"):
        if policy is CryptoPolicy.DEFAULT:
            handshake(build(found), other)
            continue
        with pytest.raises(ssl.SSLError):
            handshake(build(found), other)
