"""Settings of the webhook: `ITL_OPERATOR_…`, and the flags of `attestation-operator webhook`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import field_validator

from attestation_operator.objects import Key, Kind
from attestation_operator.settings import PREFIX, ProbedSettings, SettingsInvalid, parse_address

SECRET: Final = Kind(group="", version="v1", kind="Secret", plural="secrets", namespaced=True)
CONFIGURATION: Final = Kind(
    group="admissionregistration.k8s.io",
    version="v1",
    kind="ValidatingWebhookConfiguration",
    plural="validatingwebhookconfigurations",
)


class WebhookSettings(ProbedSettings):
    """What is chosen for the webhook. Its certificate is one of a directory, or made by itself."""

    controller_user: str
    """User name of the controller of attestation runs: `system:serviceaccount:NAMESPACE:NAME`."""

    webhook_bind_address: str = ":9443"
    """Where the API server asks, HOST:PORT."""

    certificate_dir: Path | None = None
    """Directory with `tls.crt` and `tls.key`, read again as they change; without, three others say how one is made."""

    certificate_secret: str | None = None
    """NAMESPACE/NAME of the Secret in which the replicas keep the certificates that they make."""

    webhook_configuration: str | None = None
    """Name of the ValidatingWebhookConfiguration that is told to trust them."""

    server_name: str | None = None
    """Under which the API server asks: `SERVICE.NAMESPACE.svc`."""

    @field_validator("webhook_bind_address")
    @classmethod
    def _bound(cls, text: str) -> str:
        parse_address(text)
        return text

    @field_validator("certificate_secret")
    @classmethod
    def _secret(cls, text: str | None) -> str | None:
        if text is not None and len(text.split("/")) != 2:
            raise ValueError("must be NAMESPACE/NAME")
        return text

    @property
    def own(self) -> tuple[Key, Key, str] | None:
        """Secret, configuration and name of a certificate that is made; None where a directory has one.

        Raises:
            SettingsInvalid: Both are set, or neither whole.
        """
        told = (self.certificate_secret, self.webhook_configuration, self.server_name)
        if self.certificate_dir is not None and not any(told):
            return None
        if self.certificate_dir is not None or not all(told):
            raise SettingsInvalid(
                f"{PREFIX}CERTIFICATE_DIR: either this, or CERTIFICATE_SECRET, WEBHOOK_CONFIGURATION and SERVER_NAME"
            )
        secret, configuration, name = map(str, told)
        namespace, _, secret = secret.partition("/")
        return (
            Key(kind=SECRET, namespace=namespace, name=secret),
            Key(kind=CONFIGURATION, name=configuration),
            name,
        )
