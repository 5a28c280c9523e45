"""Rules of certificate signing requests.

k8s.io/kubernetes: pkg/apis/certificates/validation, pkg/registry/certificates, plugin/pkg/admission/certificates.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, Final

from cryptography import x509

from attestation_testing.kubernetes.access import MASTERS, NODES, Access, User
from attestation_testing.kubernetes.objects import copied
from attestation_testing.kubernetes.status import (
    FieldError,
    Object,
    duplicate,
    forbidden,
    forbidden_field,
    invalid,
    required,
    unsupported,
)

GROUP: Final = "certificates.k8s.io"
PLURAL: Final = "certificatesigningrequests"
KEY: Final = (GROUP, PLURAL)
CLIENT: Final = "kubernetes.io/kube-apiserver-client"
CLIENT_KUBELET: Final = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_KUBELET: Final = "kubernetes.io/kubelet-serving"

USAGES: Final = frozenset(
    {
        "signing",
        "digital signature",
        "content commitment",
        "key encipherment",
        "key agreement",
        "data encipherment",
        "cert sign",
        "crl sign",
        "encipher only",
        "decipher only",
        "any",
        "server auth",
        "client auth",
        "code signing",
        "email protection",
        "s/mime",
        "ipsec end system",
        "ipsec tunnel",
        "ipsec user",
        "timestamping",
        "ocsp signing",
        "microsoft sgc",
        "netscape sgc",
    }
)
_DECISIONS: Final = ("Approved", "Denied")
_CONDITIONS: Final = (*_DECISIONS, "Failed")
_SHORTEST: Final = 600

_BLOCK: Final = re.compile(
    rb"-----BEGIN ([^\n]*?)-----[ \t\r]*\n(.*?)\n?-----END ([^\n]*?)-----[ \t\r]*(?:\n|$)", re.DOTALL
)
_DOMAIN: Final = re.compile(r"^[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)+$")
_SEGMENT: Final = re.compile(r"^[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*$")


def pem_blocks(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Return type and content of each PEM block as Go's encoding/pem finds them: the rest is passed over."""
    for match in _BLOCK.finditer(data):
        if match[1] != match[3]:
            continue
        lines = match[2].split(b"\n")
        if b"" in (stripped := [line.strip() for line in lines]) and b":" in lines[0]:
            lines = lines[stripped.index(b"") + 1 :]
        try:
            content = base64.b64decode(b"".join(each.strip() for each in lines), validate=True)
        except binascii.Error:
            continue
        yield match[1].decode("latin-1"), content


def decoded(value: object) -> bytes:
    """Return what base64 of an object stands for, nothing where it is none."""
    try:
        return base64.b64decode(str(value or ""), validate=True)
    except binascii.Error:
        return b""


def parse_request(data: bytes) -> x509.CertificateSigningRequest:
    """Return the PKCS#10 request at the beginning of `spec.request`.

    Raises:
        ValueError: In the words of the API.
    """
    kind, der = next(pem_blocks(data), ("", b""))
    if kind != "CERTIFICATE REQUEST":
        raise ValueError("PEM block type must be CERTIFICATE REQUEST")
    try:
        request = x509.load_der_x509_csr(der)
        valid = request.is_signature_valid
    except Exception as e:  # the library knows many ways of not reading a request
        raise ValueError(f"x509: {e}") from e
    if not valid:
        raise ValueError("x509: signature does not verify")
    return request


def _signer_errors(name: str) -> list[FieldError]:
    where = "spec.signerName"
    if not name:
        return [required(where)]
    segments = name.split("/")
    if len(segments) != 2 or not all(segments):  # domain and path
        return [
            invalid(
                where,
                f'"{name}"',
                "must be a fully qualified domain and path of the form 'example.com/signer-name'",
            )
        ]
    domain, path = segments
    errors = []
    if not _DOMAIN.match(domain):
        errors.append(
            invalid(where, f'"{domain}"', "should be a domain with at least two segments separated by dots")
        )
    if not _SEGMENT.match(path):
        errors.append(
            invalid(
                where,
                f'"{path}"',
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
                "characters, '-' or '.', and must start and end with an alphanumeric character",
            )
        )
    return errors


def _condition_errors(conditions: object) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    where = "status.conditions"
    for index, each in enumerate(conditions if isinstance(conditions, list) else []):
        at, kind, status = f"{where}[{index}]", str(each.get("type") or ""), str(each.get("status") or "")
        if not kind:
            errors.append(required(f"{at}.type"))
        known = ("True",) if kind in _CONDITIONS else ("True", "False", "Unknown")
        if not status:
            errors.append(required(f"{at}.status"))
        elif status not in known:
            errors.append(unsupported(f"{at}.status", status, known))
        if kind in _DECISIONS and seen & (set(_DECISIONS) - {kind}):
            errors.append(
                invalid(f"{at}.type", f'"{kind}"', "Approved and Denied conditions are mutually exclusive")
            )
        if kind in seen:
            errors.append(duplicate(f"{at}.type", f'"{kind}"'))
        seen.add(kind)
    return errors


def _certificate_error(value: object) -> str:
    """Return what is wrong with `status.certificate`: blocks of certificates, text around them allowed."""
    if not value:
        return ""
    data = decoded(value)
    blocks = list(pem_blocks(data))
    if not blocks:
        return "must contain at least one CERTIFICATE PEM block"
    for index, (kind, content) in enumerate(blocks):
        if kind != "CERTIFICATE":
            return f'only CERTIFICATE PEM blocks are allowed, found "{kind}"'
        try:
            x509.load_der_x509_certificate(content)
        except ValueError as e:
            return f"block {index}: {e}"
    return ""


def validate(new: Object, old: Object | None = None) -> list[FieldError]:
    """Return what is wrong with a request, new or changed; one that was read is not read again."""
    spec, status = new.get("spec") or {}, new.get("status") or {}
    errors = []
    try:
        if old is None or (old.get("spec") or {}).get("request") != spec.get("request"):
            parse_request(decoded(spec.get("request")))
    except ValueError as e:
        errors.append(invalid("spec.request", "<request>", str(e)))
    usages = spec.get("usages") or []
    if not usages:
        errors.append(required("spec.usages", "usages must be provided"))
    for index, usage in enumerate(usages):
        if usage not in USAGES:
            errors.append(unsupported(f"spec.usages[{index}]", usage, tuple(USAGES)))
        elif usage in usages[:index]:
            errors.append(duplicate(f"spec.usages[{index}]", f'"{usage}"'))
    errors += _signer_errors(str(spec.get("signerName") or ""))
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < _SHORTEST:
        errors.append(
            invalid(
                "spec.expirationSeconds",
                str(seconds),
                "may not specify a duration less than 600 seconds (10 minutes)",
            )
        )
    errors += _condition_errors(status.get("conditions"))
    if said := _certificate_error(status.get("certificate")):
        errors.append(invalid("status.certificate", '"<certificate data>"', said))
    return errors


def created(new: Object, user: User) -> None:
    """Write the caller into a new request, whatever it says of itself; it has no status yet."""
    spec = new.setdefault("spec", {})
    for name in ("username", "uid", "groups", "extra"):
        spec.pop(name, None)
    spec["username"] = user.name
    if user.uid:
        spec["uid"] = user.uid
    if user.groups:
        spec["groups"] = list(user.groups)
    if user.extra:
        spec["extra"] = {key: list(values) for key, values in user.extra.items()}
    new["status"] = {}


def _of(conditions: list[Object], kind: str) -> list[Object]:
    return [each for each in conditions if each.get("type") == kind]


def _fill_times(new: list[Object], old: list[Object], at: str) -> None:
    for each in new:
        if not each.get("lastUpdateTime"):
            each["lastUpdateTime"] = at
        if not each.get("lastTransitionTime"):
            same = [o for o in _of(old, str(each.get("type"))) if o.get("status") == each.get("status")]
            each["lastTransitionTime"] = (same[0].get("lastTransitionTime") if same else None) or at


def prepared(new: Object, old: Object, subresource: str, at: str) -> None:
    """Leave of *new* what may change by this way: nothing, conditions by `/approval`, the rest by `/status`."""
    new["spec"] = copied(old.get("spec") or {})
    before = copied(old.get("status") or {})
    if not subresource:
        new["status"] = before
        return
    status: dict[str, Any] = new.get("status") or {}
    conditions = status.get("conditions") or []
    _fill_times(conditions, before.get("conditions") or [], at)
    if subresource == "approval":
        status = before
    if conditions:
        status["conditions"] = conditions
    else:
        status.pop("conditions", None)
    new["status"] = status


def validate_update(new: Object, old: Object, subresource: str) -> list[FieldError]:
    """Return what of a change is forbidden."""
    errors = validate(new, old)
    now, before = new.get("status") or {}, old.get("status") or {}
    found, had = now.get("conditions") or [], before.get("conditions") or []
    where = "status.conditions"
    errors += [
        forbidden_field(where, f'updates may not remove a condition of type "{kind}"')
        for kind in _CONDITIONS
        if len(_of(found, kind)) < len(_of(had, kind))
    ]
    if subresource != "approval":
        for kind in _DECISIONS:
            then, after = _of(had, kind), _of(found, kind)
            if len(after) > len(then):
                errors.append(forbidden_field(where, f'updates may not add a condition of type "{kind}"'))
            elif len(after) == len(then) and after != then:
                errors.append(forbidden_field(where, f'updates may not modify a condition of type "{kind}"'))
    if now.get("certificate") != before.get("certificate"):
        if subresource != "status":
            errors.append(forbidden_field("status.certificate", "updates may not set certificate content"))
        elif before.get("certificate"):
            errors.append(
                forbidden_field("status.certificate", "updates may not modify existing certificate content")
            )
    return errors


def admit_creation(new: Object) -> None:
    """Refuse what the admission plugin CertificateSubjectRestriction refuses.

    Raises:
        StatusError: 403: certificates of masters are not asked for.
    """
    spec = new.get("spec") or {}
    if spec.get("signerName") != CLIENT:
        return
    try:
        request = parse_request(decoded(spec.get("request")))
    except ValueError:
        return  # said by the validation
    if MASTERS in (
        each.value for each in request.subject.get_attributes_for_oid(x509.NameOID.ORGANIZATION_NAME)
    ):
        raise forbidden(
            GROUP,
            PLURAL,
            str(new["metadata"].get("name", "")),
            f"use of {CLIENT} signer with system:masters group is not allowed",
        )


def admit_node(new: Object, user: User) -> None:
    """Refuse a node that asks for the certificate of another (NodeRestriction from 1.31 on).

    Raises:
        StatusError: 403.
    """
    spec = new.get("spec") or {}
    if NODES not in user.groups or spec.get("signerName") not in (CLIENT_KUBELET, SERVING_KUBELET):
        return
    try:
        request = parse_request(decoded(spec.get("request")))
    except ValueError:
        return  # said by the validation
    names = [each.value for each in request.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if names != [user.name]:
        said = f"can only create a node CSR with CN={user.name}"
        raise forbidden(GROUP, PLURAL, str(new["metadata"].get("name", "")), said)


def is_subdomain(name: str) -> bool:
    """Say whether *name* is an RFC 1123 subdomain in lower case, of any length."""
    return _SEGMENT.match(name) is not None


def admit_update(new: Object, old: Object, subresource: str, user: User, access: Access) -> None:
    """Refuse who may write the part, but not for this signer (CertificateApproval, CertificateSigning).

    Raises:
        StatusError: 403.
    """
    signer = str((old.get("spec") or {}).get("signerName"))
    now, before = new.get("status") or {}, old.get("status") or {}
    name = str(old["metadata"]["name"])
    if subresource == "approval" and not access.may_sign(user, "approve", signer):
        raise forbidden(
            GROUP, PLURAL, name, f'user not permitted to approve requests with signerName "{signer}"'
        )
    changed = any(now.get(each) != before.get(each) for each in ("certificate", "conditions"))
    if subresource == "status" and changed and not access.may_sign(user, "sign", signer):
        raise forbidden(
            GROUP, PLURAL, name, f'user not permitted to sign requests with signerName "{signer}"'
        )
