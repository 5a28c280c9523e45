"""What a version of Talos says of a configuration, and what people may see of it. Everything here runs on a thread."""

from __future__ import annotations

from dataclasses import dataclass

from attestation.api import ConfigurationChange, ConfigurationFinding
from attestation.errors import BaseConfigInvalid, BaseConfigMissing, ConfigurationInvalid
from attestation.talos.lint import Finding, Level
from attestation.talos.redaction import differences, preview
from attestation.talos.rendering import render
from attestation.talos.versions import generation_of
from attestation_service.configs.rendering import NOBODY, first_of, texts_of
from attestation_service.configurations.subject import Subject
from attestation_service.resources import Resources
from attestation_service.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was found of a configuration.

    Args:
        talos_version: By which it was judged.
        preview: What people may see of it.
        unusable: Why it could not be completed for any machine; None where it can.
        errors: What this version would refuse.
        findings: Everything that it says of the result.
    """

    talos_version: str
    preview: str
    unusable: str | None
    errors: tuple[Finding, ...]
    findings: list[ConfigurationFinding]


def judge(text: bytes, subject: Subject, res: Resources, talos_version: str | None = None) -> Judged:
    """Judge *text* by a version of Talos, by default the one that the machines run which get it.

    A patch is judged with the base that it is merged into; where there is none yet, only that it can be read.

    Raises:
        ConfigurationInvalid: Nobody could read it.
        RequestInvalid: No version of Talos.
        ConfigurationUnreadable: The base of a patch cannot be opened.
        SignerUnavailable: The device of its key does not answer.
    """
    version = talos_version or subject.sources.talos_version
    generation = generation_of(version)
    try:
        shown = preview(text, generation)
    except BaseConfigInvalid as e:
        raise ConfigurationInvalid(str(e)) from None
    findings: tuple[Finding, ...] = ()
    unusable: str | None = None
    base = _base(text, subject, res)
    if base is not None and subject.role is not None:
        patch = text if subject.is_patch else None
        try:
            findings = render(base, patch, NOBODY, subject.role, generation).findings
        except BaseConfigInvalid as e:
            unusable = str(e)
    return Judged(
        talos_version=version,
        preview=shown,
        unusable=unusable,
        errors=tuple(each for each in findings if each.level is Level.ERROR),
        findings=told(findings),
    )


def demand(judged: Judged, settings: Settings) -> None:
    """Refuse what no machine could get, and what Talos would refuse, unless `ITL_CONFIG_LINT` lets that through.

    Raises:
        ConfigurationInvalid: With the first reason, and how many more there are.
    """
    if judged.unusable is not None:
        raise ConfigurationInvalid(judged.unusable)
    if judged.errors and settings.config_lint == "refuse":
        raise ConfigurationInvalid(f"Talos {judged.talos_version} would refuse it: {first_of(judged.errors)}")


def changes(before: bytes, after: bytes, talos_version: str) -> list[ConfigurationChange]:
    """Return what differs, as people may see it.

    Raises:
        BaseConfigInvalid: One of them is not YAML that everybody reads alike.
    """
    found = differences(before, after, generation_of(talos_version))
    return [
        ConfigurationChange(document=each.document, path=each.path, before=each.before, after=each.after)
        for each in found
    ]


def told(findings: tuple[Finding, ...]) -> list[ConfigurationFinding]:
    """Return findings as the API tells of them."""
    return [
        ConfigurationFinding(
            document=each.document, kind=each.kind, path=each.path, level=each.level.value, words=each.words
        )
        for each in findings
    ]


def _base(text: bytes, subject: Subject, res: Resources) -> bytes | None:
    """Return the base that is judged, or the one that a patch is judged with; None where there is none yet."""
    if not subject.is_patch:
        return text
    if subject.role is None:
        return None
    try:
        return texts_of(
            subject.sources, subject.role, subject.cluster_id, res.configurations, res.settings
        ).base
    except BaseConfigMissing:
        return None
