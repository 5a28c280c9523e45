"""Machines boot in Python as real ones do: log, PCRs and quote agree, and every lie is a lie."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from attestation.device import Quote
from attestation.tpm import PCRSelection
from attestation_testing import (
    BootLog,
    BootOptions,
    LogDefect,
    LogQuirk,
    SoftwareNode,
    Tampering,
    boot,
    boot_log,
    ima_log,
    tampered,
)
from tests.docs.pages import text
from tests.fixtures.tpm import MakeTPM

ALL_BANKS = ("sha1", "sha256", "sha384")


def options_of_everything() -> dict[str, BootOptions]:
    """Return one boot of each shape, quirk and defect."""
    found = {
        "plain": BootOptions(),
        "off": BootOptions(secure_boot=False),
        "uki": BootOptions(uki=True),
        "three banks": BootOptions(banks=ALL_BANKS),
        "locality 3": BootOptions(locality=3),
        "long": BootOptions(size_bytes=50 * 1024),
    }
    found |= {f"quirk {quirk}": BootOptions(quirks=frozenset({quirk})) for quirk in LogQuirk}
    return found | {f"defect {defect}": BootOptions(defect=defect) for defect in LogDefect}


EVERYTHING = options_of_everything()


@pytest.mark.parametrize("what", EVERYTHING)
def test_a_log_is_a_function_of_its_options(what: str) -> None:
    """The same options give the same bytes, and no two shapes the same."""
    raw = boot_log(EVERYTHING[what]).serialise()
    assert raw == boot_log(EVERYTHING[what]).serialise()
    assert [name for name, options in EVERYTHING.items() if boot_log(options).serialise() == raw] == [what]


@pytest.mark.parametrize("what", EVERYTHING)
def test_a_node_that_boots_has_the_pcrs_of_its_log(what: str) -> None:
    """Booting extends what the log says, from where it says PCR 0 began; a second boot begins anew."""
    log = boot_log(EVERYTHING[what])
    node = SoftwareNode(1)
    boot(node, log)
    resets = node.power.reset_count
    boot(node, log)
    assert node.power.reset_count == resets + 1
    ours = {i: value for i, value in log.pcrs().items() if i not in range(17, 23)}
    assert {i: value for i, value in node.pcrs["sha256"].items() if i not in range(17, 23)} == ours


@pytest.mark.swtpm
def test_a_software_tpm_agrees(make_tpm: MakeTPM) -> None:
    """Libtpms extends the same log to the same values, in every bank; a start at another locality is refused."""
    tpm = make_tpm()
    log = boot_log(BootOptions(banks=ALL_BANKS))
    files = ima_log(log.pcrs(), {"/init": b"#!/bin/sh\n"})
    boot(tpm, log, after=files.measurements(ALL_BANKS))
    for bank in ALL_BANKS:
        quote = quote_of(tpm, bank)
        expected = {i: value for i, value in log.pcrs(bank).items() if i < 16} | {10: files.pcr10(bank)}
        assert quote.pcr_values[bank] == expected
    with pytest.raises(ValueError, match="zero"):
        boot(tpm, boot_log(BootOptions(locality=3)))


def quote_of(tpm: object, bank: str) -> Quote:
    """Quote PCR 0-15 of one bank."""
    with tpm.node() as node:  # type: ignore[attr-defined]
        quote: Quote = node.quote(b"n" * 32, PCRSelection.from_names({bank: list(range(16))}))
        return quote


GIVES_UP = {
    "hcrtm",
    "short-no-action",
    "sp800-155",
    "list",
    "signature-size",
    "variable-",
    "padded",
    "outside",
    "locality",
}
"""tpm2_eventlog 5.4 extends NO_ACTION, does not know where PCR 0 starts, and gives up on the rest of these."""


@pytest.mark.tpm2_tools
@pytest.mark.parametrize("what", [w for w in EVERYTHING if not any(word in w for word in GIVES_UP)])
def test_tpm2_tools_read_it(what: str, tmp_path: Path) -> None:
    """tpm2_eventlog, which shares no code with us, finds the same PCRs."""
    log = boot_log(EVERYTHING[what])
    path = tmp_path / "log.bin"
    path.write_bytes(log.serialise())
    done = subprocess.run(["tpm2_eventlog", str(path)], capture_output=True, text=True, check=True)
    said = {int(m[1]): m[2] for m in re.finditer(r"^ +(\d+) *: 0x([0-9a-f]{64})$", done.stdout, re.MULTILINE)}
    unlogged = {event.pcr for event in log.unlogged}
    assert len(said) >= 8
    assert {i: v for i, v in said.items() if i not in unlogged} == {
        i: log.pcrs()[i].hex() for i in said if i not in unlogged
    }


def test_size_is_reached_without_changing_more_than_pcr_1() -> None:
    """A log of 50 KiB is of the same machine, with more boot options."""
    long, short = boot_log(BootOptions(size_bytes=50 * 1024)), boot_log()
    assert 50 * 1024 <= len(long.serialise()) < 51 * 1024
    assert {i for i in range(24) if long.pcrs()[i] != short.pcrs()[i]} == {1}


@pytest.mark.parametrize(
    ("changed", "pcrs"),
    [
        ({"seed": 1}, {1, 5}),
        ({"firmware": "1.1"}, {0}),
        ({"revoked": 6}, {7}),
        ({"loader": "shim 17, grub 2.12"}, {4}),
        ({"kernel": "6.1.0-57"}, {4, 9}),
        ({"initrd": "initrd 2"}, {9}),
        ({"command_line": "root=/dev/sda2 ro quiet init=/bin/sh"}, {8, 9}),
        ({"sbat": "sbat,1,2026010100\n"}, {7}),
        ({"authority": "Operating System CA"}, {7}),
        ({"secure_boot": False}, {7}),
    ],
)
def test_what_changes_changes_its_pcrs(changed: dict[str, object], pcrs: set[int]) -> None:
    """Each option is measured where real firmware, shim and GRUB measure it, and nowhere else."""
    one, other = boot_log().pcrs(), boot_log(BootOptions(**changed)).pcrs()  # type: ignore[arg-type]
    assert {i for i in range(24) if one[i] != other[i]} == pcrs


def test_a_unified_kernel_image_is_one_program() -> None:
    """Kernel, initrd and command line of a UKI are in its own digest (PCR 4) and in PCR 11."""
    base = BootOptions(uki=True)
    for changed in ({"kernel": "6.1.0-57"}, {"initrd": "initrd 2"}, {"command_line": "init=/bin/sh"}):
        other = boot_log(BootOptions(uki=True, **changed)).pcrs()  # type: ignore[arg-type]
        found = {i for i in range(24) if boot_log(base).pcrs()[i] != other[i]}
        assert found == {4, 11} | ({9} if "initrd" in changed else set())


def told_pcrs(log: BootLog) -> dict[int, bytes]:
    """Return PCR 0-15 as the log alone tells them."""
    return {i: value for i, value in log.pcrs().items() if i < 16}


@pytest.mark.parametrize("how", Tampering)
def test_every_lie_is_a_lie(how: Tampering) -> None:
    """A tampered log is not the log; only what was told is changed, the machine stays as it was."""
    log = boot_log(BootOptions(banks=("sha1", "sha256")))
    assert tampered(log, how) != log.serialise()
    assert tampered(log, how) == tampered(log, how)


def test_there_is_no_sha1_lie_without_a_sha1_bank() -> None:
    """What cannot be done is said."""
    with pytest.raises(ValueError, match="SHA-1"):
        tampered(boot_log(), Tampering.SHA1_ONLY_TRUE)


def test_events_can_be_moved_about() -> None:
    """The helpers of mutation suites do what they say, and keep the digests of what they retell."""
    log = boot_log()
    at = log.where(pcr=7)[1]
    assert len(log.dropped(at).events) == len(log.events) - 1
    assert log.duplicated(at).events[at] == log.duplicated(at).events[at + 1] == log.events[at]
    assert log.swapped(0, at).events[at] == log.events[0]
    told = log.retold(at, pcr=1, event_type=1, data=b"told").events[at]
    assert (told.pcr, told.type, told.data) == (1, 1, b"told")
    assert told.digest("sha256") == log.events[at].digest("sha256")
    same = log.retold(at).events[at]
    assert (same.pcr, same.type, same.data) == (log.events[at].pcr, log.events[at].type, log.events[at].data)
    assert told_pcrs(log.retold(at)) == told_pcrs(log)


def test_ima_list_is_what_a_kernel_writes() -> None:
    """Hand-made bytes of one entry; PCR 10 by hand; violations extend 0xFF; old kernels pad SHA-1."""
    pcrs = boot_log().pcrs()
    log = ima_log(pcrs, {"/a": b"A", "/b": b"B"}, violations=["/b"])
    aggregate = hashlib.sha256(b"".join(pcrs[i] for i in range(10))).digest()
    data = b"\x28\0\0\0sha256:\0" + aggregate + b"\x0f\0\0\0boot_aggregate\0"
    first = (
        b"\x0a\0\0\0"
        + hashlib.sha1(data).digest()
        + b"\x06\0\0\0ima-ng"
        + len(data).to_bytes(4, "little")
        + data
    )
    assert log.serialise().startswith(first)
    digests = [hashlib.sha256(entry.template_data("ima-ng")).digest() for entry in log.entries[:2]]
    value = bytes(32)
    for digest in (*digests, b"\xff" * 32):
        value = hashlib.sha256(value + digest).digest()
    assert log.pcr10() == value
    signed = ima_log(pcrs, {"/a": b"A"}, template="ima-sig", padded_sha1=True)
    data = signed.entries[0].template_data("ima-sig")
    assert signed.serialise()[24:35] == b"\x07\0\0\0ima-sig"
    assert signed.measurements()[0] == (10, {"sha256": hashlib.sha1(data).digest() + bytes(12)})


def test_the_documented_rehearsal() -> None:
    """The example of the page runs and holds."""
    examples = re.findall(
        r"^```python\n(.*?)^```$", text("docs/operate/measured-boot.md"), re.MULTILINE | re.DOTALL
    )
    assert len(examples) == 1
    exec(compile(examples[0], "measured-boot.md", "exec"), {})
