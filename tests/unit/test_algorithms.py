"""The inventory of algorithms: what each policy allows, and that nothing is used that it does not name."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa, rsa, x25519

from attestation.algorithms import (
    ALGORITHMS,
    USES,
    CryptoPolicy,
    Use,
    demand,
    exempt,
    in_suite,
    judge,
    name_of,
)
from attestation.errors import AlgorithmForbidden
from tests.docs.cryptography_page import declared, modules, where


@pytest.mark.parametrize(
    ("policy", "use", "algorithm", "allowed"),
    [
        (CryptoPolicy.CNSA1, Use.CA, "ecdsa-p384", True),
        (CryptoPolicy.CNSA1, Use.CA, "ml-dsa-87", False),
        (CryptoPolicy.CNSA2, Use.CA, "ml-dsa-87", True),
        (CryptoPolicy.CNSA2, Use.CA, "ecdsa-p384", False),
        (CryptoPolicy.CNSA1, Use.EK, "rsa-2048", False),
        (CryptoPolicy.CNSA2, Use.EK, "ecdh-p384", True),
        (CryptoPolicy.CNSA2, Use.LEAF, "rsa-8192", True),
        (CryptoPolicy.CNSA2, Use.LEAF, "rsa-3071", False),
        (CryptoPolicy.CNSA1, Use.LEAF, "rsa-3072", True),
        (CryptoPolicy.DEFAULT, Use.LEAF, "rsa-1024", False),
        (CryptoPolicy.DEFAULT, Use.LEAF, "DSAPublicKey", False),
    ],
)
def test_what_a_policy_allows(policy: CryptoPolicy, use: Use, algorithm: str, allowed: bool) -> None:
    """By hand, from the tables of the NSA and the rule for what hardware does not have."""
    if allowed:
        demand(policy, use, algorithm)
    else:
        with pytest.raises(AlgorithmForbidden, match=algorithm):
            demand(policy, use, algorithm)


@pytest.mark.parametrize("use", Use)
def test_every_use_is_described(use: Use) -> None:
    """One row each, of algorithms that the other table knows; `default` allows them all."""
    entry = USES[use]
    assert entry.use is use
    assert set(entry.algorithms) <= ALGORITHMS.keys()
    demand(CryptoPolicy.DEFAULT, use, *entry.algorithms)


# ---------------------------------------------------------------- the source

PRIMITIVES: Final = {
    # What the source may name -> what of the inventory covers it.
    r"SHA1": r"sha1",
    r"SHA256": r"sha256|hmac-sha256",
    r"SHA384": r"sha384|hmac-sha384|ecdsa-p384",
    r"SHA512": r"sha512|hmac-sha512",
    r"SECP256R1|NIST_P256|ECC_P256": r"ec(dsa|dh)-p256",
    r"SECP384R1|NIST_P384|ECC_P384": r"ec(dsa|dh)-p384",
    r"SECP521R1|NIST_P521": r"ec(dsa|dh)-p521",
    r"ECDSA|ECKey": r"ecdsa-p\d+",
    r"ECDH": r"ecdh-p\d+",
    r"RSA|RSASSA|RSAPSS|RSA(Public|Private)(Key|Numbers)|RSA_\d+|OAEP|PSS|PKCS1v15|MGF1|RSAKey": r"rsa-\d+",
    r"AESGCM": r"aes-256-gcm",
    r"AES|AES128|AES256|CFB": r"aes-\d+-\w+",
    r"aes_key_(un)?wrap_with_padding|AES_KEY_WRAP_PAD": r"aes-\d+-kwp",
    r"CBC": r"aes-\d+-cbc",
    r"PBKDF2HMAC": r"pbkdf2-\S+",
    r"HKDF": r"hkdf-\S+",
    r"Ed25519\w+|ED25519\w*": r"ed25519",
    r"MLDSA44\w+|ML_DSA_44": r"ml-dsa-44",
    r"MLDSA65\w+": r"ml-dsa-65",
    r"MLDSA87\w+|ML_DSA_87": r"ml-dsa-87",
    r"hashlib\.scrypt": r"scrypt",
    r"hashlib\.sha1": r"sha1",
    r"hashlib\.sha256": r"sha256|hmac-sha256",
    r"hashlib\.sha384": r"sha384|hmac-sha384",
    r"hashlib\.sha512": r"sha512|hmac-sha512",
    r"hashlib\.new": r"sha\d+",
    r"hmac\.(new|digest)|HMAC": r"hmac-sha\d+",
    r"TLS_[A-Z0-9_]+|ECDHE-\S+": r"TLS_[A-Z0-9_]+|ECDHE-\S+",
    r"(ES|RS|PS)(256|384|512)|EdDSA": r"ecdsa-p\d+|rsa-\d+|ed25519",
    r"ecdsa-p\d+|rsa-\d+|ml-dsa-\d+|ed25519": r"ecdsa-p\d+|rsa-\d+|ml-dsa-\d+|ed25519",
    r"ecc-p\d+": r"ecdsa-p\d+",
    r"S256": r"sha256",
    r"HS256": r"hmac-sha256",
}  # fmt: skip
KNOWN_ONLY: Final = {"SM2_P256", "SM3_256", "SM4", "NIST_P192", "NIST_P224", "SM2"}
"""Named to be refused."""
CRYPTOGRAPHIC: Final = re.compile(
    r"SHA\d+(_\d+)?|SHA3_\d+|MD5|SM[234]\w*|BLAKE2\w+|SECP\w+|SECT\d\w*|Brainpool\w+|NIST_P\d+|ECC_P\d+|ECDSA|ECDH"
    r"|RSA|RSASSA|RSAPSS|RSA(Public|Private)(Key|Numbers)|RSA_\d+|DSA\w*Key|OAEP|PSS|PKCS1v15|MGF1|(EC|RSA|OKP|Oct)Key"
    r"|AES\w{0,6}|CFB8?|CBC|CTR|ECB|XTS|GCM|OFB|ChaCha20\w*|TripleDES|ARC4|Camellia|SEED|IDEA|Blowfish|CAST5|Fernet"
    r"|(Ed|X)(25519|448)\w+|ED25519\w*|MLDSA\d+\w+|ML_DSA_\d+|MLKEM\w+"
    r"|PBKDF2HMAC|HKDF\w*|Scrypt|ConcatKDF\w+|X963KDF|KBKDF\w+|Argon2\w+|aes_key_wrap\w*|aes_key_unwrap\w*|Poly1305|CMAC|HMAC"
)
WORDS: Final = re.compile(
    r"TLS_[A-Z0-9_]+|ECDHE-\S+|(ES|RS|PS|HS)(256|384|512)|EdDSA|(ecdsa|ecc|rsa|ml-dsa)-p?\d+|ed25519|S256"
)
"""Strings that choose an algorithm. (`sha256` and its like are names of fields and banks.)"""


def named_in(path: Path) -> set[str]:
    """Return the names of algorithms in a module: calls of hashlib and hmac, classes and constants, words."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr="file_digest"), args=[_, ast.Constant(value=str(word))]):
                found.add(f"hashlib.{word}")
            case ast.Attribute(value=ast.Name(id="hashlib" | "hmac" as module), attr=attribute):
                found.add(f"{module}.{attribute}")
            case ast.ImportFrom(module="hashlib" | "hmac" as module, names=names):
                found |= {f"{module}.{each.name}" for each in names}
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
                if CRYPTOGRAPHIC.fullmatch(name):
                    found.add(name)
            case ast.Constant(value=str(word)) if WORDS.fullmatch(word):
                found.add(word)
    return found - {"hmac.compare_digest", "hashlib._Hash", "hashlib.file_digest"} - KNOWN_ONLY


@pytest.mark.threat("T87")
@pytest.mark.parametrize("module", sorted(modules()))
def test_nothing_is_used_that_the_inventory_does_not_name(module: str) -> None:
    """Each hash, cipher, curve, scheme and suite in a module stands in a row of the inventory that it declares.

    Whoever uses another one decides with it which use it is, and what each policy says of it.
    """
    algorithms = {each for use in declared(modules()[module]) for each in USES[use].algorithms}
    missing = []
    for name in sorted(named_in(modules()[module])):
        covers = [covered for names, covered in PRIMITIVES.items() if re.fullmatch(names, name)]
        if not any(re.fullmatch(each, algorithm) for each in covers for algorithm in algorithms):
            missing.append(name)
    assert not missing, (
        f"`# Algorithms for: …` of {module} names no use (attestation.algorithms.USES) of {missing}"
    )


def test_no_module_declares_what_it_does_not_do() -> None:
    """Who uses nothing any more would be read as a finding; so would a use that no module has."""
    assert not [name for name, path in modules().items() if declared(path) and not named_in(path)]
    assert all(where().values())


def test_the_walk_sees(tmp_path: Path) -> None:
    """Calls, imports, classes, constants and words, in whatever way a module names an algorithm; no fields of data."""
    source = tmp_path / "module.py"
    source.write_text(
        "import hashlib, hmac\n"
        "from hashlib import sha1\n"
        "from cryptography.hazmat.primitives.hashes import MD5 as plain\n"
        "from cryptography.hazmat.primitives.asymmetric import ec, dsa\n"
        "a = hashlib.sha256(b''), hmac.new(b'', b'', 'sha512'), hashlib.md5\n"
        "b = ec.SECP256K1(), dsa.DSAPublicKey, Alg.SM4, Curve.NIST_P521\n"
        "c = ['TLS_AES_128_GCM_SHA256', 'HS512', 'rsa-1024']\n"
        "d = entry.sha256, 'sha256', hmac.compare_digest(b'', b'')\n"
    )
    assert named_in(source) == {
        *(
            "hashlib.sha1",
            "hashlib.sha256",
            "hashlib.md5",
            "hmac.new",
            "MD5",
            "SECP256K1",
            "DSAPublicKey",
            "NIST_P521",
        ),
        *("TLS_AES_128_GCM_SHA256", "HS512", "rsa-1024"),
    }
    for unknown in ("hashlib.md5", "MD5", "SECP256K1", "DSAPublicKey", "HS512"):
        assert not any(re.fullmatch(names, unknown) for names in PRIMITIVES)


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (ec.derive_private_key(9, ec.SECP256R1()), "ecdsa-p256"),
        (ec.derive_private_key(9, ec.SECP384R1()), "ecdsa-p384"),
        (ec.derive_private_key(9, ec.SECP521R1()), "ecdsa-p521"),
        (ec.derive_private_key(9, ec.SECP256K1()), "ecdsa-secp256k1"),
        (rsa.generate_private_key(public_exponent=65537, key_size=2048), "rsa-2048"),
        (ed25519.Ed25519PrivateKey.generate(), "ed25519"),
        (mldsa.MLDSA44PrivateKey.generate(), "ml-dsa-44"),
        (mldsa.MLDSA65PrivateKey.generate(), "ml-dsa-65"),
        (mldsa.MLDSA87PrivateKey.generate(), "ml-dsa-87"),
        (x25519.X25519PrivateKey.generate(), "X25519PublicKey"),
    ],
)
def test_the_name_of_a_key(key: Any, name: str) -> None:
    """As the tables spell it; what they do not know is named by its class, and no use accepts it."""
    assert name_of(key.public_key()) == name
    known = name in ALGORITHMS
    assert in_suite(CryptoPolicy.DEFAULT, name) == known
    assert any(judge(CryptoPolicy.DEFAULT, use, name) is None for use in USES) == known


def test_the_same_curve_for_another_use() -> None:
    """An EK agrees on secrets, it does not sign."""
    assert name_of(ec.derive_private_key(9, ec.SECP384R1()).public_key(), agreement=True) == "ecdh-p384"


def test_refusals_say_what_is_allowed() -> None:
    """Of the same sort: whoever brings a key is not told of hashes; and where nothing is, that nothing is."""
    assert judge(CryptoPolicy.CNSA2, Use.CA, "rsa-4096") == (
        "rsa-4096 is forbidden for keys of the CA, and what they sign: certificates, CRLs, OCSP answers "
        "by ITL_CRYPTO_POLICY=cnsa2; allowed: ml-dsa-87"
    )
    assert (judge(CryptoPolicy.CNSA1, Use.SERVER_KEY, "sha256") or "").endswith("allowed: nothing")
    assert (judge(CryptoPolicy.CNSA1, Use.TPM_HASH, "sha256") or "").endswith("allowed: sha384, hmac-sha384")
    assert judge(CryptoPolicy.DEFAULT, Use.CA, "rsa-2048") == (
        "rsa-2048 is not used for keys of the CA, and what they sign: certificates, CRLs, OCSP answers"
    )


@pytest.mark.parametrize("use", Use)
def test_every_exemption_is_needed_and_explained(use: Use) -> None:
    """It names what a suite does not, for a use that has it, and says why; a transition only what CNSA 1.0 allows."""
    entry = USES[use]
    for each in entry.exemptions:
        assert each.algorithms <= set(entry.algorithms)
        assert len(each.reason) > 10
        assert not each.reason.endswith(".")
        for name in each.algorithms:
            assert not all(in_suite(policy, name) for policy in each.policies)
        if each.reason.startswith("transition: "):
            assert each.policies == {CryptoPolicy.CNSA2}
            assert all(in_suite(CryptoPolicy.CNSA1, name) for name in each.algorithms)


def test_what_is_exempt_is_listed() -> None:
    """What the service tells at every start; nothing under `default`."""
    assert exempt(CryptoPolicy.DEFAULT) == ()
    for policy in (CryptoPolicy.CNSA1, CryptoPolicy.CNSA2):
        told = exempt(policy)
        assert {Use.AUDIT_NOTE, Use.AUDIT_HASH, Use.PCR} <= set(told)
        assert Use.CA not in told
    assert Use.EK in exempt(CryptoPolicy.CNSA2)
    assert Use.EK not in exempt(CryptoPolicy.CNSA1)
