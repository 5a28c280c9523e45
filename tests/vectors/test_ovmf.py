"""Real boots: what firmware logged, what the TPM held and what it quoted are one story, told by independent readers."""

from __future__ import annotations

import hashlib
import subprocess

import pytest

from attestation.appraisal.tpm.explain import explain
from attestation.errors import EvidenceRejected
from attestation.evidence import event_log, ima_log, tpm_quote
from attestation.tpm import AKParent, Alg, PCRSelection
from attestation.tpm.hashes import bank_alg
from tests.vectors.eventlog import replay
from tests.vectors.eventlog.ovmf import BOOTS, RealBoot, by_name, digests, sums

QUOTES = [(boot, bank) for boot in BOOTS for bank in boot.banks]
REFERENCE = by_name["sb-on"]
SHIPPED_KEYS = ["Microsoft Corporation UEFI CA 2011", "Debian Secure Boot CA"]


def name_of(value: object) -> str:
    """Name a parameter."""
    return value.name if isinstance(value, RealBoot) else str(value)


def test_no_file_was_edited() -> None:
    """Every file is pinned, none is missing; eleven boots of two machines."""
    assert digests() == sums()
    assert len(BOOTS) == 11


@pytest.mark.parametrize(("boot", "bank"), QUOTES, ids=name_of)
def test_log_and_ima_list_lead_to_what_the_tpm_held(boot: RealBoot, bank: str) -> None:
    """Replayed by the naive reader, every PCR that the log extends is the TPM's; all others are as after a reset."""
    found = replay.pcrs(boot.log, bank)
    size = hashlib.new(bank).digest_size
    # Linux 6.1 has no SHA-384 when IMA starts, and extends SHA-1 and zeros.
    found[10] = replay.pcr10(boot.ima, bank, padded_sha1=bank == "sha384")
    assert {i: found.get(i, bytes(size)) for i in range(16)} == boot.quoted(bank)


@pytest.mark.parametrize(("boot", "bank"), QUOTES, ids=name_of)
def test_our_verifier_accepts_each_quote(boot: RealBoot, bank: str) -> None:
    """The quote is over these PCRs, by the machine's AK, which is a child of its EK, and fresh."""
    claims = tpm_quote.verify(
        tpm_quote.parse(boot.read(f"quote-{bank}.msg"), boot.read(f"quote-{bank}.sig")),
        challenge=boot.nonce,
        key=tpm_quote.enrolled_key(boot.read("ak.tpm2b_public"), boot.read("ek.tpm2b_public")),
        selection=PCRSelection.from_names({bank: list(range(16))}),
        pcr_values={int(bank_alg(bank)): boot.quoted(bank)},
    )
    assert claims.ak_parent is AKParent.EK


def test_a_quote_of_another_boot_is_refused() -> None:
    """Same machine, same PCRs, another challenge."""
    boot, other = by_name["sb-on"], by_name["sb-on-again"]
    with pytest.raises(EvidenceRejected):
        tpm_quote.verify(
            tpm_quote.parse(other.read("quote-sha256.msg"), other.read("quote-sha256.sig")),
            challenge=boot.nonce,
            key=tpm_quote.enrolled_key(boot.read("ak.tpm2b_public"), boot.read("ek.tpm2b_public")),
            selection=PCRSelection.from_names({"sha256": list(range(16))}),
            pcr_values={int(bank_alg("sha256")): boot.quoted("sha256")},
        )


@pytest.mark.tpm2_tools
@pytest.mark.parametrize(("boot", "bank"), QUOTES, ids=name_of)
def test_tpm2_tools_accept_each_quote(boot: RealBoot, bank: str) -> None:
    """tpm2_checkquote, an independent judge, accepts them too."""
    key = boot.path.parent / "ak.tpm2b_public"
    how = ["-g", "sha256", "-q", boot.nonce.hex()]
    message, signature, blob = (boot.path / f"quote-{bank}.{suffix}" for suffix in ("msg", "sig", "pcrs"))
    subprocess.run(
        ["tpm2_checkquote", "-Q", "-u", key, "-m", message, "-s", signature, "-f", blob, *how],
        check=True,
        capture_output=True,
    )


@pytest.mark.parametrize("boot", BOOTS, ids=name_of)
def test_variables_in_the_log_are_those_of_the_firmware(boot: RealBoot) -> None:
    """What PCR 7 says of SecureBoot, PK, KEK, db and dbx is what efivarfs showed after the boot."""
    config = [event.data for event in replay.events(boot.log) if event.type == 0x80000001]
    told = {}
    for data in config:
        name_size = 2 * int.from_bytes(data[16:24], "little")
        name, value = data[32 : 32 + name_size].decode("utf-16-le"), data[32 + name_size :]
        told[name] = (len(value), hashlib.sha256(value).hexdigest())
    assert list(told) == ["SecureBoot", "PK", "KEK", "db", "dbx"]
    shown = {name: value for name, value in boot.variables.items() if name != "SetupMode"}
    assert {name: value for name, value in told.items() if value[0]} == shown


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("sb-on-again", set()),
        ("sb-on-dbx", {7, 10}),
        ("sb-on-kernel", {4, 9, 10}),
        ("sb-on-cmdline", {8, 9, 10}),
        ("sb-on-initrd", {9, 10}),
        ("sb-on-ima", {8, 9, 10}),
        ("sb-on-mok", {7, 9, 10, 14}),
        ("sb-off", {0, 4, 7, 8, 9, 10}),
    ],
)
def test_a_change_shows_where_it_should(name: str, changed: set[int]) -> None:
    """Each boot differs from the reference in the PCRs of what was changed, and nowhere else."""
    one, other = REFERENCE.quoted("sha256"), by_name[name].quoted("sha256")
    assert {i for i in range(16) if one[i] != other[i]} == changed


def test_another_kernel_in_a_unified_image_shows_in_two_pcrs() -> None:
    """The image (PCR 4) and what the stub measures of its sections (PCR 11)."""
    one, other = by_name["uki"].quoted("sha256"), by_name["uki-kernel"].quoted("sha256")
    assert {i for i in range(16) if one[i] != other[i]} == {4, 10, 11}


@pytest.mark.parametrize("boot", BOOTS, ids=name_of)
def test_the_test_kit_writes_such_logs(boot: RealBoot) -> None:
    """The builder's events and first event give a real log back, byte for byte, and its PCRs."""
    assert boot.boot_log.serialise() == boot.log
    pcrs = boot.boot_log.pcrs()
    assert {i: pcrs[i] for i in range(16) if i != 10} == {
        i: value for i, value in boot.quoted("sha256").items() if i != 10
    }


def replayed(name: str) -> event_log.ReplayedLog:
    """Replay the log of a boot in the SHA-256 bank, with our reader."""
    return event_log.replay(event_log.parse(by_name[name].log), Alg.SHA256)


@pytest.mark.parametrize(
    ("name", "enabled", "authorities"),
    [
        ("sb-on", True, SHIPPED_KEYS),
        ("sb-on-mok", True, [*SHIPPED_KEYS, "Machine owner of the test machines"]),
        ("uki", True, ["Secure Boot key of the test machines"]),
        ("sb-off", False, []),
    ],
)
def test_our_verifier_tells_who_was_believed(name: str, enabled: bool, authorities: list[str]) -> None:
    """Secure Boot and the keys by which the boot chain was accepted, as the folder's README tells them."""
    claims = event_log.verify(replayed(name), quoted=by_name[name].quoted("sha256"))
    assert claims.secure_boot.enabled is enabled
    assert [authority.subject for authority in claims.secure_boot.authorities] == authorities
    assert claims.flags == ()


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("sb-on", "sb-on-dbx", ["dbx updated (+3 hashes)"]),
        (
            "sb-on",
            "sb-on-kernel",
            ["PCR 4 changed: kernel replaced", "PCR 9 changed: kernel /vmlinuz replaced"],
        ),
        ("sb-on", "sb-on-cmdline", ["kernel command line: + init=/bin/sh"]),
        ("sb-on", "sb-on-initrd", ["initrd /initrd.img replaced"]),
        ("sb-on", "sb-on-mok", ["PCR 7 changed", "Machine owner of the test machines"]),
        ("sb-on", "sb-off", ["Secure Boot turned off"]),
        ("uki", "uki-kernel", ["PCR 11 changed: section .linux replaced"]),
    ],
)
def test_a_change_is_told_in_words(one: str, other: str, words: list[str]) -> None:
    """What was changed for a boot is what `explain` names."""
    before, after = replayed(one), replayed(other)
    changed = {pcr for pcr in before.values if before.values[pcr] != after.values[pcr]}
    told = "\n".join(e.text for e in explain(before, after, changed))
    for word in words:
        assert word in told


@pytest.mark.parametrize("boot", BOOTS, ids=name_of)
def test_our_verifier_reads_the_ima_list(boot: RealBoot) -> None:
    """It leads to the quoted PCR 10, and its first entry is of the PCRs quoted with it."""
    quoted = boot.quoted("sha256")
    claims = ima_log.verify(ima_log.parse(boot.ima), bank=Alg.SHA256, quoted_pcr10=quoted[10], quoted=quoted)
    assert claims.boot_aggregate_checked
    assert claims.later == 0
    assert (len(claims.entries) > 40) is (boot.name == "sb-on-ima")
