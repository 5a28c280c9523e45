"""`attestation hsm convert`: objects of others as ours, valid by our definitions, and nothing left out in silence."""

from __future__ import annotations

import base64
import json
import struct
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml  # type: ignore[import-untyped]  # PyYAML has no types
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_der_x509_certificate
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import RequestInvalid
from attestation.evidence import tcs_kmra
from attestation.pki.external import make_ca
from attestation.quote import parse_envelope
from attestation_cli.session import Session
from attestation_operator import crds
from attestation_operator.commands.hsm_convert import MAX_BYTES, convert_file
from attestation_operator.crds.yaml import document as document_of
from attestation_operator.hsm.converting import Converted, Wanted, convert
from tests.unit.evidence.dcap_zoo import AT
from tests.unit.evidence.test_tcs_kmra import answer, nonce
from tests.unit.pki.leaf_kit import CA_NAME, SERIAL
from tests.unit.quote.test_handing import spki

SIGNER = "0f" * 32
UID = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
SCHEMAS = {
    each["spec"]["names"]["kind"]: each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for each in crds.definitions()
}
PIN = "canary-4711"
SEED = f"""
apiVersion: cert-manager.io/v1
kind: HardwareSecurityModule
metadata:
  name: softhsm
  namespace: apps
spec:
  pkcs11LibPath: /usr/lib/softhsm/libsofthsm2.so
  pkcs11Token: cluster
  pkcs11Pin: {PIN}
  issuers:
"""
AS_LIST = "    - issuers.cert-manager.io/payments: ca\n    - clusterissuers.cert-manager.io/all: selfsigned\n"
AS_MAP = "    issuers.cert-manager.io/payments: ca\n    clusterissuers.cert-manager.io/all: selfsigned\n"
AS_TEXTS = (
    '    - "issuers.cert-manager.io/payments: ca"\n    - "clusterissuers.cert-manager.io/all: selfsigned"\n'
)


def run(tmp_path: Path, text: str | bytes, *options: str) -> Result:
    """Convert a file with *text*."""
    file = tmp_path / "theirs.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return CliRunner().invoke(convert_file, [str(file), *options], obj=Session())


def ours(told: Result) -> list[dict[str, Any]]:
    """Return the objects that were written, each valid by the definition of its kind."""
    found = list(yaml.safe_load_all(told.stdout))
    for each in found:
        jsonschema_rs.validator_for(SCHEMAS[each["kind"]]).validate(each)
    return found


@pytest.mark.parametrize("issuers", [AS_LIST, AS_MAP, AS_TEXTS])
def test_a_module_and_its_issuers(tmp_path: Path, issuers: str) -> None:
    """All spellings are the same three objects; what changed and what has no counterpart stands on stderr."""
    told = run(
        tmp_path,
        SEED + issuers,
        *(
            "--module",
            "soft=/usr/lib/softhsm/libsofthsm2.so",
            "--signer",
            SIGNER,
            "--evidence",
            "tpm-certify",
        ),
    )
    hsm, payments, whole = ours(told)
    assert hsm["metadata"] == {"name": "softhsm"}
    assert hsm["spec"] == {
        "module": "soft",
        "tokenLabel": "cluster",
        "pinSecretRef": {"name": "softhsm-pin", "key": "pin"},
        "allowedNamespaces": ["apps"],
    }
    assert (payments["kind"], payments["metadata"]) == (
        "HsmIssuer",
        {"name": "payments", "namespace": "apps"},
    )
    assert payments["spec"]["provisioning"] == {
        "signers": [SIGNER],
        "evidence": {"type": "tpm-certify"},
        "secretRef": {"name": "payments-cacert"},
    }
    assert (whole["kind"], whole["spec"]["mode"]) == ("HsmClusterIssuer", "SelfSigned")
    assert whole["spec"]["subject"] == {"commonName": "all"}
    # The PIN is the one thing that is left out.
    assert told.exit_code == 1
    [left_out] = [line for line in told.stderr.splitlines() if line.startswith("left out")]
    assert "a PIN stands in no object: put it into the Secret softhsm-pin, member pin" in left_out
    assert "one key pair was for all" in told.stderr
    assert PIN not in told.output


def test_nothing_left_out_ends_with_0(tmp_path: Path) -> None:
    """A PIN that is a reference stays one; a module that is not listed is said how to list."""
    text = SEED.replace(f"pkcs11Pin: {PIN}", "pkcs11Pin: {name: pins, key: soft}")
    told = run(tmp_path, text + AS_MAP.splitlines()[1] + "\n")
    assert told.exit_code == 0, told.output
    hsm, _ = ours(told)
    assert (hsm["spec"]["module"], hsm["spec"]["pinSecretRef"]) == (
        "libsofthsm2",
        {"name": "pins", "key": "soft"},
    )
    assert "--pkcs11-modules libsofthsm2=/usr/lib/softhsm/libsofthsm2.so" in told.stderr


def test_what_has_no_counterpart_is_said(tmp_path: Path) -> None:
    """Members, the annotation, status, an issuer that nobody may hand a key to, kinds that are not ours."""
    text = (
        SEED.replace("  namespace: apps\n", "  annotations: {cert-manager.io/hsm: x}\n")
        + AS_LIST
        + "    - issuers.cert-manager.io/team.web: selfsigned\n"
        + "    - issuers.cert-manager.io/plain: selfsigned\n"
        + "    - issuers.cert-manager.io/bad: acme\n    - nonsense: ca\n    - 7\n"
        + "    - clusterissuers.cert-manager.io/all: ca\n"
        + "  secretType: x\n  serviceId: y\nstatus: {state: Success}\n"
        + "---\nkind: ConfigMap\napiVersion: v1\nmetadata: {name: c}\n---\n- 1\n---\nkind: A\n---\n"
    )
    told = run(tmp_path, text, "--namespace", "fallback")
    assert told.exit_code == 1
    kinds = [(each["kind"], each["metadata"].get("namespace")) for each in ours(told)]
    assert kinds == [
        ("HardwareSecurityModule", None),
        ("HsmClusterIssuer", None),
        ("HsmIssuer", "team"),
        ("HsmIssuer", "fallback"),
    ]
    for words in (
        "secretType has no counterpart",
        "serviceId has no counterpart",
        "annotation cert-manager.io/hsm",
        "payments: nobody may hand its key over: name who, with --signer",
        "neither ca nor selfsigned",
        "'nonsense' is no issuer",
        "names no kind and mode",
        "'clusterissuers.cert-manager.io/all' stands twice",
        "'ConfigMap' c of 'v1': nothing of ours",
        "a document that is no object",
        "an object without a name",
    ):
        assert (
            sum(words in line for line in told.stderr.splitlines() if line.startswith("left out: ")) == 1
        ), words
    assert "status is left out" in told.stderr


@pytest.mark.parametrize(
    "change",
    [
        ("pkcs11Token: cluster", f"pkcs11Token: {'x' * 33}"),
        ("pkcs11Token: cluster", "pkcs11Token: [a]"),
        ("pkcs11Token: cluster", "pkcs11Token: !!binary AAAA"),
        ("namespace: apps", "namespace: ../apps"),
        ("pkcs11LibPath: /usr/lib/softhsm/libsofthsm2.so", "pkcs11LibPath: 7"),
        ("pkcs11LibPath: /usr/lib/softhsm/libsofthsm2.so", "pkcs11LibPath: /.so"),
        (f"pkcs11Pin: {PIN}", f"pkcs11Pin: {{name: {PIN}/, key: k}}"),
    ],
)
def test_what_our_kinds_do_not_take_is_left_out(tmp_path: Path, change: tuple[str, str]) -> None:
    """With its issuers, and without telling the value."""
    told = run(tmp_path, SEED.replace(*change) + AS_MAP, "--signer", SIGNER)
    assert (told.exit_code, told.stdout) == (1, "")
    assert "its module is left out" in told.stderr
    assert PIN not in told.output


def pem_of_ca() -> bytes:
    """Return the certificate of a CA, PEM."""
    key = ec.derive_private_key(6, ec.SECP384R1())
    made = make_ca(
        subject=CA_NAME,
        spki=spki(key),
        key=key,
        serial=SERIAL,
        at=AT,
        duration=timedelta(days=9),
        path_length=0,
    )
    return load_der_x509_certificate(made).public_bytes(Encoding.PEM)


def twice(data: bytes) -> str:
    """Return base64 in base64."""
    return base64.b64encode(base64.b64encode(data)).decode()


def test_a_quote_attestation_of_intels_issuer(tmp_path: Path) -> None:
    """Base64 in base64 is read once; key and quote make the answer that our parser reads, of the lowest tier."""
    given, read = nonce(), tcs_kmra.parse(answer(nonce()))
    key = tcs_kmra.parse(answer(given)).spki
    pem = b"-----BEGIN PUBLIC KEY-----\n" + base64.encodebytes(key) + b"-----END PUBLIC KEY-----\n"
    theirs = {
        "apiVersion": "tcs.intel.com/v1alpha2",
        "kind": "QuoteAttestation",
        "metadata": {"name": "qa", "namespace": "apps", "creationTimestamp": "2026-11-21T00:00:00Z"},
        "spec": {
            "type": "KeyProvisioning",
            "quote": twice(read.quote),
            "quoteVersion": "ECDSA Quote 3",
            "nonce": twice(given),
            "serviceId": "s",
            "publicKey": twice(pem),
            "signerName": "tcsissuer.tcs.intel.com/apps.sgx",
            "secretName": "ca-secret",
        },
    }
    told = run(tmp_path, yaml.safe_dump(theirs), "--issuer-uid", f"apps/sgx={UID}")
    [made] = ours(told)
    envelope = parse_envelope(made["spec"])
    assert (envelope.evidence_type, envelope.scheme, envelope.nonce) == ("tcs-kmra-v1", "tcs-kmra-v1", given)
    assert tcs_kmra.parse(envelope.data) == read
    assert (made["spec"]["secretRef"], made["spec"]["expiresAt"]) == (
        {"name": "ca-secret"},
        "2026-11-22T00:00:00.000000Z",
    )
    assert made["spec"]["signerRef"]["uid"] == UID
    assert "serviceId has no counterpart" in told.stderr
    assert "tier compat" in told.stderr
    # What a cluster lists is read, too; a list in a list is none.
    several = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [theirs, {"kind": "List", "apiVersion": "v1", "items": [theirs]}],
    }
    assert ours(run(tmp_path, json.dumps(several), "--issuer-uid", f"apps/sgx={UID}")) == [made]
    spec: dict[str, Any] = theirs["spec"]  # type: ignore[assignment]
    elliptic = ec.derive_private_key(5, ec.SECP256R1()).public_key()
    der = elliptic.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    for bad in (
        {"nonce": twice(b"short")},
        {"nonce": None},
        {"quote": base64.b64encode(b"not twice!").decode()},
        {"publicKey": twice(b"no key")},
        {"publicKey": twice(der)},
        {"quoteVersion": "4"},
        {"type": "Other"},
        {"signerName": "nonsense"},
    ):
        changed = theirs | {"spec": spec | bad}
        refused = run(tmp_path, yaml.safe_dump(changed), "--issuer-uid", f"apps/sgx={UID}")
        assert (refused.exit_code, refused.stdout) == (1, ""), bad
    short = theirs | {"spec": spec | {"nonce": twice(b"short")}}
    assert "a quote is of any time" in run(tmp_path, yaml.safe_dump(short)).stderr
    unknown = run(tmp_path, yaml.safe_dump(theirs))
    assert "say it with --issuer-uid" in unknown.stderr
    assert struct.unpack("<Q", envelope.data[:8]) == (3,)


def test_a_quote_attestation_of_the_proposal(tmp_path: Path) -> None:
    """One for each of its signers; that its quote will not verify is said."""
    read = tcs_kmra.parse(answer(nonce()))
    theirs = {
        "apiVersion": "cert-manager.io/v1",
        "kind": "QuoteAttestation",
        "metadata": {"name": "qa"},
        "spec": {
            "quote": base64.b64encode(read.quote).decode(),
            "quoteVersion": "3",
            "nonce": base64.b64encode(nonce()).decode(),
            "publicKey": base64.b64encode(read.spki).decode(),
            "signers": ["issuers.cert-manager.io/apps.a", "clusterissuers.cert-manager.io/b"],
        },
    }
    told = run(tmp_path, yaml.safe_dump(theirs), "--issuer-uid", "apps/a=u1", "--issuer-uid", "b=u2")
    assert told.exit_code == 0, told.output
    first, second = ours(told)
    assert [each["metadata"]["name"] for each in (first, second)] == ["qa-1", "qa-2"]
    assert [each["spec"]["signerRef"]["kind"] for each in (first, second)] == [
        "HsmIssuer",
        "HsmClusterIssuer",
    ]
    assert first["spec"]["evidence"] == second["spec"]["evidence"]
    assert first["spec"]["evidence"]["format"] == "sgx-dcap-v3"
    assert "not bound by itl-qa-v1" in told.stderr


def test_a_secret_of_intels_issuer(tmp_path: Path) -> None:
    """Base64 in base64, and `tls.cert` too: whose key it is, is said, and that it must be handed over anew."""
    chain = pem_of_ca()
    blob = bytes(384) + b"wrapped!" * 25

    def told(**data: str) -> str:
        about = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ca"}, "type": "Opaque"}
        named = {name.replace("_", "."): value for name, value in data.items()}
        done = run(tmp_path, yaml.safe_dump(about | {"data": named}))
        assert (done.exit_code, done.stdout) == (1, "")
        return done.stderr

    for name in ("tls_crt", "tls_cert"):
        words = told(tls_key=twice(blob), **{name: twice(chain)})
        assert "CN=Cluster CA" in words
        assert "hand that key over anew" in words
        assert base64.b64encode(blob).decode()[:40] not in words
    once = base64.b64encode(chain).decode()
    assert "not base64 in base64" in told(tls_key=twice(blob), tls_crt=once)
    assert "not base64 in base64" in told(tls_key="7", tls_crt=twice(chain))
    assert "not one certificate" in told(tls_key=twice(blob), tls_crt=twice(chain), tls_cert=twice(chain))
    assert "not one certificate" in told(tls_key=twice(blob), tls_crt=twice(b"no certificate"))
    assert "is no wrapped key" in told(tls_key=twice(bytes(384)), tls_crt=twice(chain))
    assert "nothing of ours is made of it" in told(tls_crt=twice(chain))


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1]\nb: *a\n",
        "[" * 40 + "]" * 40,
        "!!python/object/apply:os.system ['true']\n",
        "a: 1\na: 2\n",
        "{a: 1, ? [1] : 2}\n",
        "a: [\n",
        "a: !!int x\n",
        "a: 2026-99-99\n",
        b"\xff\xfe\x00",
        b"\x00",
        "x" * (MAX_BYTES + 1),
        "---\na: 1\n" * 300,
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, text: str | bytes) -> None:
    """Aliases, depth, tags, members that stand twice, size: refused in our words, nothing is run or written."""
    told = run(tmp_path, text)
    assert isinstance(told.exception, RequestInvalid), told.output
    assert told.stdout == ""


_WORDS = st.sampled_from(
    [
        *(
            "apiVersion",
            "kind",
            "metadata",
            "spec",
            "name",
            "namespace",
            "annotations",
            "items",
            "status",
            "data",
        ),
        *("cert-manager.io/v1", "tcs.intel.com/v1alpha2", "v1", "HardwareSecurityModule", "QuoteAttestation"),
        *("pkcs11LibPath", "pkcs11Token", "pkcs11Pin", "issuers", "issuers.cert-manager.io/a: ca", "ca", "3"),
        *(
            "quote",
            "quoteVersion",
            "nonce",
            "publicKey",
            "signers",
            "signerName",
            "tls.key",
            "tls.crt",
            "Secret",
        ),
        *("List", "AAAA", "", "a", "x/y", "/usr/lib/x.so"),
    ]
)
_SCALARS = (
    _WORDS | st.none() | st.booleans() | st.integers() | st.floats() | st.binary(max_size=4) | st.dates()
)
_VALUES = st.recursive(
    _SCALARS,
    lambda each: st.lists(each, max_size=4) | st.dictionaries(_WORDS, each, max_size=6),
    max_leaves=24,
)


@given(
    st.sampled_from(["HardwareSecurityModule", "QuoteAttestation", "Secret", "List"]),
    st.sampled_from(["cert-manager.io/v1", "tcs.intel.com/v1alpha2", "v1"]),
    _VALUES,
    st.dictionaries(_WORDS, _VALUES, max_size=8),
)
def test_whatever_a_document_holds(kind: str, version: str, more: object, spec: dict[str, Any]) -> None:
    """It becomes objects that can be written, or is left out with a reason; nothing else happens."""
    found = Converted()
    named = {"metadata": {"name": "a", "namespace": more, "annotations": more, "creationTimestamp": more}}
    for document in (
        more,
        {"apiVersion": version, "kind": kind, **named, "spec": spec, "data": spec, "items": more},
        {"apiVersion": more, "kind": kind, "metadata": more, "spec": more},
    ):
        convert(document, Wanted(at=AT, signers=(SIGNER,)), found)
    assert found.dropped
    for each in found.objects:
        assert yaml.safe_load(document_of(each)) == each


def test_words_of_a_file_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    """Not on stderr, and in YAML and JSON they are quoted."""
    text = SEED.replace("cluster\n", '"\\e[2Jx"\n').replace(f"pkcs11Pin: {PIN}", "oops: 1")
    told = run(tmp_path, text.replace("  issuers:\n", '  "\\e[2J": 1\n'))
    assert "\x1b" not in told.output
    as_json = run(tmp_path, SEED + AS_MAP, "-o", "json", "--signer", SIGNER)
    assert [each["kind"] for each in json.loads(as_json.stdout)["objects"]] == [
        "HardwareSecurityModule",
        "HsmIssuer",
        "HsmClusterIssuer",
    ]


def test_options_that_name_nothing(tmp_path: Path) -> None:
    """A module or an issuer is said as NAME=…."""
    for option in ("--module", "--issuer-uid"):
        for value in ("x", "=x", "x="):
            assert isinstance(run(tmp_path, SEED, option, value).exception, RequestInvalid)
