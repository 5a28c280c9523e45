"""What a node asks of the API server to get a certificate: make a request, look at it.

Over the HTTP client that the agent has for its service: no redirects, answers of a bounded length in a bounded time.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from attestation.client.connection import exchange
from attestation.client.plain import PlainCarrier
from attestation.text import clean
from attestation_agent.exits import AgentError, NoNodeCertificate
from attestation_agent.kubelet.kubeconfig import Cluster, KubeconfigRejected, User

PATH: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
MAX_ANSWER_BYTES: Final = 4 << 20
_MAX_WORDS: Final = 300


class KubernetesRefused(AgentError):
    """The API server refused: the bootstrap identity may not do this, or the request is not one."""

    code = "kubernetes-refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A CertificateSigningRequest as it is now.

    Args:
        request: `spec.request`.
        signer_name: `spec.signerName`.
        verdict: `Denied`, `Failed` or `Approved`, in this order; None where nobody decided yet.
        reason: Of that condition.
        message: Likewise.
        certificate: `status.certificate`, PEM; None where there is none yet.
    """

    request: bytes
    signer_name: str
    verdict: str | None
    reason: str
    message: str
    certificate: bytes | None


class KubernetesAPI:
    """One API server, as one user.

    Args:
        cluster: Where, and by which CAs it is believed.
        user: As whom; of a client certificate, key and certificate go through memory only.

    Raises:
        KubeconfigRejected: Certificates or key cannot be used.
    """

    def __init__(self, cluster: Cluster, user: User) -> None:
        self._server = cluster.server
        self._headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "itl-attestation-agent",
        }
        if user.token is not None:
            self._headers["Authorization"] = f"Bearer {user.token}"
        self._carrier = PlainCarrier(cluster.server, _context(cluster, user), cluster.proxy_url)

    def create(self, name: str, spec: Mapping[str, Any]) -> Seen:
        """Make a request; one that is there with the very same content is as good.

        Raises:
            KubernetesRefused: It was not made.
            ServiceUnreachable: No answer.
        """
        body = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": dict(spec),
        }
        status, answer = self._ask("POST", PATH, body)
        if status == 409:
            # An answer to an earlier attempt of ours was lost. The name is a digest of key and challenge.
            seen = self.look(name)
            if seen is not None and seen.request == base64.b64decode(spec["request"]):
                return seen
        if status not in (200, 201):
            raise _refused("to make a CertificateSigningRequest", status, answer)
        return _seen(answer)

    def look(self, name: str) -> Seen | None:
        """Return the request as it is now; None where it is gone.

        Raises:
            KubernetesRefused: It may not be seen.
            ServiceUnreachable: No answer.
        """
        status, answer = self._ask("GET", f"{PATH}/{name}", None)
        if status == 404:
            return None
        if status != 200:
            raise _refused("to look at a CertificateSigningRequest", status, answer)
        return _seen(answer)

    def close(self) -> None:
        """Close the connections."""
        self._carrier.close()

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, Any]:
        headers, content = dict(self._headers), None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body).encode("ascii")
        found = exchange(
            self._carrier, method, self._server + path, headers, content, max_bytes=MAX_ANSWER_BYTES
        )
        try:
            return found.status, json.loads(found.body)
        except (ValueError, RecursionError):
            return found.status, None


def _seen(answer: Any) -> Seen:
    """Read a CertificateSigningRequest.

    Raises:
        NoNodeCertificate: The answer is none.
    """
    try:
        spec, status = answer["spec"], answer.get("status") or {}
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        verdict = next((word for word in ("Denied", "Failed", "Approved") if word in conditions), None)
        condition = conditions[verdict] if verdict is not None else {}
        certificate = status.get("certificate")
        return Seen(
            request=base64.b64decode(spec["request"], validate=True),
            signer_name=str(spec["signerName"]),
            verdict=verdict,
            reason=_words(condition.get("reason")),
            message=_words(condition.get("message")),
            certificate=base64.b64decode(certificate, validate=True) if certificate else None,
        )
    except (KeyError, TypeError, AttributeError, binascii.Error, ValueError) as e:
        raise NoNodeCertificate("the API server answered with no CertificateSigningRequest") from e


def _refused(what: str, status: int, answer: Any) -> KubernetesRefused:
    words = _words(answer.get("message")) if isinstance(answer, dict) else ""
    return KubernetesRefused(f"the API server refused {what}: {status} {words}".rstrip())


def _words(found: object) -> str:
    """Return what the API server said, fit for a terminal."""
    return clean(found)[:_MAX_WORDS] if isinstance(found, str) else ""


class _Named(ssl.SSLContext):
    """A context that looks for another name in the server's certificate than the one that was dialled."""

    expected: str | None = None

    def wrap_socket(self, *args: Any, **more: Any) -> ssl.SSLSocket:
        if self.expected is not None:
            more["server_hostname"] = self.expected
        return super().wrap_socket(*args, **more)


def _context(cluster: Cluster, user: User) -> ssl.SSLContext:
    # Verifies certificate and name, TLS 1.2 at least.
    context = _Named(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.expected = cluster.tls_server_name
    try:
        context.load_verify_locations(cadata=cluster.ca_pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as e:
        raise KubeconfigRejected("certificate-authority: cannot be read") from e
    if user.certificate_pem is not None and user.key_pem is not None:
        # OpenSSL takes files only; this one is in memory and has no name.
        descriptor = os.memfd_create("kubeconfig", os.MFD_CLOEXEC)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(user.key_pem.rstrip() + b"\n" + user.certificate_pem)
            # No passphrase is asked for: nobody would answer.
            context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError) as e:
            raise KubeconfigRejected("client-certificate and client-key: cannot be used together") from e
        finally:
            os.close(descriptor)
    return context
