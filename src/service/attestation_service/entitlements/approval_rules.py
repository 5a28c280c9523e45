"""Rules by which machines are approved without a person: what they see, and whom they would approve.

A rule sees what a machine says of itself, which anybody can say, and what is proven of its TPM. So the level at which
its EK is vouched for is demanded of every rule, beside the expression, and the policy of the role as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from attestation.errors import PolicyInvalid, RequestInvalid
from attestation.machines import EKCertificateInfo, Machine, Role
from attestation.machines.approval_rules import hostname_of
from attestation.reference.cel_rules import broken, compiled
from attestation.results import Assurance

MOST_RULES: Final = 64
"""Each is asked for each machine that nobody knows."""
NAMES: Final = ("machine",)
NOT_SAID: Final = "unknown"
"""What an introduction has where a machine says nothing of its hardware (`attestation.api.node`)."""

Facts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Judged:
    """What a rule says of a machine: why it does not approve it, or "" and what the machine is called."""

    why: str
    hostname: str | None = None


def facts_of(
    hw: Mapping[str, str],
    *,
    certificate: EKCertificateInfo | None,
    ek_fingerprint: str,
    ek_source: str,
    ek_template: str,
    assurance: Assurance,
    desired_role: Role | None,
    desired_cluster: str,
    source: str,
) -> Facts:
    """Return what an expression reads as `machine`; what there is not is empty text."""
    return {
        **{name: _said(hw[f"hw_{name}"]) for name in ("uuid", "mac", "serial", "product")},
        "desired_role": desired_role.value if desired_role is not None else "",
        "desired_cluster": desired_cluster,
        "address": source,
        "ek_fingerprint": ek_fingerprint,
        "ek_source": ek_source,
        "ek_template": ek_template,
        "ek_manufacturer": certificate.manufacturer if certificate is not None else "",
        "ek_model": certificate.model if certificate is not None else "",
        "assurance": assurance.value,
    }


def _said(word: str | None) -> str:
    return "" if word is None or word == NOT_SAID else word


def facts_of_machine(machine: Machine) -> Facts:
    """Return the same of a machine that waits."""
    names = ("hw_uuid", "hw_mac", "hw_serial", "hw_product")
    return facts_of(
        {name: getattr(machine, name) for name in names},
        certificate=machine.anchor.ek_certificate,
        ek_fingerprint=machine.fingerprint,
        ek_source=machine.anchor.ek_source,
        ek_template=machine.anchor.ek_template,
        assurance=machine.assurance,
        desired_role=machine.desired_role,
        desired_cluster=machine.desired_cluster_id or "",
        source=machine.registered_from or "",
    )


def demand_expression(expression: str) -> None:
    """Check that *expression* can be evaluated, of whatever machine.

    Raises:
        RequestInvalid: It is no CEL, or more than a rule may say.
    """
    try:
        compiled(expression, NAMES)
    except PolicyInvalid as e:
        raise RequestInvalid(f"the expression of the rule: {e}") from e


def judge(expression: str, minimum: Assurance, pattern: str | None, facts: Facts) -> Judged:
    """Return what a rule of these terms says of a machine; it raises nothing, whatever the machine says of itself."""
    if Assurance(facts["assurance"]).level < minimum.level:
        return Judged(f"vouched for as {facts['assurance']}, less than {minimum}")
    why = broken(expression, {"machine": dict(facts)}, NAMES)
    if why is not None:
        return Judged(f"the expression is {why}" if why == "false" else f"the expression {why}")
    if pattern is None:
        return Judged("")
    try:
        hostname = hostname_of(pattern, facts)
    except RequestInvalid as e:
        return Judged(f"its host name: {e}")
    return (
        Judged("", hostname)
        if hostname is not None
        else Judged("it says nothing of which a host name is made")
    )
