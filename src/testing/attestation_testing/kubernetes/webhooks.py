"""ValidatingWebhookConfiguration: somebody else is asked over HTTPS (admission.k8s.io/v1).

The server answers nobody else meanwhile: a webhook that asks it back waits in vain, until its `timeoutSeconds`.
"""

# ruff: noqa: ARG002  # a rule that does not look at all that it is given has the same form as one that does
from __future__ import annotations

import base64
import json
import socket
import ssl
import uuid
from http.client import HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

from attestation_testing.kubernetes.asked import GROUP, Asked, matches, selector_errors
from attestation_testing.kubernetes.host import Host
from attestation_testing.kubernetes.rules import Rules
from attestation_testing.kubernetes.status import FieldError, Object, StatusError, required, unsupported

CONFIGURATIONS: Final = (GROUP, "validatingwebhookconfigurations")
_MOST_ANSWER_BYTES: Final = 1 << 20
_SECONDS: Final = 10


class _Connection(HTTPSConnection):
    """A connection to a Service: to where it is, under the name that it has in the cluster."""

    def __init__(self, place: tuple[str, int], name: str, *, tls: ssl.SSLContext, seconds: float) -> None:
        super().__init__(name, place[1], timeout=seconds, context=tls)
        self._place, self._tls = place, tls

    def connect(self) -> None:
        """Connect."""
        plain = socket.create_connection(self._place, self.timeout)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)


class Webhooks:
    """Asks the webhooks of *cluster*.

    Attributes:
        services: Namespace and name of a Service -> host and port where it listens.
    """

    def __init__(self, cluster: Host) -> None:
        self._cluster = cluster
        self.services: dict[tuple[str, str], tuple[str, int]] = {}

    def check(self, asked: Asked) -> None:
        """Ask each that wants to see this.

        Raises:
            StatusError: One is against it, or could not be asked and `failurePolicy` is `Fail`.
        """
        for configuration in self._cluster.store.all(CONFIGURATIONS):
            for hook in configuration.get("webhooks") or ():
                if not matches(hook, asked, "rules"):
                    continue
                try:
                    answer = self._ask(hook, asked)
                    allowed = answer["allowed"] is True
                except (OSError, HTTPException, ValueError, KeyError, TypeError) as e:
                    if hook.get("failurePolicy", "Fail") == "Ignore":
                        continue
                    words = f'failed calling webhook "{hook["name"]}": failed to call webhook: {e}'
                    raise StatusError(500, "InternalError", f"Internal error occurred: {words}") from e
                if not allowed:
                    raise _denied(hook["name"], answer.get("status") or {})

    def _ask(self, hook: Object, asked: Asked) -> Object:
        uid = str(uuid.uuid4())
        body = json.dumps(
            {
                "apiVersion": "admission.k8s.io/v1",
                "kind": "AdmissionReview",
                "request": {"uid": uid, **asked.request(), "object": asked.new, "oldObject": asked.old},
            }
        )
        connection, path = self._connection(hook)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = json.loads(answer.read(_MOST_ANSWER_BYTES))
        finally:
            connection.close()
        if answer.status != 200:  # OK
            raise ValueError(f"the webhook answered {answer.status}")
        response: Object = said["response"]
        if response["uid"] != uid:
            raise ValueError("expected response.uid to be that of the request")
        return response

    def _connection(self, hook: Object) -> tuple[HTTPSConnection, str]:
        how = hook["clientConfig"]
        tls = ssl.create_default_context(cadata=base64.b64decode(how.get("caBundle") or "").decode() or None)
        seconds = float(hook.get("timeoutSeconds") or _SECONDS)
        if service := how.get("service"):
            place = self.services.get((service["namespace"], service["name"]))
            if place is None:
                raise ValueError(f'service "{service["name"]}" not found')
            name = f"{service['name']}.{service['namespace']}.svc"
            return _Connection(place, name, tls=tls, seconds=seconds), service.get("path") or "/"
        url = urlsplit(how["url"])
        place = str(url.hostname), url.port or 443
        return _Connection(place, place[0], tls=tls, seconds=seconds), url.path or "/"


def _denied(name: str, status: Object) -> StatusError:
    deniedby = f'admission webhook "{name}" denied the request'
    said = status.get("message") or status.get("reason")
    words = f"{deniedby}: {said}" if said else f"{deniedby} without explanation"
    return StatusError(max(int(status.get("code") or 0), 400), str(status.get("reason") or ""), words)


class Configurations(Rules):
    """ValidatingWebhookConfigurations."""

    def validate(self, new: Object, old: Object | None) -> list[FieldError]:
        """Return what is missing or wrong."""
        errors = []
        for index, hook in enumerate(new.get("webhooks") or ()):
            at = f"webhooks[{index}]"
            if "v1" not in (hook.get("admissionReviewVersions") or ()):
                errors.append(required(f"{at}.admissionReviewVersions"))
            if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
                said = str(hook.get("sideEffects") or "")
                errors.append(unsupported(f"{at}.sideEffects", said, ("None", "NoneOnDryRun")))
            if not hook.get("name"):
                errors.append(required(f"{at}.name"))
            errors += selector_errors(hook, at)
            how = hook.get("clientConfig") or {}
            if bool(how.get("url")) == bool(how.get("service")):
                errors.append(required(f"{at}.clientConfig", "exactly one of url or service is required"))
            elif how.get("url") and not str(how["url"]).startswith("https://"):
                errors.append(required(f"{at}.clientConfig.url", "'https' is the only allowed URL scheme"))
        return errors
