"""Objects as others write them, as ours: what `attestation hsm convert` does (HSM-AND-KUBERNETES §§10 to 12).

Read are HardwareSecurityModules as they were proposed for cert-manager (group `cert-manager.io`), and QuoteAttestations
of that proposal and of Intel's Trusted Certificate Issuer (`tcs.intel.com/v1alpha2`). What comes out is valid by our
models, or it is left out with its reason. Nothing is taken over in silence: what is written differently is a change,
what has no counterpart is dropped. No PIN is repeated, wherever it stands.
"""

# Algorithms for: wrapped-key, digest
from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)
from cryptography.x509 import load_pem_x509_certificates
from pydantic import BaseModel, ValidationError

from attestation.clock import parse_rfc3339, rfc3339
from attestation.errors import MalformedEvidence
from attestation.quote.envelope import NONCE_BYTES
from attestation.wire import b64encode
from attestation_operator.crds.hsm import ClusterIssuerSpec, HardwareSecurityModuleSpec, IssuerSpec
from attestation_operator.crds.quotes import QuoteAttestationSpec
from attestation_operator.objects import HSM, HSM_CLUSTER_ISSUER, HSM_ISSUER, QUOTE_ATTESTATION, Kind

SEED_GROUP: Final = "cert-manager.io"
TCS: Final = "tcs.intel.com/v1alpha2"
ANNOTATION: Final = "cert-manager.io/hsm"
LIFETIME: Final = timedelta(hours=24)
"""Of a QuoteAttestation: others say no end."""
_FORMATS: Final = {"3": "sgx-dcap-v3", "ECDSA Quote 3": "sgx-dcap-v3"}
_PURPOSES: Final = {"KeyProvisioning": "KeyProvisioning", "QuoteAttestation": "CsrAttestation"}
_NO_LIST_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ISSUER: Final = re.compile(r"(issuers|clusterissuers)\.[a-z0-9.-]+/([a-z0-9]([a-z0-9.-]*[a-z0-9])?)")
_MODES: Final = {"ca": "Provisioned", "selfsigned": "SelfSigned"}
_CERTIFICATES: Final = ("tls.crt", "tls.cert")
_BLOB_BYTES: Final = 384 + 24
"""RSA-3072 OAEP of an AES key, and at least one block of AES key wrap behind it."""
_SHOWN: Final = 60
_SECRET: Final = "pkcs11Pin"  # noqa: S105 -- the name of a member


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What ours say and others do not.

    Args:
        modules: Path of a PKCS#11 module -> its name in the controller's list.
        namespace: Of issuers and QuoteAttestations that name none.
        signers: SHA-256 of the keys that may hand a CA key over.
        evidence_type: By which hardware proves itself before that.
        issuer_uids: `namespace/name` or `name` of an issuer -> its UID in the cluster.
        at: Now, UTC.
    """

    modules: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "default"
    signers: tuple[str, ...] = ()
    evidence_type: str = "sgx"
    issuer_uids: Mapping[str, str] = field(default_factory=dict)
    at: datetime


@dataclass(slots=True, kw_only=True)
class Converted:
    """What came of it.

    Args:
        objects: Ours, in order.
        changes: What is written differently.
        dropped: What has no counterpart, or cannot be one.
    """

    objects: list[dict[str, Any]] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)


def convert(document: object, wanted: Wanted, into: Converted) -> None:
    """Convert one document of YAML, already read; say in *into* what came of it."""
    if not isinstance(document, Mapping):
        into.dropped.append("a document that is no object")
        return
    version, kind = document.get("apiVersion"), document.get("kind")
    group = version.partition("/")[0] if isinstance(version, str) else ""
    name = _named(document)
    if kind == "List" and version == "v1" and isinstance(document.get("items"), list):
        for each in document["items"]:
            # A list in a list is none that kubectl writes.
            nested = isinstance(each, Mapping) and each.get("kind") == "List"
            convert(None if nested else each, wanted, into)
    elif name is None:
        into.dropped.append(f"{_word(kind)}: an object without a name")
    elif kind == "HardwareSecurityModule" and group == SEED_GROUP:
        _module(document, name, wanted, into)
    elif kind == "QuoteAttestation" and (group == SEED_GROUP or version == TCS):
        _quote(document, name, wanted, into, of_tcs=version == TCS)
    elif kind == "Secret" and version == "v1" and _is_wrapped_key(document.get("data")):
        _secret(document["data"], f"Secret {name}", into)
    else:
        into.dropped.append(f"{_word(kind)} {name} of {_word(version)}: nothing of ours is made of it")


def _word(value: object) -> str:
    """Return what stands there, for people, in one short line; what is no text is not repeated."""
    return repr(value[:_SHOWN]) if isinstance(value, str) else "something"


def _named(document: Mapping[str, Any]) -> str | None:
    about = document.get("metadata")
    name = about.get("name") if isinstance(about, Mapping) else None
    return (
        name
        if isinstance(name, str) and re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", name)
        else None
    )


def _namespace(document: Mapping[str, Any]) -> str | None:
    found = document["metadata"].get("namespace")
    return found if isinstance(found, str) else None


def _beside(
    document: Mapping[str, Any], what: str, known: AbstractSet[str], into: Converted
) -> Mapping[str, Any]:
    """Return the spec; say what of the object nobody reads."""
    spec = document.get("spec")
    if not isinstance(spec, Mapping):
        into.dropped.append(f"{what}: spec is no object")
        return {}
    into.dropped += [f"{what}: {str(each)[:_SHOWN]} has no counterpart" for each in spec if each not in known]
    if "status" in document:
        into.changes.append(f"{what}: status is left out; the controller says conditions")
    annotations = document["metadata"].get("annotations")
    if isinstance(annotations, Mapping) and ANNOTATION in annotations:
        into.dropped.append(
            f"{what}: the annotation {ANNOTATION} is not read; issuers are objects of their own"
        )
    return spec


def _emit(
    kind: Kind,
    name: str,
    namespace: str | None,
    spec: dict[str, Any],
    model: type[BaseModel],
    into: Converted,
    what: str,
) -> bool:
    """Add an object, if the model takes it; else say why not."""
    if kind.namespaced and not _NAMESPACE.fullmatch(namespace or ""):
        into.dropped.append(f"{what}: its namespace {_word(namespace)} is none")
        return False
    try:
        # YAML has values that JSON has not, and models take some of them: what is written is what was judged.
        text = json.dumps(spec)
    except (TypeError, ValueError):
        into.dropped.append(f"{what}: a value that JSON does not have")
        return False
    try:
        model.model_validate_json(text)
    except ValidationError as e:
        # Never the input: it may be a PIN in the wrong place.
        told = "; ".join(
            f"{'.'.join(map(str, each['loc'])) or 'spec'}: {each['msg']}"
            for each in e.errors(include_input=False, include_url=False)
        )
        into.dropped.append(f"{what}: {told}")
        return False
    about = {"name": name} | ({"namespace": namespace} if kind.namespaced and namespace else {})
    into.objects.append(
        {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": about,
            "spec": json.loads(text),
        }
    )
    return True


# ---------------------------------------------------------------- HardwareSecurityModule


def _module(document: Mapping[str, Any], name: str, wanted: Wanted, into: Converted) -> None:
    what = f"HardwareSecurityModule {name}"
    known = {"pkcs11LibPath", "pkcs11Token", _SECRET, "issuers"}
    spec = _beside(document, what, known, into)
    if not spec:
        return
    made: dict[str, Any] = {"module": _module_name(spec.get("pkcs11LibPath"), what, wanted, into)}
    if "pkcs11Token" in spec:
        made["tokenLabel"] = spec["pkcs11Token"]
    if _SECRET in spec:
        made["pinSecretRef"] = _pin(spec[_SECRET], name, what, into)
    if _namespace(document) is not None:
        into.changes.append(f"{what}: it belongs to the whole cluster; its namespace is left out")
    issuers = [
        found
        for key, mode in _issuers(spec.get("issuers"), what, into)
        if (found := _issuer(key, mode, document, name, what, wanted, into)) is not None
    ]
    allowed = list(dict.fromkeys(namespace for _, _, namespace, _ in issuers if namespace is not None))
    if allowed:
        made["allowedNamespaces"] = allowed
        into.changes.append(f"{what}: allowedNamespaces are those of its issuers")
    if not _emit(HSM, name, None, made, HardwareSecurityModuleSpec, into, what):
        into.dropped += [
            f"{what}: {kind.kind} {issuer}: its module is left out" for kind, issuer, *_ in issuers
        ]
        return
    if len(issuers) > 1:
        into.changes.append(f"{what}: each issuer has a key of its own, where one key pair was for all")
    for kind, issuer, namespace, issuer_spec in issuers:
        model = IssuerSpec if kind is HSM_ISSUER else ClusterIssuerSpec
        _emit(kind, issuer, namespace, issuer_spec, model, into, f"{kind.kind} {issuer}")


def _module_name(path: object, what: str, wanted: Wanted, into: Converted) -> object:
    if not isinstance(path, str):
        return path
    if path in wanted.modules:
        into.changes.append(f"{what}: module is {wanted.modules[path]}, the name of the controller's list")
        return wanted.modules[path]
    stem = path.rpartition("/")[2].partition(".so")[0]
    name = _NO_LIST_NAME.sub("-", stem).strip("-._")[:64]
    into.changes.append(
        f"{what}: no object names a path: give the controller --pkcs11-modules {name or 'NAME'}={path[:_SHOWN]}"
    )
    return name


def _pin(pin: object, name: str, what: str, into: Converted) -> object:
    """Return where the PIN is; one that stands in the object is not repeated."""
    if isinstance(pin, Mapping):
        return {key: pin[key] for key in ("name", "key") if key in pin}
    into.dropped.append(
        f"{what}: a PIN stands in no object: put it into the Secret {name}-pin, member pin, which the deployment mounts"
    )
    return {"name": f"{name}-pin", "key": "pin"}


def _issuers(issuers: object, what: str, into: Converted) -> Iterator[tuple[str, str]]:
    """Yield issuer and mode, of both spellings: a map, or a list of maps with one member or of texts."""
    entries: list[tuple[object, object]] = []
    if isinstance(issuers, Mapping):
        entries += issuers.items()
    elif isinstance(issuers, list):
        for each in issuers:
            if isinstance(each, Mapping) and each:
                entries += each.items()
            elif isinstance(each, str) and ":" in each:
                issuer, _, said = each.rpartition(":")
                entries.append((issuer.strip(), said.strip()))
            else:
                into.dropped.append(f"{what}: an issuer that names no kind and mode")
    elif issuers is not None:
        into.dropped.append(f"{what}: issuers are neither a list nor a map")
    seen: set[object] = set()
    for key, mode in entries:
        if not isinstance(key, str) or not isinstance(mode, str) or mode.lower() not in _MODES:
            into.dropped.append(f"{what}: issuer {_word(key)}: neither ca nor selfsigned")
        elif key in seen:
            into.dropped.append(f"{what}: issuer {_word(key)} stands twice")
        else:
            seen.add(key)
            yield key, mode.lower()


def _issuer(
    key: str,
    mode: str,
    document: Mapping[str, Any],
    hsm: str,
    what: str,
    wanted: Wanted,
    into: Converted,
) -> tuple[Kind, str, str | None, dict[str, Any]] | None:
    """Return kind, name, namespace and spec of one issuer."""
    matched = _ISSUER.fullmatch(key)
    if matched is None:
        into.dropped.append(f"{what}: {_word(key)} is no issuer like issuers.cert-manager.io/NAME")
        return None
    name = matched[2]
    kind = HSM_CLUSTER_ISSUER
    namespace: str | None = None
    if matched[1] == "issuers":
        kind, namespace = HSM_ISSUER, _namespace(document)
        if "." in name:
            # As cert-manager names signers: namespace.name.
            namespace, _, name = name.partition(".")
        elif namespace is None:
            namespace = wanted.namespace
            into.changes.append(f"{what}: {kind.kind} {name} comes into the namespace {namespace}")
    spec: dict[str, Any] = {"hsmRef": {"name": hsm}, "mode": _MODES[mode]}
    called = f"{what}: {kind.kind} {name}"
    if mode == "selfsigned":
        spec["subject"] = {"commonName": name[:64]}
        into.changes.append(f"{called}: its subject is CN={name[:64]}; none was said")
    elif not wanted.signers:
        into.dropped.append(f"{called}: nobody may hand its key over: name who, with --signer")
        return None
    else:
        spec["provisioning"] = {
            "signers": list(wanted.signers),
            "evidence": {"type": wanted.evidence_type},
            "secretRef": {"name": f"{name}-cacert"},
        }
        into.changes.append(
            f"{called}: its key comes as a signed bundle, after evidence {wanted.evidence_type}"
        )
    return kind, name, namespace, spec


# ---------------------------------------------------------------- QuoteAttestation


def _quote(document: Mapping[str, Any], name: str, wanted: Wanted, into: Converted, *, of_tcs: bool) -> None:
    what = f"QuoteAttestation {name}"
    known = {"type", "quote", "quoteVersion", "nonce", "publicKey", "secretName", "signerName", "signers"}
    spec = _beside(document, what, known, into)
    if not spec:
        return
    version = str(spec.get("quoteVersion"))
    purpose = _PURPOSES.get(str(spec.get("type", "KeyProvisioning")))
    signers = spec.get("signers", [spec.get("signerName")])
    if version not in _FORMATS or purpose is None or not isinstance(signers, list) or not signers:
        into.dropped.append(f"{what}: its quoteVersion, type or signers are none that we know")
        return
    try:
        quote = _bytes(spec.get("quote"), twice=of_tcs)
        nonce = _bytes(spec.get("nonce"), twice=of_tcs)
        key = _key(_bytes(spec.get("publicKey"), twice=of_tcs))
    except MalformedEvidence as e:
        into.dropped.append(f"{what}: {e}")
        return
    if len(nonce) != NONCE_BYTES:
        into.dropped.append(
            f"{what}: a nonce of {NONCE_BYTES} bytes is needed; without one a quote is of any time"
        )
        return
    evidence = {"type": "sgx", "format": _FORMATS[version], "data": b64encode(quote)}
    binding = {"scheme": "itl-qa-v1", "hash": "sha512", "nonce": b64encode(nonce)}
    if of_tcs:
        evidence = {"type": "tcs-kmra-v1", "format": "tcs-kmra-v1", "data": b64encode(_answer(key, quote))}
        binding = {"scheme": "tcs-kmra-v1", "hash": "sha256", "nonce": b64encode(nonce)}
        into.changes.append(f"{what}: evidence of tier compat: it is read, and nothing is handed over for it")
    else:
        into.changes.append(f"{what}: its quote is not bound by itl-qa-v1: it will fail; have a new one made")
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    created, namespace = _created(document, wanted), _namespace(document) or wanted.namespace
    into.changes.append(f"{what}: it ends 24 hours after it was made; no end was said")
    if len(signers) > 1:
        into.changes.append(f"{what}: one for each of its signers")
    for number, signer in enumerate(signers, 1):
        reference = _signer(signer, namespace, what, wanted, into)
        if reference is None:
            continue
        made: dict[str, Any] = {
            "purpose": purpose,
            "evidence": evidence,
            "binding": binding,
            "publicKey": b64encode(spki),
            "signerRef": reference,
            "expiresAt": rfc3339(created + LIFETIME),
        }
        if purpose == "KeyProvisioning":
            made["wrap"] = {"kekAlg": "rsa-3072", "oaepHash": "sha1", "keyWrap": "aes-kwp"}
            made["secretRef"] = {"name": spec.get("secretName", f"{reference['name']}-cacert")}
        called = name if len(signers) == 1 else f"{name}-{number}"
        _emit(QUOTE_ATTESTATION, called, namespace, made, QuoteAttestationSpec, into, what)


def _signer(
    signer: object, namespace: str, what: str, wanted: Wanted, into: Converted
) -> dict[str, Any] | None:
    """Return the issuer of `<plural>.<group>/<name>` or `…/<namespace>.<name>`, if its UID was said."""
    matched = re.fullmatch(r"([a-z]+)\.([a-z0-9.-]+)/([a-z0-9]([a-z0-9.-]*[a-z0-9])?)", str(signer))
    if matched is None:
        into.dropped.append(f"{what}: {_word(signer)} is no signer like issuers.cert-manager.io/NAME")
        return None
    is_of_cluster = "cluster" in matched[1]
    name = matched[3]
    if not is_of_cluster and "." in name:
        namespace, _, name = name.partition(".")
    uid = wanted.issuer_uids.get(name if is_of_cluster else f"{namespace}/{name}")
    if uid is None:
        into.dropped.append(f"{what}: of {_word(signer)} no UID is known: say it with --issuer-uid NAME=UID")
        return None
    reference = {
        "group": HSM_ISSUER.group,
        "kind": HSM_CLUSTER_ISSUER.kind if is_of_cluster else HSM_ISSUER.kind,
        "name": name,
        "uid": uid,
    }
    return reference if is_of_cluster else reference | {"namespace": namespace}


def _created(document: Mapping[str, Any], wanted: Wanted) -> datetime:
    said = document["metadata"].get("creationTimestamp")
    if isinstance(said, datetime):
        return said if said.tzinfo is not None else said.replace(tzinfo=wanted.at.tzinfo)
    try:
        return parse_rfc3339(said) if isinstance(said, str) else wanted.at
    except ValueError:
        return wanted.at


def _bytes(value: object, *, twice: bool) -> bytes:
    """Return the bytes of base64, or of base64 in base64, as Intel's issuer writes them.

    Raises:
        MalformedEvidence: It is none.
    """
    if not isinstance(value, str):
        raise MalformedEvidence("a value is missing, or no text")
    try:
        found = base64.b64decode("".join(value.split()), validate=True)
        return base64.b64decode(b"".join(found.split()), validate=True) if twice else found
    except (binascii.Error, ValueError) as e:
        raise MalformedEvidence(
            f"quote, nonce or publicKey is not base64{' in base64' if twice else ''}"
        ) from e


def _is_wrapped_key(data: object) -> bool:
    return isinstance(data, Mapping) and "tls.key" in data and bool(data.keys() & {*_CERTIFICATES})


def _secret(data: Mapping[str, Any], what: str, into: Converted) -> None:
    """Say whose key Intel's issuer was given: base64 in base64, also under the name that its documentation has.

    Nothing of ours is made of it: nobody signed it, so it may be anybody's key for anybody's hardware.
    """
    try:
        blob = _bytes(data["tls.key"], twice=True)
        [named] = [each for each in _CERTIFICATES if each in data]
        chain = load_pem_x509_certificates(_bytes(data[named], twice=True))
    except (ValueError, MalformedEvidence) as e:
        why = str(e) if isinstance(e, MalformedEvidence) else "not one certificate in PEM"
        into.dropped.append(f"{what}: not as Intel's issuer has it: {why}")
        return
    if len(blob) < _BLOB_BYTES:
        into.dropped.append(f"{what}: tls.key is no wrapped key")
        return
    digest = hashlib.sha256(chain[0].public_bytes(Encoding.DER)).hexdigest()
    into.dropped.append(
        f"{what}: nobody signed the wrapped key of {chain[0].subject.rfc4514_string()[:_SHOWN]}, certificate {digest}: "
        "hand that key over anew, by attestation hsm wrap"
    )


def _key(data: bytes) -> RSAPublicKey:
    """Return an RSA key in PEM or DER.

    Raises:
        MalformedEvidence: It is none.
    """
    try:
        key = (
            load_pem_public_key(data)
            if data.lstrip().startswith(b"-----BEGIN")
            else load_der_public_key(data)
        )
    except (ValueError, UnsupportedAlgorithm) as e:
        raise MalformedEvidence("publicKey is no key") from e
    if not isinstance(key, RSAPublicKey):
        raise MalformedEvidence("publicKey is no RSA key")
    return key


def _answer(key: RSAPublicKey, quote: bytes) -> bytes:
    """Return the answer of an enclave, of which Intel's issuer keeps key and quote apart (§12)."""
    numbers = key.public_numbers()
    exponent = numbers.e.to_bytes((numbers.e.bit_length() + 7) // 8)
    modulus = numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8)
    lengths = len(exponent).to_bytes(8, "little") + len(modulus).to_bytes(8, "little")
    return lengths + exponent + modulus + quote
