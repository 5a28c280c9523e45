"""What one machine is given: the base of its role in its cluster and its patch, completed, and judged (R37)."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from attestation.errors import BaseConfigInvalid, BaseConfigMissing
from attestation.machines import Machine, Role
from attestation.talos.completion import Own, OwnFile
from attestation.talos.lint import Finding, told
from attestation.talos.rendering import TALOS_ROLES, render
from attestation.talos.versions import Generation, generation_of
from attestation_service.configs.files import load_base
from attestation_service.configs.kept import KeptConfigurations
from attestation_service.configs.sources import Sources
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.configs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What a machine's configuration is made of, opened.

    Args:
        talos_version: That the machine runs.
        base: Of its role in its cluster.
        patch: Of the machine; None where it has none.
    """

    talos_version: str
    base: bytes = field(repr=False)
    patch: bytes | None = field(repr=False)


def texts_of(
    sources: Sources, role: Role, cluster_id: str, kept: KeptConfigurations, settings: Settings
) -> Texts:
    """Open what a machine's configuration is made of. Files and devices: call it from a thread.

    Raises:
        BaseConfigMissing: There is none for this role in this cluster.
        BaseConfigInvalid: The file cannot be used.
        ConfigurationUnreadable: What is kept cannot be opened, or was not activated here.
        SignerUnavailable: The device of the key does not answer.
    """
    if sources.base is not None:
        base = kept.text(sources.base)
    elif kept.is_on and not settings.config_file_fallback:
        raise BaseConfigMissing(f"no base configuration is active for role {role} in cluster {cluster_id}")
    else:
        base = load_base(settings.config_cache_dir, role, cluster_id)
    patch = None if sources.patch is None else kept.text(sources.patch)
    return Texts(talos_version=sources.talos_version, base=base, patch=patch)


def texts_for(machine: Machine, sources: Sources, kept: KeptConfigurations, settings: Settings) -> Texts:
    """Open what *machine* is given; else as `texts_of`.

    Its patch may have been activated while it had a role that one operator decides about. Those who then agreed to
    another role saw nothing of it, so that role gets it only where several agreed to the patch as well.

    Raises:
        BaseConfigMissing: There is none, or the machine has no role.
        BaseConfigInvalid: The file cannot be used, or its patch is one operator's, and its role several people's.
        ConfigurationUnreadable, SignerUnavailable: As `texts_of`.
    """
    if machine.role is None:
        raise BaseConfigMissing("the machine has no role")
    texts = texts_of(sources, machine.role, machine.cluster_id, kept, settings)
    # Asked of a row whose mark was compared: who agreed is part of it.
    alone = sources.patch is not None and not sources.patch[1].agreed
    if alone and machine.role in settings.dual_control_roles:
        raise BaseConfigInvalid(
            f"one operator alone activated the patch of the machine, and the role {machine.role} is under dual "
            "control: several must activate it, or an empty one"
        )
    return texts


def completed(texts: Texts, own: Own, role: Role, cluster_id: str, settings: Settings) -> bytes:
    """Return the base of *role* in a cluster with the machine's patch and what is its own.

    What the machine's version of Talos would refuse is refused here, or told in the log, as `ITL_CONFIG_LINT` says.

    Raises:
        BaseConfigInvalid: It cannot be used, or Talos would refuse the result.
    """
    rendered = render(texts.base, texts.patch, own, role, generation_of(texts.talos_version))
    if rendered.errors:
        what = f"configuration of {role} in cluster {cluster_id}, by Talos {texts.talos_version}: "
        what += first_of(rendered.errors)
        if settings.config_lint == "refuse":
            raise BaseConfigInvalid(what)
        log.warning("config.lint", what=what)
    return rendered.text


def first_of(errors: tuple[Finding, ...]) -> str:
    """Return the first of some findings as people read it, and how many more there are."""
    return told(errors[0]) + (f", and {len(errors) - 1} more" if len(errors) > 1 else "")


def own_of(machine: Machine, settings: Settings, files: tuple[OwnFile, ...] = ()) -> Own:
    """Return what is a machine's own in its configuration."""
    return Own(
        machine_id=machine.machine_id,
        ek_fingerprint=machine.fingerprint,
        hostname=machine.hostname,
        assigned_ip=machine.assigned_ip,
        installer_image=settings.installer_image,
        files=files,
    )


def enrollment_files(certificate: str, role: Role, talos_version: str) -> tuple[OwnFile, ...]:
    """Return the enrolment certificate as a file, where this version of Talos has a place for it (ITL-REFERENCE §17).

    Its key stays in an envelope of its own: who may read a machine's configuration need not be who may be the machine.
    """
    if role not in TALOS_ROLES:
        return ()
    is_below_etc = generation_of(talos_version) is Generation.ALL_DOCUMENTS
    path = f"{'/etc' if is_below_etc else '/var/lib'}/itl-tpm/enrollment.crt"
    return (OwnFile(path=path, content=certificate, mode=0o444),)


NOBODY = Own(machine_id="x", ek_fingerprint="0" * 96, hostname=None, assigned_ip=None, installer_image="")
"""Of no machine: to find out whether a base can be completed at all."""

SAMPLE = Own(
    machine_id="00000000-0000-4000-8000-000000000000",
    ek_fingerprint="0" * 96,
    hostname="sample",
    assigned_ip="192.0.2.10/24",
    installer_image="",
)
"""A machine of the documentation (RFC 5737): with a name and an address, so that their places are seen."""
