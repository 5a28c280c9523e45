"""Settings of `attestation-operator hsm` (HSM-AND-KUBERNETES §§2, 10)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field, field_validator

from attestation_operator.settings import BoundSettings, LeaderSettings

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_MODULE: Final = re.compile(rf"({_NAME})=(/[^,]+)")
_TPM: Final = re.compile(rf"({_NAME})=((?:device|unix):/[^,]+|tcp:[^,]+)")


class HsmSettings(LeaderSettings, BoundSettings):
    """What is chosen for the controller of HSM issuers."""

    workers: Annotated[int, Field(ge=1, le=64)] = 64
    """How many objects are handled at the same time: those that wait for the same CA are one batch,
    and while one is signed the statuses of another are written."""

    pkcs11_modules: str = ""
    """PKCS#11 modules that objects may name: `name=/path`, separated by commas. No object names a path."""

    tpms: str = ""
    """TPMs that objects may name: `name=device:/dev/tpmrm0`, separated by commas; or `unix:/PATH`, `tcp:HOST:PORT`."""

    tpm_keys_dir: Path = Path("/var/lib/itl-attestation/tpm-keys")
    """Where wrapped keys of TPMs are kept, which only their TPM can load: a volume that outlives the pod."""

    pin_dir: Path = Path("/var/run/secrets/itl-attestation/pins")
    """Where PINs are mounted: `<pin-dir>/<secret>/<key>`, the names of `pinSecretRef`."""

    evidence_programs: str = ""
    """Programs that make evidence, which issuers name: `name=/path`, separated by commas. No object names a path."""

    max_retry_seconds: int = 60
    """How long after its creation a request that fails for an unknown reason is tried again; then it is Failed."""

    @field_validator("pkcs11_modules", "evidence_programs")
    @classmethod
    def _modules(cls, text: str) -> str:
        _listed(text, _MODULE, "name=/path")
        return text

    @field_validator("tpms")
    @classmethod
    def _tpms(cls, text: str) -> str:
        _listed(text, _TPM, "name=device:/dev/tpmrm0")
        return text

    @field_validator("max_retry_seconds")
    @classmethod
    def _patience(cls, seconds: int) -> int:
        if not 0 <= seconds <= 3600:
            raise ValueError("must be from 0 to 3600")
        return seconds

    @property
    def modules(self) -> Mapping[str, Path]:
        """PKCS#11 modules by name."""
        return _paths(self.pkcs11_modules)

    @property
    def programs(self) -> Mapping[str, Path]:
        """Programs that make evidence, by name."""
        return _paths(self.evidence_programs)

    @property
    def tpm_places(self) -> Mapping[str, str]:
        """How to reach each TPM, by name."""
        return MappingProxyType(_listed(self.tpms, _TPM, ""))


def _paths(text: str) -> Mapping[str, Path]:
    return MappingProxyType({name: Path(path) for name, path in _listed(text, _MODULE, "").items()})


def _listed(text: str, form: re.Pattern[str], example: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        entry = form.fullmatch(part.strip())
        if entry is None or entry[1] in found:
            raise ValueError(f"must be {example}, separated by commas, each name once")
        found[entry[1]] = entry[2]
    return found
