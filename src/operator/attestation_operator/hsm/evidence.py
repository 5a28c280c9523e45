"""Evidence that hardware makes about a key: collected for a QuoteAttestation (HSM-AND-KUBERNETES §11).

What makes it the deployment lists by name, or the machine has; an object names a name and never a path. A listed
program is given the report data on standard input, 128 hex digits and a newline, and answers on standard output with
one object of JSON:

    {"format": "sgx-dcap-v3", "data": "<base64>", "certChain": ["<base64 of DER>", …]}

It ends with 0, in time, and says no more than that. Nothing that it says is believed: the attestation service judges
it, and the administrator before a key is handed over. Whatever else it does is `EvidenceUnavailable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from attestation.device.tee import TEE
from attestation.errors import MalformedEvidence, TEEDeviceError
from attestation.quote.appraise import HARDWARE
from attestation.quote.case import OF_A_TPM
from attestation.quote.envelope import MAX_CERTIFICATE_BYTES, MAX_CHAIN, MAX_DATA_BYTES
from attestation.wire import b64decode, named_once
from attestation_operator.crds.hsm import EvidenceSpec
from attestation_operator.errors import EvidenceUnavailable
from attestation_operator.hsm.tokens import OnThread

PROGRAM_SECONDS: Final = 60.0
"""A quote may need a round to a provisioning service."""
MAX_ANSWER_BYTES: Final = 2 << 20
"""Of what a program may say: a megabyte of evidence in base64, and its certificates."""
END_SECONDS: Final = 5.0
"""Longest wait for the output of a program that was killed."""
AT_ONCE: Final = 8
"""So many programs run at a time: each may take its whole time, and who waits for one does nothing else."""
TURN_SECONDS: Final = 5.0
_FORMAT_CHARACTERS: Final = 64
_OF_THE_MACHINE: Final = frozenset({"tdx", "sev-snp"})
"""What the machine itself makes, by the kernel's interface; of another by a listed program."""
_MEMBERS: Final = frozenset({"format", "data", "certChain"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Evidence as it was made. Nothing in it may be believed yet.

    Args:
        format: How `data` is written.
        data: As the hardware made it.
        chain: Of its key, DER, the leaf first.
    """

    format: str
    data: bytes = field(repr=False)
    chain: tuple[bytes, ...] = field(default=(), repr=False)


class Collectors:
    """What makes evidence here.

    Args:
        programs: Listed programs, by name.
        on_thread: Has done what blocks.
        tee: The hardware of this machine.
        seconds: How long a program may take.
    """

    def __init__(
        self,
        *,
        programs: Mapping[str, Path],
        on_thread: OnThread,
        tee: TEE | None = None,
        seconds: float = PROGRAM_SECONDS,
    ) -> None:
        self._programs = programs
        self._on_thread = on_thread
        self._tee = tee or TEE()
        self._seconds = seconds
        self._turns = asyncio.Semaphore(AT_ONCE)

    def demand(self, asked: EvidenceSpec) -> None:
        """Check that there is something that would make this evidence; nothing is made.

        Raises:
            EvidenceUnavailable: There is not.
        """
        if asked.type == "null":
            raise EvidenceUnavailable("evidence of type null proves nothing: no key is handed over for it")
        if asked.type in OF_A_TPM:
            # The key that wraps is made on a PKCS#11 token here; what a TPM says is of keys in that TPM.
            raise EvidenceUnavailable(f"nothing here makes {asked.type} of a key on a PKCS#11 token")
        if asked.collector is not None or asked.type not in _OF_THE_MACHINE:
            self._program(asked)

    async def collect(self, asked: EvidenceSpec, report_data: bytes) -> Collected:
        """Return evidence over *report_data*.

        Args:
            asked: Which, and by what.
            report_data: 64 bytes.

        Raises:
            EvidenceUnavailable: There is none.
        """
        self.demand(asked)
        if asked.collector is None and asked.type in _OF_THE_MACHINE:
            shown: Collected = await self._on_thread(lambda: self._shown(asked.type, report_data))
            return shown
        program = self._program(asked)
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise EvidenceUnavailable(f"{AT_ONCE} programs that make evidence are running") from None
        try:
            return await self._run(program, report_data)
        finally:
            self._turns.release()

    def _program(self, asked: EvidenceSpec) -> Path:
        if asked.collector is None:
            raise EvidenceUnavailable(
                f"evidence of type {asked.type} needs a collector, and the issuer names none"
            )
        found = self._programs.get(asked.collector)
        if found is None:
            raise EvidenceUnavailable(f"the controller lists no program {asked.collector}")
        return found

    def _shown(self, kind: str, report_data: bytes) -> Collected:
        try:
            shown = self._tee.show(report_data)
        except TEEDeviceError as e:
            raise EvidenceUnavailable(f"this machine makes no evidence: {e}") from e
        if shown.tee != kind:
            raise EvidenceUnavailable(f"this machine makes {shown.tee}; the issuer asks for {kind}")
        return Collected(format=kind, data=shown.members[HARDWARE[kind][1]])

    async def _run(self, program: Path, report_data: bytes) -> Collected:
        """Run a listed program; it, and what it started, ends with this call."""
        name = program.name
        try:
            running = await asyncio.create_subprocess_exec(
                str(program),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as e:
            raise EvidenceUnavailable(f"{name} does not start: {e.strerror}") from e
        try:
            async with asyncio.timeout(self._seconds):
                answer = await _talk(running, f"{report_data.hex()}\n".encode())
                code = await running.wait() if len(answer) <= MAX_ANSWER_BYTES else None
        except TimeoutError:
            raise EvidenceUnavailable(f"{name} did not answer within {self._seconds:g} s") from None
        finally:
            # Whatever it started and left running is of its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            await _ended(running)
        if code is None:
            raise EvidenceUnavailable(f"{name} said more than {MAX_ANSWER_BYTES} bytes")
        if code != 0:
            raise EvidenceUnavailable(f"{name} ended with {code}")
        try:
            return parse_answer(answer)
        except MalformedEvidence as e:
            raise EvidenceUnavailable(f"{name}: {e}") from e


async def _ended(running: asyncio.subprocess.Process) -> None:
    """Wait for the end of a program that was killed.

    asyncio waits for its output too, which nobody reads any more where it said too much: so the rest is passed over.
    What left its group and holds the output open is waited for no longer than a moment.
    """
    assert running.stdout is not None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            while await running.stdout.read(MAX_ANSWER_BYTES):
                pass
            await running.wait()


async def _talk(running: asyncio.subprocess.Process, question: bytes) -> bytes:
    """Return what a program says, at most one byte more than it may."""
    assert running.stdin is not None
    assert running.stdout is not None
    # One that reads nothing may still answer.
    with contextlib.suppress(ConnectionError):
        running.stdin.write(question)
        await running.stdin.drain()
    with contextlib.suppress(ConnectionError):
        running.stdin.close()
    found = bytearray()
    while len(found) <= MAX_ANSWER_BYTES:
        part = await running.stdout.read(MAX_ANSWER_BYTES + 1 - len(found))
        if not part:
            break
        found += part
    return bytes(found)


def parse_answer(answer: bytes) -> Collected:
    """Parse what a program said.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    try:
        said = json.loads(answer.decode("utf-8"), object_pairs_hook=named_once)
    except (ValueError, RecursionError) as e:
        raise MalformedEvidence("its answer is not JSON") from e
    if not isinstance(said, dict) or not {"format", "data"} <= said.keys() <= _MEMBERS:
        raise MalformedEvidence("its answer has not the members format, data and certChain")
    chain = said.get("certChain", [])
    form = said["format"]
    if not isinstance(form, str) or not 1 <= len(form) <= _FORMAT_CHARACTERS or not form.isprintable():
        raise MalformedEvidence(f"format: a text of 1 to {_FORMAT_CHARACTERS} characters expected")
    if not isinstance(chain, list) or len(chain) > MAX_CHAIN:
        raise MalformedEvidence(f"certChain: at most {MAX_CHAIN} certificates expected")
    if not all(isinstance(each, str) for each in (said["data"], *chain)):
        raise MalformedEvidence("data or certChain: not base64")
    return Collected(
        format=form,
        data=b64decode(said["data"], "data", max_bytes=MAX_DATA_BYTES),
        chain=tuple(b64decode(each, "certChain", max_bytes=MAX_CERTIFICATE_BYTES) for each in chain),
    )
