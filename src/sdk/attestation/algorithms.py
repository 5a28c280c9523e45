"""Every algorithm in use, by what it is used for, and what the suites of the NSA say about it (CNSA 1.0 and 2.0).

Two tables. `ALGORITHMS` says of each algorithm whether it is in CNSA 1.0 (CNSSP 15: AES-256, SHA-384, ECDSA and ECDH
on P-384, RSA and DH from 3072 bits), in CNSA 2.0 (AES-256, SHA-384 and SHA-512, ML-KEM-1024, ML-DSA-87; LMS and XMSS
for firmware), and whether a quantum computer breaks it. `USES` says for what which of them are used, who chooses, and
which are let through outside the suites, each time with its reason: nothing is let through that is not written here.

`ITL_CRYPTO_POLICY` names a `CryptoPolicy`; `demand` refuses what it forbids. Where a suite knows an algorithm for a
use, but nothing that exists offers it (no TPM has ML-DSA), the rule under `cnsa2` is what CNSA 1.0 allows
(docs/adr/0040).

Where they are used, each module declares itself, in one line, `# Algorithms for: …` (docs/adr/0075). The inventory
(`attestation crypto inventory`, docs/operate/cryptography.md) is written from both, and a test walks the source: an
algorithm that a module names and no use of its line has fails it.
"""

# Longer than 500 lines: two tables, and the few functions that read them.
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa, rsa

from attestation.errors import AlgorithmForbidden


class CryptoPolicy(StrEnum):
    """What `ITL_CRYPTO_POLICY` may say."""

    DEFAULT = "default"
    CNSA1 = "cnsa1"
    CNSA2 = "cnsa2"


class Primitive(StrEnum):
    """What an algorithm does."""

    HASH = "hash"
    MAC = "mac"
    CIPHER = "cipher"
    SIGNATURE = "signature"
    KEY_ESTABLISHMENT = "key establishment"
    KEY = "signature or key establishment"
    DERIVATION = "key derivation"
    TLS_SUITE = "tls suite"


class Chooser(StrEnum):
    """Who decides which algorithm it is."""

    WE = "us"
    DEPLOYMENT = "the deployment"
    HARDWARE = "the hardware"
    PROTOCOL = "a protocol of others"
    PEER = "the one who brings the key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One algorithm.

    Args:
        name: As it is spelled everywhere here.
        primitive: What it does.
        cnsa1: In CNSA 1.0.
        cnsa2: In CNSA 2.0.
        quantum_vulnerable: A quantum computer breaks it (Shor); what it takes from symmetric keys and hashes is not
            meant, nor what is broken already: collisions of SHA-1.
        specification: Where it is defined.
    """

    name: str
    primitive: Primitive
    cnsa1: bool
    cnsa2: bool
    quantum_vulnerable: bool
    specification: str


def _algorithm(
    name: str, primitive: Primitive, suites: str, specification: str, *, broken: bool = False
) -> tuple[str, Algorithm]:
    return name, Algorithm(
        name=name,
        primitive=primitive,
        cnsa1="1" in suites,
        cnsa2="2" in suites,
        quantum_vulnerable=broken,
        specification=specification,
    )


_RSA: Final = "FIPS 186-5, RFC 8017"
_EC: Final = "FIPS 186-5, SP 800-186"
_ECDH: Final = "SP 800-56A, SP 800-186"

ALGORITHMS: Final[Mapping[str, Algorithm]] = MappingProxyType(
    dict(
        (
            _algorithm("sha1", Primitive.HASH, "", "FIPS 180-4"),
            _algorithm("sha256", Primitive.HASH, "", "FIPS 180-4"),
            _algorithm("sha384", Primitive.HASH, "12", "FIPS 180-4"),
            _algorithm("sha512", Primitive.HASH, "2", "FIPS 180-4"),
            _algorithm("hmac-sha256", Primitive.MAC, "", "FIPS 198-1"),
            _algorithm("hmac-sha384", Primitive.MAC, "12", "FIPS 198-1"),
            _algorithm("hmac-sha512", Primitive.MAC, "2", "FIPS 198-1"),
            _algorithm("pbkdf2-hmac-sha384", Primitive.DERIVATION, "12", "RFC 8018 §5.2"),
            _algorithm("scrypt", Primitive.DERIVATION, "", "RFC 7914"),
            _algorithm("hkdf-sha384", Primitive.DERIVATION, "12", "RFC 5869"),
            _algorithm("aes-128-cfb", Primitive.CIPHER, "", "FIPS 197, SP 800-38A"),
            _algorithm("aes-256-cfb", Primitive.CIPHER, "12", "FIPS 197, SP 800-38A"),
            _algorithm("aes-256-cbc", Primitive.CIPHER, "12", "FIPS 197, SP 800-38A"),
            _algorithm("aes-256-gcm", Primitive.CIPHER, "12", "FIPS 197, SP 800-38D"),
            _algorithm("aes-256-kwp", Primitive.CIPHER, "12", "FIPS 197, SP 800-38F, RFC 5649"),
            _algorithm("rsa-2048", Primitive.KEY, "", _RSA, broken=True),
            _algorithm("rsa-3072", Primitive.KEY, "1", _RSA, broken=True),
            _algorithm("rsa-4096", Primitive.KEY, "1", _RSA, broken=True),
            _algorithm("ecdsa-p256", Primitive.SIGNATURE, "", _EC, broken=True),
            _algorithm("ecdsa-p384", Primitive.SIGNATURE, "1", _EC, broken=True),
            _algorithm("ecdsa-p521", Primitive.SIGNATURE, "", _EC, broken=True),
            _algorithm("ecdh-p256", Primitive.KEY_ESTABLISHMENT, "", _ECDH, broken=True),
            _algorithm("ecdh-p384", Primitive.KEY_ESTABLISHMENT, "1", _ECDH, broken=True),
            _algorithm("ecdh-p521", Primitive.KEY_ESTABLISHMENT, "", _ECDH, broken=True),
            _algorithm("x25519", Primitive.KEY_ESTABLISHMENT, "", "RFC 7748", broken=True),
            _algorithm("ed25519", Primitive.SIGNATURE, "", "RFC 8032", broken=True),
            _algorithm("ml-dsa-44", Primitive.SIGNATURE, "", "FIPS 204"),
            _algorithm("ml-dsa-65", Primitive.SIGNATURE, "", "FIPS 204"),
            _algorithm("ml-dsa-87", Primitive.SIGNATURE, "2", "FIPS 204"),
            _algorithm("TLS_AES_256_GCM_SHA384", Primitive.TLS_SUITE, "12", "RFC 8446, RFC 9151"),
            _algorithm("TLS_AES_128_GCM_SHA256", Primitive.TLS_SUITE, "", "RFC 8446"),
            _algorithm("TLS_CHACHA20_POLY1305_SHA256", Primitive.TLS_SUITE, "", "RFC 8446"),
            _algorithm(
                "ECDHE-ECDSA-AES256-GCM-SHA384", Primitive.TLS_SUITE, "1", "RFC 5289, RFC 9151", broken=True
            ),
            _algorithm(
                "ECDHE-RSA-AES256-GCM-SHA384", Primitive.TLS_SUITE, "1", "RFC 5289, RFC 9151", broken=True
            ),
        )
    )
)

_RSA_BITS: Final = re.compile(r"rsa-([1-9][0-9]{2,4})")
CNSA1_RSA_BITS: Final = 3072
LEAST_RSA_BITS: Final = 2048
"""Shorter keys are refused everywhere, whatever the policy."""


def in_suite(policy: CryptoPolicy, algorithm: str) -> bool:
    """Return True if the suite of *policy* names *algorithm*; under `default` everything that we know is in.

    RSA is judged by its length: from 3072 bits in CNSA 1.0, never in CNSA 2.0.
    """
    if policy is CryptoPolicy.DEFAULT:
        return algorithm in ALGORITHMS or _RSA_BITS.fullmatch(algorithm) is not None
    if rsa_bits := _RSA_BITS.fullmatch(algorithm):
        return policy is CryptoPolicy.CNSA1 and int(rsa_bits[1]) >= CNSA1_RSA_BITS
    known = ALGORITHMS.get(algorithm)
    return known is not None and (known.cnsa1 if policy is CryptoPolicy.CNSA1 else known.cnsa2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemption:
    """Algorithms that are let through although the suite of a policy does not name them.

    Args:
        policies: Under which.
        algorithms: Which ones.
        reason: Why, in one sentence.
    """

    policies: frozenset[CryptoPolicy]
    algorithms: frozenset[str]
    reason: str


class Use(StrEnum):
    """What something is used for."""

    EK = "tpm-ek"
    AK = "tpm-ak"
    TPM_HASH = "tpm-hash"
    TPM_STORAGE = "tpm-storage"
    TPM_SESSION = "tpm-session"
    TPM_PARENT = "tpm-parent"
    PCR = "pcr-bank"
    EVENT_LOG = "event-log"
    PROOF = "node-proof"
    EK_CERTIFICATE = "ek-certificate"
    HARDWARE_EVIDENCE = "hardware-evidence"
    TRUST_BUNDLE = "trust-bundle"
    ENVELOPE = "sealed-configuration"
    SERVER_KEY = "server-made-key"
    SERVICE_KEY = "service-key"
    MACHINE_TOKEN = "machine-token"  # noqa: S105 -- a name
    ACCESS_TOKEN = "access-token"  # noqa: S105 -- a name
    ACME = "acme-account"
    OPERATOR_CERTIFICATE = "operator-certificate"
    CA = "ca-key"
    CLUSTER_CA = "cluster-ca-key"
    LEAF = "certified-key"
    REQUEST = "proof-of-possession"
    KEY_ID = "key-identifier"
    KEY_FILE = "key-file"
    KEPT_KEY = "kept-key"
    KEPT_SECRET = "kept-secret"  # noqa: S105 -- the name of a use
    MASTER_KEY = "master-key"
    WEBHOOK = "webhook"
    DEVICE_KEY = "device-key"
    WRAPPING = "wrapped-key"
    PROVISIONING = "provisioning-bundle"
    PIN = "refused-pin"
    AUDIT_HASH = "audit-hash"
    AUDIT_NOTE = "audit-note"
    PUBLICATION_LOG = "publication-log"
    TLS_SUITE = "tls-suite"
    TLS_GROUP = "tls-group"
    TLS_CERTIFICATE = "tls-certificate"
    NODE_PROXY = "node-proxy"
    BEARER = "bearer-secret"
    PKCE = "login"
    WEB_FORM = "web-form"
    DIGEST = "digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of the inventory.

    Args:
        use: What it is for.
        title: The same in words.
        algorithms: All that are accepted under `default`.
        chooser: Who decides which.
        parameters: What else is fixed.
        enforced: When a policy refuses, as the end of a sentence; empty where it does not.
        exemptions: What is let through outside a suite.
        any_rsa: RSA of other lengths, from 2048 bits, is accepted too.
    """

    use: Use
    title: str
    algorithms: tuple[str, ...]
    chooser: Chooser
    parameters: str
    enforced: str = ""
    exemptions: tuple[Exemption, ...] = ()
    any_rsa: bool = False


def _exempt(reason: str, *algorithms: str, policies: str = "12") -> Exemption:
    named = {"1": CryptoPolicy.CNSA1, "2": CryptoPolicy.CNSA2}
    return Exemption(
        policies=frozenset(named[digit] for digit in policies),
        algorithms=frozenset(algorithms),
        reason=reason,
    )


def _transition(*algorithms: str, why: str) -> Exemption:
    return _exempt(f"transition: {why}", *algorithms, policies="2")


_NO_POST_QUANTUM_TPM: Final = "no TPM has an algorithm of CNSA 2.0 for this"
_FORMAT: Final = "the format knows no other; another hash is another version of the format"
_LABEL: Final = (
    "names and compares what somebody authenticated otherwise; API, database and files know it by this name"
)
_READ: Final = (
    "made by others and only read: it is believed as far as the key that was quoted or pinned beside it"
)

USES: Final[Mapping[Use, Entry]] = MappingProxyType(
    {
        entry.use: entry
        for entry in (
            Entry(
                use=Use.EK,
                title="endorsement keys of TPMs",
                algorithms=("rsa-2048", "rsa-3072", "rsa-4096", "ecdh-p256", "ecdh-p384", "ecdh-p521"),
                chooser=Chooser.HARDWARE,
                parameters="EK templates of the TCG: L-1, L-2, H-1 to H-4, H-6, H-7; RSA-OAEP or ECDH with KDFe, KDFa",
                enforced="when a machine introduces itself, and each time it attests",
                exemptions=(_transition("rsa-3072", "ecdh-p384", why=_NO_POST_QUANTUM_TPM),),
            ),
            Entry(
                use=Use.AK,
                title="attestation keys of TPMs",
                algorithms=("rsa-2048", "rsa-3072", "rsa-4096", "ecdsa-p256", "ecdsa-p384", "ecdsa-p521"),
                chooser=Chooser.PEER,
                parameters="ECDSA, RSASSA (PKCS#1 v1.5) or RSAPSS, with the hash in the key's public area",
                enforced="when a machine introduces itself, and each time it attests",
                exemptions=(_transition("rsa-3072", "ecdsa-p384", why=_NO_POST_QUANTUM_TPM),),
            ),
            Entry(
                use=Use.TPM_HASH,
                title="hashes of a TPM's names, signatures and credentials",
                algorithms=("sha256", "sha384", "sha512", "hmac-sha256", "hmac-sha384", "hmac-sha512"),
                chooser=Chooser.HARDWARE,
                parameters="nameAlg of EK and AK, hash of the AK's scheme; KDFa, KDFe and HMAC with the EK's nameAlg",
                enforced="when a machine introduces itself, and each time it attests",
            ),
            Entry(
                use=Use.TPM_STORAGE,
                title="ciphers of a TPM's storage keys",
                algorithms=("aes-128-cfb", "aes-256-cfb"),
                chooser=Chooser.HARDWARE,
                parameters="fixed by the EK's template; protects credentials, duplicates and wrapped keys",
                enforced="when a machine introduces itself, and each time it attests",
            ),
            Entry(
                use=Use.TPM_SESSION,
                title="sessions between a program and the TPM of its own machine",
                algorithms=("aes-128-cfb", "sha256", "hmac-sha256"),
                chooser=Chooser.WE,
                parameters="salted to a key of the TPM; the first parameter is encrypted",
                exemptions=(
                    _exempt(
                        "stays inside one machine, whose TPM may have AES-128 only; the service believes nothing of it",
                        "aes-128-cfb",
                        "sha256",
                        "hmac-sha256",
                    ),
                ),
            ),
            Entry(
                use=Use.TPM_PARENT,
                title="the storage key under which a machine's TPM wraps the keys that it makes",
                algorithms=("ecdh-p256", "aes-128-cfb", "sha256"),
                chooser=Chooser.HARDWARE,
                parameters="the storage primary of the TCG's template, which every TPM makes again",
                exemptions=(
                    _exempt(
                        "wraps what leaves neither the machine nor, in the clear, its TPM; the service cannot see it",
                        "ecdh-p256",
                        "aes-128-cfb",
                        "sha256",
                    ),
                ),
            ),
            Entry(
                use=Use.PCR,
                title="banks of PCRs that are quoted",
                algorithms=("sha256", "sha384", "sha512"),
                chooser=Chooser.DEPLOYMENT,
                parameters="the bank that a policy names; SHA-1 is never believed alone",
                exemptions=(
                    _exempt("firmware fills the bank of SHA-256; many TPMs have no other", "sha256"),
                    _exempt("CNSA 2.0 names it", "sha512", policies="1"),
                ),
            ),
            Entry(
                use=Use.EVENT_LOG,
                title="digests in event logs and IMA lists",
                algorithms=("sha1", "sha256", "sha384", "sha512"),
                chooser=Chooser.HARDWARE,
                parameters="replayed against the bank that was quoted; others are passed over",
                exemptions=(_exempt(_READ, "sha1", "sha256", "sha512"),),
            ),
            Entry(
                use=Use.PROOF,
                title="proofs that a node computes: activation, EK key attestation, bindings of certified keys",
                algorithms=("sha256", "hmac-sha256"),
                chooser=Chooser.WE,
                parameters="HMAC under 32 random bytes of ours; qualifyingData over our nonce",
                exemptions=(_exempt(_FORMAT, "sha256", "hmac-sha256"),),
            ),
            Entry(
                use=Use.EK_CERTIFICATE,
                title="vendors' certificates of TPMs, and their revocation lists",
                algorithms=(
                    *("rsa-2048", "rsa-3072", "rsa-4096", "ecdsa-p256", "ecdsa-p384", "ecdsa-p521"),
                    *("sha1", "sha256", "sha384", "sha512"),
                ),
                chooser=Chooser.HARDWARE,
                parameters="PKCS#1 v1.5, PSS, ECDSA; SHA-1 only where the certificate itself is pinned",
                exemptions=(
                    _exempt(
                        "signed by the vendor, once, for the life of the TPM; the EK itself is judged by its own row",
                        *("rsa-2048", "rsa-3072", "rsa-4096", "ecdsa-p256", "ecdsa-p384", "ecdsa-p521"),
                        *("sha1", "sha256", "sha512"),
                    ),
                ),
                any_rsa=True,
            ),
            Entry(
                use=Use.HARDWARE_EVIDENCE,
                title="reports and quotes of confidential hardware, what vouches for them, and their report data",
                algorithms=(
                    *("rsa-2048", "rsa-4096", "ecdsa-p256", "ecdsa-p384"),
                    *("sha256", "sha384", "sha512"),
                ),
                chooser=Chooser.HARDWARE,
                parameters="ECDSA of processors and GPUs; RSA-PSS of AMD's chains; PKCS#1 v1.5 of Azure's vTPMs",
                exemptions=(
                    _exempt(
                        "signed by the processor, GPU or vTPM and its vendor, as they are made",
                        *("rsa-2048", "rsa-4096", "ecdsa-p256", "ecdsa-p384"),
                        *("sha256", "sha512"),
                    ),
                ),
            ),
            Entry(
                use=Use.TRUST_BUNDLE,
                title="the bundle of vendors' certificates",
                algorithms=("ed25519", "sha256"),
                chooser=Chooser.PROTOCOL,
                parameters="signed note over the manifest (C2SP signed-note); certificates by digest",
                exemptions=(_exempt(_FORMAT, "ed25519", "sha256"),),
            ),
            Entry(
                use=Use.ENVELOPE,
                title="sealed configurations",
                algorithms=("aes-256-gcm", "sha256", "ecdh-p384", "hkdf-sha384", "sha384"),
                chooser=Chooser.WE,
                parameters="ek-aes256gcm-v2: fresh key and IV; the key travels as a credential for EK and AK. "
                "tee-p384-aes256gcm-v1: the key is agreed with the subject key of a confidential machine",
                enforced="by the EK: see its row; without a TPM P-384 alone",
                exemptions=(_exempt(f"digest inside what AES-256-GCM authenticates; {_FORMAT}", "sha256"),),
            ),
            Entry(
                use=Use.SERVER_KEY,
                title="keys that the service makes for a machine (compatibility)",
                algorithms=("rsa-2048", "rsa-3072", "rsa-4096", "sha256", "aes-256-gcm", "ecdsa-p384"),
                chooser=Chooser.WE,
                parameters="itl-server-key-v1: a P-384 key under AES-256-GCM, its key under RSA-OAEP with SHA-256",
                enforced="at start: ITL_COMPAT_SERVER_KEYS, ITL_COMPAT_OFFLINE_BUNDLE",
            ),
            Entry(
                use=Use.SERVICE_KEY,
                title="what the service signs: directives, results, configurations, sealed bundles",
                algorithms=("ecdsa-p384", "sha384"),
                chooser=Chooser.WE,
                parameters="JWS ES384 (RFC 7518 §3.4), r ‖ s; DSSE v1, DER",
                enforced="at start: ITL_SERVICE_KEY",
                exemptions=(
                    _transition(
                        "ecdsa-p384",
                        why="agents and relying parties know ES384 only; JWS with ML-DSA is not built",
                    ),
                ),
            ),
            Entry(
                use=Use.MACHINE_TOKEN,
                title="identity tokens of machines",
                algorithms=("ecdsa-p256", "rsa-4096", "sha256"),
                chooser=Chooser.DEPLOYMENT,
                parameters="JWS ES256 (r ‖ s) and RS256 (PKCS#1 v1.5), RFC 7518; thumbprints by RFC 7638",
                exemptions=(
                    _exempt(
                        "clusters, secret stores and clouds verify ES256 and RS256; the service believes nothing by it",
                        "ecdsa-p256",
                        "rsa-4096",
                        "sha256",
                    ),
                ),
            ),
            Entry(
                use=Use.ACCESS_TOKEN,
                title="access tokens of the identity provider",
                algorithms=(
                    *(
                        "rsa-2048",
                        "rsa-3072",
                        "rsa-4096",
                        "ecdsa-p256",
                        "ecdsa-p384",
                        "ecdsa-p521",
                        "ed25519",
                    ),
                    *("sha256", "sha384", "sha512"),
                ),
                chooser=Chooser.PEER,
                parameters="RS256, RS384, RS512, PS256, ES256, ES384, ES512, EdDSA; the key says which",
                enforced="when a key of the provider is read",
                exemptions=(
                    _transition("rsa-3072", "ecdsa-p384", why="no identity provider signs with ML-DSA"),
                ),
                any_rsa=True,
            ),
            Entry(
                use=Use.ACME,
                title="keys of ACME accounts",
                algorithms=(
                    *("rsa-2048", "rsa-3072", "rsa-4096", "ecdsa-p256", "ecdsa-p384", "ed25519"),
                    *("sha256", "sha384", "hmac-sha256"),
                ),
                chooser=Chooser.PEER,
                parameters="JWS ES256, ES384, EdDSA, RS256; HS256 of external accounts; thumbprints by RFC 7638",
                enforced="when an account is made, and at each of its requests",
                exemptions=(
                    _exempt(
                        "RFC 8555 knows no other for thumbprints and external accounts; nonces are only used once",
                        "sha256",
                        "hmac-sha256",
                    ),
                    _transition("rsa-3072", "ecdsa-p384", why="no ACME client signs with ML-DSA"),
                ),
                any_rsa=True,
            ),
            Entry(
                use=Use.OPERATOR_CERTIFICATE,
                title="client certificates of operators",
                algorithms=(
                    *("rsa-2048", "rsa-3072", "rsa-4096", "ecdsa-p256", "ecdsa-p384", "ecdsa-p521"),
                    *("sha256", "sha384", "sha512"),
                ),
                chooser=Chooser.PEER,
                parameters="the certificate's own key, and that of its CA; the hash under the CA's signature",
                enforced="at start: ITL_OPERATOR_CA; when one is presented",
                exemptions=(
                    _transition(
                        "rsa-3072", "ecdsa-p384", why="client certificates with ML-DSA are not verified here"
                    ),
                ),
                any_rsa=True,
            ),
            Entry(
                use=Use.CA,
                title="keys of the CA, and what they sign: certificates, CRLs, OCSP answers",
                algorithms=("ecdsa-p384", "rsa-4096", "ml-dsa-87", "sha384"),
                chooser=Chooser.DEPLOYMENT,
                parameters="ECDSA and PKCS#1 v1.5 with SHA-384; ML-DSA with an empty context.",
                enforced="at start: ITL_ENROLLMENT_CA_ALGORITHM; when a rotation names another",
            ),
            Entry(
                use=Use.CLUSTER_CA,
                title="CA keys that a cluster has in hardware of its own, and what they sign",
                algorithms=("ecdsa-p256", "ecdsa-p384", "rsa-4096", "ml-dsa-87", "sha256", "sha384"),
                chooser=Chooser.DEPLOYMENT,
                parameters="as those of the CA; P-256 with SHA-256, in a TPM alone",
                enforced="by the cluster: keyType of its issuers",
                exemptions=(
                    _exempt(
                        "the cluster's own CA: the service believes no machine and nobody by it",
                        *("ecdsa-p256", "ecdsa-p384", "rsa-4096", "ml-dsa-87", "sha256"),
                    ),
                ),
            ),
            Entry(
                use=Use.LEAF,
                title="keys that the CA certifies",
                algorithms=(
                    *(
                        "rsa-2048",
                        "rsa-3072",
                        "rsa-4096",
                        "ecdsa-p256",
                        "ecdsa-p384",
                        "ecdsa-p521",
                        "ed25519",
                    ),
                    *("ml-dsa-44", "ml-dsa-65", "ml-dsa-87"),
                ),
                chooser=Chooser.PEER,
                parameters="made in the TPM of a machine, or brought by an operator",
                enforced="when a certificate is asked for",
                exemptions=(_transition("rsa-3072", "ecdsa-p384", why=_NO_POST_QUANTUM_TPM),),
                any_rsa=True,
            ),
            Entry(
                use=Use.REQUEST,
                title="signatures that prove possession: requests, challenges of an enrolment",
                algorithms=("sha256", "sha384", "sha512"),
                chooser=Chooser.PEER,
                parameters="by the key that is certified, which its own row judges",
                exemptions=(
                    _exempt(
                        "proves possession at one moment, over bytes that we chose or judged",
                        "sha256",
                        "sha512",
                    ),
                ),
            ),
            Entry(
                use=Use.KEY_ID,
                title="identifiers of issuers and keys: OCSP CertID, responder, AKI, SKI",
                algorithms=("sha1", "sha256"),
                chooser=Chooser.PROTOCOL,
                parameters="RFC 6960 §4.1.1, RFC 5280 §4.2.1.2, RFC 7093",
                exemptions=(_exempt("finds a key and authenticates nothing", "sha1", "sha256"),),
            ),
            Entry(
                use=Use.KEY_FILE,
                title="encrypted key files",
                algorithms=("pbkdf2-hmac-sha384", "aes-256-cbc", "sha384"),
                chooser=Chooser.WE,
                parameters="PBES2, 210,000 iterations, salt of 32 bytes; what others encrypted otherwise is read, too",
            ),
            Entry(
                use=Use.KEPT_KEY,
                title="keys that answer OCSP, kept in the database",
                algorithms=("aes-256-gcm", "hkdf-sha384", "sha384"),
                chooser=Chooser.WE,
                parameters="itl-ocsp-delegate/v1: under a secret of the service's key, bound to certificate and CA key",
            ),
            Entry(
                use=Use.KEPT_SECRET,
                title="what extensions keep in the database, disk keys that they seal, and configurations of machines",
                algorithms=("aes-256-gcm", "hmac-sha384"),
                chooser=Chooser.WE,
                parameters="random keys of 256 bits, wrapped under a key-encryption key that is named by URI; what is "
                "encrypted is bound to whose it is",
            ),
            Entry(
                use=Use.MASTER_KEY,
                title="the master key of secrets, where it is a passphrase",
                algorithms=("scrypt",),
                chooser=Chooser.DEPLOYMENT,
                parameters="N 65536, r 8, p 1, salt of 16 bytes; a key-encryption key by URI needs none",
                exemptions=(
                    _exempt("a passphrase is a choice; a key-encryption key by URI is the other", "scrypt"),
                ),
            ),
            Entry(
                use=Use.WEBHOOK,
                title="signatures of webhooks",
                algorithms=("hmac-sha256",),
                chooser=Chooser.PROTOCOL,
                parameters="Standard Webhooks 1.0.0, `v1`; secrets of 32 bytes",
                exemptions=(_exempt("Standard Webhooks knows no other MAC", "hmac-sha256"),),
            ),
            Entry(
                use=Use.DEVICE_KEY,
                title="keys of ours on PKCS#11 tokens and in TPMs",
                algorithms=(
                    *(
                        "rsa-2048",
                        "rsa-3072",
                        "rsa-4096",
                        "ecdsa-p256",
                        "ecdsa-p384",
                        "ecdsa-p521",
                        "ml-dsa-87",
                    ),
                    *("sha256", "sha384", "sha512"),
                ),
                chooser=Chooser.DEPLOYMENT,
                parameters="what a device can; what the key is for decides which of them",
                enforced="by what the key is for: CA, service key",
            ),
            Entry(
                use=Use.WRAPPING,
                title="keys of the CA on their way into a token",
                algorithms=("rsa-3072", "rsa-4096", "aes-256-kwp", "sha256", "sha1"),
                chooser=Chooser.DEPLOYMENT,
                parameters="an AES-256 key under RSA-OAEP, with SHA-1 only where it is named; RFC 5649 around the key",
                exemptions=(
                    _exempt(
                        "inside OAEP, whose security rests on no collision of them; tokens know others rarely",
                        "sha256",
                        "sha1",
                    ),
                    _transition("rsa-3072", why="PKCS #11 2.40 has no algorithm of CNSA 2.0 that unwraps"),
                ),
            ),
            Entry(
                use=Use.PROVISIONING,
                title="bundles by which administrators hand a CA key to attested hardware",
                algorithms=("ecdsa-p384", "ml-dsa-87", "sha384", "sha256"),
                chooser=Chooser.DEPLOYMENT,
                parameters="detached JWS: ES384 or ML-DSA-87; an issuer lists signers by digest",
                exemptions=(
                    _transition("ecdsa-p384", why="administrators' cards sign no ML-DSA yet"),
                    _exempt(f"names a key or a bundle; {_FORMAT}", "sha256"),
                ),
            ),
            Entry(
                use=Use.PIN,
                title="recognising a PIN or password that was refused",
                algorithms=("sha256", "hmac-sha256"),
                chooser=Chooser.WE,
                parameters="under a salt of the start, in memory only",
                exemptions=(_exempt("never leaves the service's processes", "sha256", "hmac-sha256"),),
            ),
            Entry(
                use=Use.AUDIT_HASH,
                title="the audit log: chain, Merkle tree, time stamps",
                algorithms=("sha256",),
                chooser=Chooser.PROTOCOL,
                parameters="RFC 9162 §2.1, C2SP tlog-tiles; imprint of RFC 3161",
                exemptions=(_exempt(_FORMAT, "sha256"),),
            ),
            Entry(
                use=Use.AUDIT_NOTE,
                title="signatures of checkpoints and witnesses",
                algorithms=("ed25519", "ml-dsa-44", "sha256"),
                chooser=Chooser.PROTOCOL,
                parameters="C2SP signed-note, tlog-cosignature: both keys sign, both are demanded",
                exemptions=(
                    _exempt(
                        "witnesses of C2SP know these two and no other; both must be forged to forge a checkpoint",
                        "ed25519",
                        "ml-dsa-44",
                        "sha256",
                    ),
                ),
            ),
            Entry(
                use=Use.PUBLICATION_LOG,
                title="checkpoints in a Rekor log, for auditors who publish them",
                algorithms=("ecdsa-p256", "ed25519", "sha256"),
                chooser=Chooser.PROTOCOL,
                parameters="Rekor API v1: its signatures are of P-256, the statement's is the log's own of Ed25519",
                exemptions=(
                    _exempt(
                        "Rekor knows no other; it is evidence beside that of witnesses",
                        *("ecdsa-p256", "ed25519", "sha256"),
                    ),
                ),
            ),
            Entry(
                use=Use.TLS_SUITE,
                title="suites of TLS in the service",
                algorithms=(
                    *("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
                    *("ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
                ),
                chooser=Chooser.DEPLOYMENT,
                parameters="TLS 1.3 unless ITL_TLS_MIN_VERSION says 1.2; what a proxy negotiates is its own",
                enforced="at start: ITL_TLS_CIPHERS",
            ),
            Entry(
                use=Use.TLS_GROUP,
                title="key agreement of TLS in the service",
                algorithms=("x25519", "ecdh-p256", "ecdh-p384", "ecdh-p521"),
                chooser=Chooser.DEPLOYMENT,
                parameters="what OpenSSL offers; under a suite P-384 alone",
                enforced="at start",
                exemptions=(_transition("ecdh-p384", why="ML-KEM needs OpenSSL 3.5"),),
            ),
            Entry(
                use=Use.TLS_CERTIFICATE,
                title="TLS certificates of our servers: the service's own, and that of the operator's webhook",
                algorithms=("rsa-2048", "rsa-3072", "rsa-4096", "ecdsa-p256", "ecdsa-p384", "ecdsa-p521"),
                chooser=Chooser.DEPLOYMENT,
                parameters="its key; which CA signed it is the deployment's choice",
                enforced="at start: ITL_TLS_CERT_FILE",
                exemptions=(_transition("rsa-3072", "ecdsa-p384", why="ML-DSA in TLS needs OpenSSL 3.5"),),
                any_rsa=True,
            ),
            Entry(
                use=Use.NODE_PROXY,
                title="kubelet and the proxy of its node, on loopback",
                algorithms=("ed25519",),
                chooser=Chooser.WE,
                parameters="one self-signed certificate for both, made when the node starts; no TPM takes such a key",
                exemptions=(_exempt("it says who is root on one machine, and never leaves it", "ed25519"),),
            ),
            Entry(
                use=Use.BEARER,
                title="secrets that we recognise by their hash: configuration tokens, caches of logins",
                algorithms=("sha256",),
                chooser=Chooser.WE,
                parameters="128 random bits or more",
                exemptions=(_exempt("only preimages matter, of values that cannot be guessed", "sha256"),),
            ),
            Entry(
                use=Use.PKCE,
                title="logins of the command line and of the dashboard",
                algorithms=("sha256",),
                chooser=Chooser.PROTOCOL,
                parameters="PKCE S256 (RFC 7636 §4.2)",
                exemptions=(_exempt("PKCE knows no other", "sha256"),),
            ),
            Entry(
                use=Use.WEB_FORM,
                title="forms of the dashboard: which it gave, to whom, for what",
                algorithms=("sha256", "hmac-sha256"),
                chooser=Chooser.WE,
                parameters="under 32 random bytes of each session, in memory only",
                exemptions=(_exempt("never leaves the dashboard's process", "sha256", "hmac-sha256"),),
            ),
            Entry(
                use=Use.DIGEST,
                title="fingerprints and digests of certificates, keys, policies, logs, directives, votes, acts, pages",
                algorithms=("sha256", "sha384"),
                chooser=Chooser.WE,
                parameters="SHA-384 only to find fingerprints as an older agent wrote them",
                exemptions=(_exempt(_LABEL, "sha256"),),
            ),
        )
    }
)


class Ruling(StrEnum):
    """What a crypto policy says of an algorithm for a use."""

    SUITE = "allowed"
    """The suite names it."""
    EXEMPT = "let through"
    """The suite does not name it, and `USES` says why it is let through."""
    FORBIDDEN = "forbidden"


def judge(policy: CryptoPolicy, use: Use, algorithm: str) -> str | None:
    """Return why *algorithm* may not be used for *use* under *policy*; None where it may.

    The reasons say what is allowed instead.
    """
    entry = USES[use]
    bits = _RSA_BITS.fullmatch(algorithm)
    if algorithm not in entry.algorithms and not (entry.any_rsa and bits and int(bits[1]) >= LEAST_RSA_BITS):
        return f"{algorithm} is not used for {entry.title}"
    if ruling(policy, use, algorithm) is not Ruling.FORBIDDEN:
        return None
    permitted = (
        each
        for each in entry.algorithms
        if ruling(policy, use, each) is not Ruling.FORBIDDEN and _is_hash(each) == _is_hash(algorithm)
    )
    allowed = ", ".join(permitted) or "nothing"
    return f"{algorithm} is forbidden for {entry.title} by ITL_CRYPTO_POLICY={policy}; allowed: {allowed}"


def _is_hash(algorithm: str) -> bool:
    return algorithm.startswith(("sha", "hmac-"))


def ruling(policy: CryptoPolicy, use: Use, algorithm: str) -> Ruling:
    """Return what *policy* says of *algorithm*, one that is used for *use*."""
    if in_suite(policy, algorithm):
        return Ruling.SUITE
    return Ruling.FORBIDDEN if exemption(policy, use, algorithm) is None else Ruling.EXEMPT


def demand(policy: CryptoPolicy, use: Use, *algorithms: str) -> None:
    """Refuse what *policy* forbids.

    Raises:
        AlgorithmForbidden: One of *algorithms* may not be used for *use*; the text says which, and what may.
    """
    for algorithm in algorithms:
        if reason := judge(policy, use, algorithm):
            raise AlgorithmForbidden(reason)


def exemption(policy: CryptoPolicy, use: Use, algorithm: str) -> str | None:
    """Return why *algorithm* is let through for *use* under *policy* although no suite names it; None where not."""
    longest = _RSA_BITS.fullmatch(algorithm)
    # An exemption of RSA counts from the length that it names.
    name = "rsa-3072" if longest and int(longest[1]) >= CNSA1_RSA_BITS else algorithm
    for each in USES[use].exemptions:
        if policy in each.policies and (algorithm in each.algorithms or name in each.algorithms):
            return each.reason
    return None


def exempt(policy: CryptoPolicy) -> tuple[Use, ...]:
    """Return the uses for which *policy* lets something through that its suite does not name."""
    return tuple(
        use
        for use, entry in USES.items()
        if any(ruling(policy, use, each) is Ruling.EXEMPT for each in entry.algorithms)
    )


def name_of(key: object, *, agreement: bool = False) -> str:
    """Return the name of the algorithm of a public key of cryptography, for example `ecdsa-p384`, `rsa-3072`.

    Args:
        key: The key.
        agreement: An elliptic curve is used for ECDH, not for signatures.

    Returns:
        Of a key of another kind, the name of its class: no use accepts it.
    """
    match key:
        case ec.EllipticCurvePublicKey():
            return f"{'ecdh' if agreement else 'ecdsa'}-{_CURVES.get(key.curve.name, key.curve.name)}"
        case rsa.RSAPublicKey():
            return f"rsa-{key.key_size}"
        case ed25519.Ed25519PublicKey():
            return "ed25519"
        case mldsa.MLDSA44PublicKey():
            return "ml-dsa-44"
        case mldsa.MLDSA65PublicKey():
            return "ml-dsa-65"
        case mldsa.MLDSA87PublicKey():
            return "ml-dsa-87"
        case _:
            return type(key).__name__


_CURVES: Final[Mapping[str, str]] = MappingProxyType(
    {"secp256r1": "p256", "secp384r1": "p384", "secp521r1": "p521"}
)
