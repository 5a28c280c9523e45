"""What can go wrong between the agent and machined. No message quotes the configuration, nor what Talos said of it.

MachinedFailed
├── MachinedUnavailable      no socket, no answer in time, hung up
├── MachinedDenied           not for this role or this process
├── MachinedTooOld           does not know the call, or is older than 1.9
├── MachinedRefused          understood and refused: a configuration that is not valid, a machine that is not ready
└── MachinedAnswerRefused    answered what is no answer
"""

from __future__ import annotations

from attestation_agent.exits import AgentError


class MachinedFailed(AgentError):
    """Machined did not do what it was asked for.

    Args:
        message: What is logged and acknowledged.
        told: What machined said, cleaned and cut. It may quote the configuration: whoever repeats it knows that it
            cannot.
    """

    code = "machined-failed"

    def __init__(self, message: str, *, told: str = "") -> None:
        super().__init__(message)
        self.told = told


class MachinedUnavailable(MachinedFailed):
    """There is no machined at the socket, it hung up, or it did not answer in time; what was asked may be done."""

    code = "machined-unavailable"


class MachinedDenied(MachinedFailed):
    """Machined does not let us: the role is not ours, or the process is none that it knows."""

    code = "machined-denied"


class MachinedTooOld(MachinedFailed):
    """Machined does not know the call, or is of a version before 1.9."""

    code = "machined-too-old"


class MachinedRefused(MachinedFailed):
    """Machined understood and refused."""

    code = "machined-refused"


class MachinedAnswerRefused(MachinedFailed):
    """What came back is no answer of machined."""

    code = "machined-answer-refused"
