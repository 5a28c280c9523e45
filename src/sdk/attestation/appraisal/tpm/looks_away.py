"""What a policy lets change without noticing: said beside what it found, so that nobody takes silence for approval.

Derived from the policy alone, by the tables with which results are told: every rule is taken to hold, every PCR that
it does not speak of to be in use, and what then is not compared, it looks away from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attestation.reference import PCRRule, Policy
from attestation.results import Outcome, Passed, Subject
from attestation.results.appraised import OF_PCR, appraised
from attestation.tpm.hashes import digest_size
from attestation.tpm.unmeasured import unmeasured_values

WORDS: Final[Mapping[Subject, str]] = {
    Subject.FIRMWARE: "the firmware (PCR 0)",
    Subject.OPTION_ROMS: "option ROMs of cards (PCR 2)",
    Subject.SECURE_BOOT_SETTINGS: "Secure Boot and its keys (PCR 7)",
    Subject.BOOT_LOADER: "the boot loader (PCR 4)",
    Subject.KERNEL: "the kernel (PCR 4, and 9 behind GRUB or 11 in a unified kernel image)",
    Subject.INITRD: "the initrd (PCR 9 behind GRUB, 11 in a unified kernel image)",
    Subject.COMMAND_LINE: "the kernel's command line (PCR 8 behind GRUB, 11 and 12 in a unified kernel image)",
    Subject.SHIM_KEYS: "the owner's own keys in shim (PCR 14)",
}
"""What decides who is in control after a boot. Settings, boot order and partition tables differ for good reasons."""


def looks_away(policy: Policy) -> tuple[str, ...]:
    """Return what of a boot *policy* does not compare, or only reports; in words, in the order of a boot."""
    in_use = b"\x01" * digest_size(policy.tpm.bank)
    unmeasured = unmeasured_values(policy.tpm.bank)
    quoted = dict.fromkeys(dict(policy.tpm.selection.banks)[policy.tpm.bank], in_use)
    held: list[Outcome] = []
    compared: set[Subject] = set()
    for rule in policy.tpm.rules:
        if not _enforces(rule):
            continue
        held.append(Passed(rule.held.check))
        if rule.index in OF_PCR:
            compared.add(OF_PCR[rule.index])
        if rule.any_of is not None and rule.any_of <= unmeasured:
            quoted[rule.index] = bytes(len(in_use))
    held += [Passed(check) for check in _over_logs(policy)]
    compared |= set(appraised(held, quoted, policy.tpm.bank))
    if Subject.SECURE_BOOT in compared:
        compared.add(Subject.SECURE_BOOT_SETTINGS)
    return tuple(words for subject, words in WORDS.items() if subject not in compared)


def _enforces(rule: PCRRule) -> bool:
    return rule.ignore is None and not rule.report


def _over_logs(policy: Policy) -> list[str]:
    """Return the names of the checks over logs that decide."""
    found: list[str] = []
    state, boot = policy.tpm.secure_boot, policy.tpm.boot
    if state is not None and state.required.value and not state.required.report:
        found.append("secure-boot")
    if boot is not None:
        lists = (
            ("boot-loaders", boot.loaders),
            ("boot-kernels", boot.kernels),
            ("boot-initrds", boot.initrds),
            ("command-lines", boot.command_lines),
        )
        found += [check for check, demand in lists if demand is not None and not demand.report]
    return found
