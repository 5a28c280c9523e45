"""How well the identity of a machine is vouched for (TPM.md §6)."""

from enum import StrEnum


class Assurance(StrEnum):
    """The five levels, best first; two names stand on level 3."""

    EK_ALLOWLIST = "ek-allowlist"
    """This exact EK was imported or approved in advance."""
    EK_CHAIN = "ek-chain"
    """The EK certificate chains to a pinned vendor anchor."""
    TEE = "tee"
    """An operator approved the processor, and it vouches for what was launched, as a policy states it."""
    AK_CERTIFIED = "ak-certified"
    """No EK certificate; the AK or IAK has a certificate of a configured CA."""
    TOFU = "tofu"
    """An unchained EK was activated; an operator approves the fingerprint shown: trust on first use."""
    NONE = "none"
    """A fingerprint alone: never a configuration or a secret."""

    @property
    def level(self) -> int:
        """The number of the level: 4 is best, 0 is nothing."""
        return _LEVELS[self]


_LEVELS = {
    Assurance.EK_ALLOWLIST: 4,
    Assurance.EK_CHAIN: 3,
    Assurance.TEE: 3,
    Assurance.AK_CERTIFIED: 2,
    Assurance.TOFU: 1,
    Assurance.NONE: 0,
}
