"""What makes evidence: listed programs, whatever they do, and the machine itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import MalformedEvidence, TEEDeviceError
from attestation_operator.crds.hsm import EvidenceSpec
from attestation_operator.errors import EvidenceUnavailable
from attestation_operator.hsm import evidence
from attestation_operator.hsm.evidence import Collected, Collectors, parse_answer

DATA = bytes(range(64))
GOOD = {"format": "sgx-dcap-v3", "data": "cXVvdGU=", "certChain": ["bGVhZg=="]}


async def _here(work: Callable[[], Any]) -> Any:
    return work()


def collectors(tee: object = None, *, seconds: float = 30.0, **programs: Path) -> Collectors:
    """Return collectors with these programs."""
    machine: Any = tee
    return Collectors(programs=programs, on_thread=_here, tee=machine, seconds=seconds)


def asked(kind: str = "sgx", collector: str | None = "enclave") -> EvidenceSpec:
    """Return what an issuer asks for."""
    return EvidenceSpec.model_validate({"type": kind, "collector": collector})


def program(folder: Path, text: str) -> Path:
    """Return a program."""
    path = folder / "enclave"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def collected(found: Collectors, spec: EvidenceSpec | None = None) -> Collected:
    """Collect evidence."""
    return asyncio.run(found.collect(spec or asked(), DATA))


def test_a_program_is_told_the_report_data_and_answers(tmp_path: Path) -> None:
    """128 hex digits and a newline on standard input, one object of JSON on standard output."""
    there = program(tmp_path, f"cat > {tmp_path}/asked; printf '%s' '{json.dumps(GOOD)}'")
    found = collected(collectors(enclave=there))
    assert found == Collected(format="sgx-dcap-v3", data=b"quote", chain=(b"leaf",))
    assert (tmp_path / "asked").read_text() == f"{DATA.hex()}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exit 3", "ended with 3"),
        ("echo nothing", "not JSON"),
        ("yes | head -c 3000000", "more than"),
        ("yes", "more than"),
        (f"printf '%s' '{json.dumps({**GOOD, 'more': 1})}'", "members"),
        (f"printf '%s' '{json.dumps(GOOD)}'; exit 1", "ended with 1"),
        ("exec 0<&-; exec sh -c 'exit 7'", "ended with 7"),
    ],
)
def test_what_a_program_does_otherwise_is_one_error(tmp_path: Path, text: str, words: str) -> None:
    """Its words name the program, and nothing that it said."""
    with pytest.raises(EvidenceUnavailable, match=words) as caught:
        collected(collectors(enclave=program(tmp_path, text)))
    assert str(caught.value).startswith("enclave")


def test_a_program_that_hangs_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """Its time is bounded; a child that holds its output too."""
    said = tmp_path / "child"
    there = program(tmp_path, f"sleep 600 & echo $! > {said}.new; mv {said}.new {said}; wait")
    # On a busy computer it may not have come so far when its time is over: then it is given more.
    seconds = 0.5
    while not said.exists():
        assert seconds < 300, "the program starts no child"
        with pytest.raises(EvidenceUnavailable, match="did not answer within"):
            collected(collectors(seconds=seconds, enclave=there))
        seconds *= 4
    child, end = int(said.read_text()), time.monotonic() + 20
    while is_alive(child):
        assert time.monotonic() < end, "a child of the program lives on"
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    """Return whether a process runs; one that nobody has waited for yet does not."""
    try:
        said = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return said.rpartition(")")[2].split()[0] != "Z"


def test_programs_that_hang_hold_up_so_many_issuers_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gets no turn is told, and no program is run for it; each gives its turn back, whatever became of it."""
    monkeypatch.setattr(evidence, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(evidence, "AT_ONCE", 0)
    there = program(tmp_path, f"touch {tmp_path}/ran; exit 3")
    with pytest.raises(EvidenceUnavailable, match="are running"):
        collected(collectors(enclave=there))
    assert not (tmp_path / "ran").exists()
    monkeypatch.setattr(evidence, "TURN_SECONDS", 30.0)
    monkeypatch.setattr(evidence, "AT_ONCE", 1)
    found = collectors(enclave=there)
    for _ in range(2):
        with pytest.raises(EvidenceUnavailable, match="ended with 3"):
            collected(found)


def test_a_program_that_does_not_start(tmp_path: Path) -> None:
    """Gone since the deployment listed it."""
    with pytest.raises(EvidenceUnavailable, match="does not start"):
        collected(collectors(enclave=tmp_path / "gone"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (asked(collector="other"), "lists no program other"),
        (asked(collector=None), "the issuer names none"),
        (asked("hsm-x509", None), "the issuer names none"),
        (asked("null", None), "proves nothing"),
        (asked("null"), "proves nothing"),
        (asked("tpm-certify"), "PKCS#11"),
        (asked("tpm-quote", None), "PKCS#11"),
        (asked("tdx", "other"), "lists no program other"),
    ],
)
def test_what_nothing_makes_is_said_before_anything_is_made(
    tmp_path: Path, spec: EvidenceSpec, words: str
) -> None:
    """No nonce, no key that wraps."""
    with pytest.raises(EvidenceUnavailable, match=words):
        collectors(enclave=tmp_path / "enclave").demand(spec)


def test_the_machine_itself_makes_what_it_is() -> None:
    """Of its own kind alone; a name asks a program in its place."""

    def show(data: bytes) -> Any:
        assert data == DATA
        return SimpleNamespace(tee="tdx", members={"quote": b"quote"})

    machine = SimpleNamespace(show=show)
    assert collected(collectors(machine), asked("tdx", None)) == Collected(format="tdx", data=b"quote")
    with pytest.raises(EvidenceUnavailable, match="makes tdx; the issuer asks for sev-snp"):
        collected(collectors(machine), asked("sev-snp", None))

    def none(_: bytes) -> Any:
        raise TEEDeviceError("no-provider", "there is none")

    with pytest.raises(EvidenceUnavailable, match="this machine makes no evidence"):
        collected(collectors(SimpleNamespace(show=none)), asked("tdx", None))


@pytest.mark.parametrize(
    "change",
    [
        {"format": ""},
        {"format": "x" * 65},
        {"format": 1},
        {"format": "a\nb"},
        {"data": 1},
        {"data": "!"},
        {"certChain": "leaf"},
        {"certChain": ["bGVhZg=="] * 9},
        {"certChain": [1]},
    ],
)
def test_an_answer_that_is_none_is_malformed(change: dict[str, Any]) -> None:
    """Member by member."""
    with pytest.raises(MalformedEvidence):
        parse_answer(json.dumps(GOOD | change).encode())


def test_a_member_that_stands_twice_is_malformed() -> None:
    """Which one would count?"""
    with pytest.raises(MalformedEvidence):
        parse_answer(b'{"format": "a", "format": "b", "data": ""}')


@given(st.binary(max_size=512))
def test_answers_fail_in_one_way_only(answer: bytes) -> None:
    """Whatever a program says."""
    with contextlib.suppress(MalformedEvidence):
        parse_answer(answer)


def test_no_name_is_a_path() -> None:
    """An object that names one is refused by its model."""
    for name in ("../enclave", "/bin/sh", "a b", ""):
        with pytest.raises(ValueError):
            asked(collector=name)
