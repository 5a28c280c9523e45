"""Controllers of kube-controller-manager that meet certificate signing requests: `csrapproving` and `csrsigning`.

They do their part before the next request is read. k8s.io/kubernetes, pkg/controller/certificates.
"""

from __future__ import annotations

import base64
from datetime import timedelta
from functools import partial
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation_testing.kubernetes.access import NODE_PREFIX, NODES, Attributes, User
from attestation_testing.kubernetes.authority import ClusterCA
from attestation_testing.kubernetes.certificates import (
    CLIENT,
    CLIENT_KUBELET,
    GROUP,
    KEY,
    PLURAL,
    SERVING_KUBELET,
    decoded,
    parse_request,
)
from attestation_testing.kubernetes.cluster import Cluster
from attestation_testing.kubernetes.objects import copied
from attestation_testing.kubernetes.status import Object
from attestation_testing.kubernetes.store import Change

_LIFETIME: Final = timedelta(days=365)
_CLIENT: Final = frozenset({"digital signature", "client auth"})
_SERVER: Final = frozenset({"digital signature", "server auth"})
_ENCIPHERS: Final = frozenset({"key encipherment"})
_USAGES: Final = {
    CLIENT: [ExtendedKeyUsageOID.CLIENT_AUTH],
    CLIENT_KUBELET: [ExtendedKeyUsageOID.CLIENT_AUTH],
    SERVING_KUBELET: [ExtendedKeyUsageOID.SERVER_AUTH],
}


def _names(request: x509.CertificateSigningRequest) -> list[x509.GeneralName]:
    try:
        return list(request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _words(subject: x509.Name, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(each.value) for each in subject.get_attributes_for_oid(oid)]


def is_kubelet_client(request: x509.CertificateSigningRequest, usages: frozenset[str]) -> bool:
    """Say whether this is what a kubelet asks for to be a client with."""
    return _is_node(request) and not _names(request) and usages - _ENCIPHERS == _CLIENT


def is_kubelet_server(request: x509.CertificateSigningRequest, usages: frozenset[str]) -> bool:
    """Say whether this is what a kubelet asks for to serve with."""
    names = _names(request)
    plain = all(isinstance(each, x509.DNSName | x509.IPAddress) for each in names)
    return _is_node(request) and bool(names) and plain and usages - _ENCIPHERS == _SERVER


def _is_node(request: x509.CertificateSigningRequest) -> bool:
    names = _words(request.subject, NameOID.COMMON_NAME)
    organizations = _words(request.subject, NameOID.ORGANIZATION_NAME)
    return organizations == [NODES] and len(names) == 1 and names[0].startswith(NODE_PREFIX)


class CertificateControllers:
    """Those that are switched on, on *cluster*.

    Args:
        cluster: Whose requests.
        ca: Signs.
        approving: `csrapproving` runs: who may create `certificatesigningrequests/nodeclient` is approved, whatever
            evidence there is.
        signing: `csrsigning` runs, for the signers of `kubernetes.io`.
    """

    def __init__(self, cluster: Cluster, ca: ClusterCA, *, approving: bool, signing: bool) -> None:
        self._cluster, self._ca = cluster, ca
        self._approving, self._signing = approving, signing
        cluster.store.listen(KEY, self._changed)

    def _changed(self, change: Change) -> None:
        if not change.deleted:
            self._cluster.later(partial(self._look, str(change.now["metadata"]["name"])))

    def _look(self, name: str) -> None:
        found = self._cluster.store.get(KEY, "", name)
        if found is None or (found.get("status") or {}).get("certificate"):
            return
        conditions = (found.get("status") or {}).get("conditions") or []
        kinds = {each["type"] for each in conditions}
        if self._approving and not kinds & {"Approved", "Denied"}:
            self._approve(found)
        if self._signing and "Approved" in kinds and not kinds & {"Denied", "Failed"}:
            self._sign(found)

    def _approve(self, found: Object) -> None:
        spec = found["spec"]
        request = parse_request(decoded(spec["request"]))
        if spec["signerName"] != CLIENT_KUBELET or not is_kubelet_client(request, frozenset(spec["usages"])):
            return
        user = User(spec["username"], tuple(spec.get("groups") or ()))
        own = [user.name] == _words(request.subject, NameOID.COMMON_NAME)
        for permission, whose in (("selfnodeclient", "self kubelet"), ("nodeclient", "kubelet")):
            if permission == "selfnodeclient" and not own:
                continue
            what = Attributes(verb="create", group=GROUP, resource=PLURAL, subresource=permission)
            if self._cluster.access.allows(user, what):
                text = f"Auto approving {whose} client certificate after SubjectAccessReview."
                self._add(found, "approval", "Approved", "AutoApproved", text)
                return

    def _add(self, found: Object, part: str, kind: str, reason: str, message: str) -> None:
        new = copied(dict(found))
        condition = {"type": kind, "status": "True", "reason": reason, "message": message}
        new.setdefault("status", {}).setdefault("conditions", []).append(condition)
        self._cluster.change(GROUP, PLURAL, new, part)

    def _sign(self, found: Object) -> None:
        spec = found["spec"]
        signer, usages = spec["signerName"], frozenset(spec["usages"])
        if signer not in _USAGES:
            return
        request = parse_request(decoded(spec["request"]))
        fits = {CLIENT_KUBELET: is_kubelet_client, SERVING_KUBELET: is_kubelet_server}.get(signer)
        if fits is not None and not fits(request, usages):
            self._add(found, "status", "Failed", "SignerValidationFailure", "the request is not a kubelet's")
            return
        seconds = spec.get("expirationSeconds")
        lifetime = min(timedelta(seconds=seconds), _LIFETIME) if seconds else _LIFETIME
        pem = self._ca.issue(
            request.public_key(),
            request.subject,
            usages=_USAGES[signer],
            names=_names(request),
            lifetime=lifetime,
        )
        new = copied(dict(found))
        new["status"]["certificate"] = base64.b64encode(pem).decode()
        self._cluster.change(GROUP, PLURAL, new, "status")
