"""The CertificateRequest of our tests beside cert-manager's own.

What stands here was read off deploy/crds/cert-manager.io_certificaterequests.yaml of cert-manager's repository
(controller-gen v0.19.0), and tried on the validators of npm's @kubernetes-models/cert-manager 4.4.4: both say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attestation_testing.kubernetes.cert_manager import CERTIFICATE_REQUESTS

USAGES = (
    "any, cert sign, client auth, code signing, content commitment, crl sign, data encipherment, decipher only, "
    "digital signature, email protection, encipher only, ipsec end system, ipsec tunnel, ipsec user, key agreement, "
    "key encipherment, microsoft sgc, netscape sgc, ocsp signing, s/mime, server auth, signing, timestamping"
)
THEIRS = {
    "spec": "object",
    "spec.duration": "string",
    "spec.issuerRef": "object, required",
    "spec.issuerRef.name": "string, required",
    "spec.issuerRef.kind": "string",
    "spec.issuerRef.group": "string, default cert-manager.io",
    "spec.request": "string byte, required",
    "spec.isCA": "boolean",
    "spec.usages": "array atomic",
    "spec.usages[]": f"string of {USAGES}",
    "spec.username": "string",
    "spec.uid": "string",
    "spec.groups": "array atomic",
    "spec.groups[]": "string",
    "spec.extra": "object",
    "spec.extra{}": "array",
    "spec.extra{}[]": "string",
    "status": "object",
    "status.conditions": "array map by type",
    "status.conditions[]": "object",
    "status.conditions[].type": "string, required",
    "status.conditions[].status": "string of False, True, Unknown, required",
    "status.conditions[].reason": "string",
    "status.conditions[].message": "string",
    "status.conditions[].lastTransitionTime": "string date-time",
    "status.certificate": "string byte",
    "status.ca": "string byte",
    "status.failureTime": "string date-time",
}


def _facts(schema: dict[str, Any], place: str, *, required: bool = False) -> Iterator[tuple[str, str]]:
    words = [
        " ".join(
            each
            for each in (
                schema["type"],
                schema.get("format"),
                schema.get("x-kubernetes-list-type"),
                "by " + ", ".join(schema.get("x-kubernetes-list-map-keys", ())),
                "of " + ", ".join(sorted(schema.get("enum", ()))),
            )
            if each not in (None, "by ", "of ")
        )
    ]
    words += [f"default {schema['default']}"] if "default" in schema else []
    yield place, ", ".join(words + ["required"] * required)
    for name, member in schema.get("properties", {}).items():
        yield from _facts(member, f"{place}.{name}", required=name in schema.get("required", ()))
    for mark, member in (("[]", schema.get("items")), ("{}", schema.get("additionalProperties"))):
        if member is not None:
            yield from _facts(member, place + mark)


def test_each_member_is_there_with_its_type() -> None:
    """What we read or write of a CertificateRequest is what cert-manager's own kind has, no more and no less."""
    [version] = CERTIFICATE_REQUESTS["spec"]["versions"]
    assert (version["name"], version["subresources"]) == ("v1", {"status": {}})
    members = version["schema"]["openAPIV3Schema"]["properties"]
    ours = dict(fact for name in ("spec", "status") for fact in _facts(members[name], name))
    assert ours == THEIRS
