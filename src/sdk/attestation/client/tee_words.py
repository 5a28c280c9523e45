"""What checks on confidential hardware mean to people, and what can be done: by topic, each told once.

Pure. What was expected and what was found stands in the check; here is what it means for whoever runs the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from attestation.client.text import clean

if TYPE_CHECKING:
    from attestation.api import CheckDetail

_PRODUCTS: Final = {
    "snp": "SEV-SNP",
    "tdx": "TDX",
    "sgx": "SGX",
    "gpu": "GPU",
    "hcl": "Azure",
    "svsm": "SVSM",
}
"""First word of a check's name -> how people call what it is about."""


class _Topic(NamedTuple):
    """What several checks have in common.

    Attributes:
        checks: Their names, without the first word.
        outcomes: Of which outcomes this is told.
        means: A sentence.
        step: What to look at or do; `{short}` stands for the machine.
    """

    checks: frozenset[str]
    outcomes: frozenset[str]
    means: str
    step: str


def _topic(checks: str, outcomes: str, means: str, step: str) -> _Topic:
    return _Topic(frozenset(checks.split()), frozenset(outcomes.split()), means, step)


_BAD: Final = "failed reported"
_TOPICS: Final = (
    _topic(
        "debug memory",
        f"{_BAD} flagged",
        "It is a debug guest: whoever runs the host can read its memory, secrets too.",
        "Start the guest without the debug bit; whatever it was given as a debug guest is no secret any more.",
    ),
    _topic(
        "measurement mrtd rtmr0 rtmr1 rtmr2 rtmr3 mrenclave mrsigner id-key",
        _BAD,
        "Something else was launched in it than its policy expects: firmware, kernel or command line of the guest.",
        "Ask who builds the image whether it changed; if so, put the measurement of the new one into the policy.",
    ),
    _topic(
        "launch",
        "flagged",
        "What was launched in it is not compared: its policy names no measurement.",
        "`attestation policy learn --machine {short}` proposes one from what it showed: read it before you assign it.",
    ),
    _topic(
        "tcb tcb-level minimum-tcb tcb-date tcb-evaluation advisories",
        _BAD,
        "Firmware of the host is older than its policy accepts, or has known weaknesses.",
        "Have whoever runs the host install newer firmware (BIOS, microcode, module), and start the guest anew.",
    ),
    _topic(
        "tcb",
        "flagged",
        "Firmware of the host is not up to date; its policy accepts that.",
        "Have whoever runs the host plan the update before the policy stops accepting it.",
    ),
    _topic(
        "provisional-firmware tcb-order tcb-regressed",
        f"{_BAD} flagged",
        "The host runs firmware that it can still take back, or has taken back.",
        "Have whoever runs the host commit the firmware that it runs.",
    ),
    _topic(
        "chip platform allowed-chips accepted-platforms",
        _BAD,
        "It runs on another processor than the one that was approved for it.",
        "If the processor was replaced or the guest moved: `attestation machine approve-hardware {short}`.",
    ),
    _topic(
        "chip platform",
        "undecided",
        "No operator has decided yet on which processor it may run, or its evidence hides it.",
        "`attestation machine get {short}` shows what was seen, "
        "`attestation machine approve-hardware {short}` approves it.",
    ),
    _topic(
        "signing-key csp-id",
        _BAD,
        "A key of the provider signed (VLEK) and not the processor's own: it does not say which processor it is.",
        "Ask the provider for reports by VCEK, or say in the policy whose VLEK you accept (`signing_key`, `csp_ids`).",
    ),
    _topic(
        "collateral vek revocation",
        "undecided",
        "What would vouch for its processor is not at hand, so nothing is decided; nothing is wrong with the machine.",
        "`attestation collateral status` names what is missing; import it, or let the service fetch it.",
    ),
    _topic(
        "collateral",
        _BAD,
        "What is stored to vouch for its processor is not genuine, or of another platform.",
        "`attestation collateral refresh` asks the vendor anew; find out where the stored one came from.",
    ),
    _topic(
        "revocation",
        _BAD,
        "The vendor withdrew a certificate of its processor.",
        "Lock the machine, and ask its vendor what happened: `attestation machine lock {short}`.",
    ),
    _topic(
        "event-log replay",
        f"{_BAD} undecided",
        "Its event log is missing, or does not lead to the registers that its processor signed.",
        "See that the guest shows its log (/sys/firmware/acpi/tables/data/CCEL), and who changed it.",
    ),
    _topic(
        "driver vbios arch",
        _BAD,
        "A GPU has another driver, VBIOS or family than its policy names.",
        "Compare with what was installed last, and put the versions that are right into the policy.",
    ),
    _topic(
        "test-only",
        f"{_BAD} flagged",
        "TEST ONLY: software made this evidence, no processor did.",
        "Take ITL_TEE_TEST_ANCHORS out of the service's settings wherever real machines are.",
    ),
)


def is_about_hardware(check: str) -> bool:
    """Say whether a check is about confidential hardware."""
    return check.partition("-")[0] in _PRODUCTS


def tee_words(checks: Sequence[CheckDetail], short: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what *checks* on confidential hardware mean, and what can be done, most important first.

    Args:
        checks: Of one result.
        short: How commands name the machine.
    """
    why: list[str] = []
    steps: list[str] = []
    for topic in _TOPICS:
        told = [c for c in checks if _is(c, topic)]
        if told:
            products = ", ".join(dict.fromkeys(_PRODUCTS[c.check.partition("-")[0]] for c in told))
            details = "; ".join(dict.fromkeys(clean(_detail(c)) for c in told))
            why.append(f"{products}: {topic.means} {details[:1].upper()}{details[1:]}.")
            steps.append(topic.step.format(short=short))
    return tuple(why), tuple(steps)


def _is(check: CheckDetail, topic: _Topic) -> bool:
    product, _, name = check.check.partition("-")
    return product in _PRODUCTS and name in topic.checks and check.outcome in topic.outcomes


def _detail(check: CheckDetail) -> str:
    """Return what a check itself says: what was found in place of what, or its note."""
    if check.outcome in ("failed", "reported"):
        return (
            f"found {_short(check.found or 'nothing')}, expected {_short(check.expected or 'something else')}"
        )
    return check.note or check.check


def _short(value: str) -> str:
    """Shorten digests; sentences stay."""
    return " ".join(f"{word[:16]}…" if len(word) >= 64 else word for word in value.split())
