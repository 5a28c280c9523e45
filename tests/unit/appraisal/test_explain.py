"""Explaining what changed: each sentence for the change that it names, and nothing for what did not change."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from attestation.appraisal.tpm.explain import Explanation, describe, explain, unexplained
from attestation.evidence import event_log
from attestation.evidence.event_log import EventType, ReplayedLog
from attestation.tpm import Alg
from attestation_testing import BootLog, BootOptions, Event, LogDefect, LogQuirk, boot_log
from attestation_testing import event_logs as kit
from tests.vectors import SHARED, needs_shared


def replayed(log: BootLog, bank: int = Alg.SHA256) -> ReplayedLog:
    return event_log.replay(event_log.parse(log.serialise()), bank)


BASE = BootOptions(banks=("sha256", "sha384"))
GOOD = boot_log(BASE)
OFF = replace(BASE, secure_boot=False)


def told(before: BootLog, after: BootLog) -> dict[int, Explanation]:
    """Explain every PCR that differs."""
    old, new = replayed(before), replayed(after)
    changed = [pcr for pcr in range(24) if old.values[pcr] != new.values[pcr]]
    return {e.pcr: e for e in explain(old, new, changed)}


def change(before: BootOptions = BASE, **fields: object) -> dict[int, Explanation]:
    return told(boot_log(before), boot_log(replace(before, **fields)))  # type: ignore[arg-type]


def only(*events: Event) -> BootLog:
    return BootLog(events=events)


def text_of(before: BootLog, after: BootLog, pcr: int) -> str:
    return told(before, after)[pcr].text


def test_nothing_changed_nothing_said() -> None:
    """The same boot again needs no explanation; what is asked for is answered."""
    assert told(GOOD, GOOD) == {}
    (answer,) = explain(replayed(GOOD), replayed(GOOD), [3])
    assert answer.text.startswith("PCR 3 changed: both event logs say the same")
    (answer,) = explain(replayed(GOOD), replayed(GOOD), [10])
    assert "IMA" in answer.text
    (answer,) = explain(replayed(GOOD), replayed(GOOD), [11])
    assert "phases" in answer.text


# ---------------------------------------------------------------- Secure Boot


def test_dbx_updated() -> None:
    """The sentence of the issue."""
    found = change(revoked=6)
    assert set(found) == {7}
    assert found[7].text == "PCR 7 changed: dbx updated (+3 hashes)"
    assert f"+ dbx: hash {kit.revoked_hash(4).hex()}" in found[7].entries
    assert change(replace(BASE, revoked=2), revoked=1)[7].text == "PCR 7 changed: dbx updated (-1 hash)"


def test_secure_boot_turned_on_and_off() -> None:
    """On, off, and the states between."""
    assert change(OFF, secure_boot=True)[7].text.startswith(
        "PCR 7 changed: Secure Boot turned on; PK: certificate 'Platform Key' added"
    )
    assert change(secure_boot=False)[7].text.startswith("PCR 7 changed: Secure Boot turned off; ")
    empty = change(OFF, quirks=frozenset({LogQuirk.SECURE_BOOT_EMPTY}))
    assert empty[7].text == "PCR 7 changed: Secure Boot: off -> undetermined"


def test_databases_and_authorities() -> None:
    """Which certificates came and went, by their subjects."""
    found = change(databases=("Third Party UEFI CA", "Another CA"))[7]
    assert found.text == (
        "PCR 7 changed: db: certificate 'Another CA' added; db: certificate 'Operating System CA' removed"
    )
    assert any(line.startswith("+ db: Another CA (") for line in found.entries)
    assert any(line.startswith("- db: Operating System CA (") for line in found.entries)
    found = change(authority="Operating System CA")[7]
    assert found.text == (
        "PCR 7 changed: new authority db: Operating System CA; "
        "authority no longer used db: Third Party UEFI CA"
    )
    assert "PK: certificate 'Mine' added; PK: certificate " in change(platform_key="Mine")[7].text
    many = change(databases=("One CA", "Two CA", "Three CA", "Four CA", "Five CA"))[7].text
    assert many.count("' added; ") == 3
    assert "; db updated (+2 more certificates)" in many
    by_hash = Event(
        pcr=7,
        type=EventType.EFI_VARIABLE_AUTHORITY,
        data=kit.variable(kit.DATABASE, "db", bytes(16) + b"\x22" * 32),
    )
    assert "new authority db: hash 2222" in text_of(GOOD, GOOD.with_events((*GOOD.events, by_hash)), 7)


def test_a_database_written_anew_with_the_same_entries() -> None:
    """Another length and the same entries; entries of kinds that nobody names."""

    def dbx(value: bytes) -> BootLog:
        data = kit.variable(kit.DATABASE, "dbx", value)
        return only(Event(pcr=7, type=EventType.EFI_VARIABLE_DRIVER_CONFIG, data=data))

    one = kit.hash_list([b"\x01" * 32])
    assert text_of(dbx(one), dbx(one * 2), 7) == "PCR 7 changed: dbx rewritten with the same entries"
    other = kit.signature_list(kit.SHIM, [b"x"])
    assert text_of(dbx(one), dbx(one + other), 7) == "PCR 7 changed: dbx updated (1 other entry)"


def test_sbat_debug_and_dma() -> None:
    """SBAT level, debugger, DMA protection."""
    assert change(sbat="sbat,1,2030010100\nshim,9\n")[7].text == (
        "PCR 7 changed: SBAT level 2025021800 -> 2030010100"
    )
    assert "SBAT level 2025021800 -> odd" in change(sbat="odd")[7].text
    assert "SBAT level 2025021800 -> none" in change(secure_boot=False)[7].text
    debug = change(defect=LogDefect.DEBUG_MODE)[7].text
    assert debug == "PCR 7 changed: a debugger is attached to the firmware"
    back = change(replace(BASE, defect=LogDefect.DEBUG_MODE), defect=None)[7].text
    assert back == "PCR 7 changed: no debugger is attached any more"
    quirks = frozenset({LogQuirk.DMA_PROTECTION_DISABLED})
    assert change(quirks=quirks)[7].text == "PCR 7 changed: DMA protection is disabled"
    assert change(replace(BASE, quirks=quirks), quirks=frozenset())[7].text == (
        "PCR 7 changed: DMA protection is on again"
    )


def test_what_nobody_explains_is_listed_by_type() -> None:
    """Events that no rule speaks of are counted by type; a new order is told."""
    odd = Event(pcr=7, type=EventType.EFI_SPDM_DEVICE_POLICY, data=b"a", measured=b"a")
    again = replace(odd, measured=b"b")
    assert text_of(GOOD, GOOD.with_events((*GOOD.events, odd)), 7) == (
        "PCR 7 changed: events of EV_EFI_SPDM_DEVICE_POLICY: 1 added"
    )
    assert text_of(only(odd), only(again), 7).endswith("1 event of EV_EFI_SPDM_DEVICE_POLICY changed")
    assert text_of(only(odd, again, kit.separator(7)), only(), 7) == (
        "PCR 7 changed: events of EV_EFI_SPDM_DEVICE_POLICY: 2 removed; events of EV_SEPARATOR: 1 removed"
    )
    one, two = kit.action(6, "one"), kit.action(6, "two")
    assert text_of(only(one, two), only(two, one), 6) == "PCR 6 changed: the same events in another order"
    assert text_of(only(one), only(one, one), 6) == "PCR 6 changed: events of EV_EFI_ACTION: 1 added"


# ---------------------------------------------------------------- what was started


def test_a_new_kernel() -> None:
    """Kernel and boot loader, with old and new digest; each image once."""
    found = change(kernel="6.12")
    boots = (GOOD, boot_log(replace(BASE, kernel="6.12")))
    old, new = (replayed(log).boot.images[-1].digest.hex()[:12] for log in boots)
    assert found[4].text == f"PCR 4 changed: kernel replaced ({old}… -> {new}…)"
    assert found[9].text.startswith("PCR 9 changed: kernel /vmlinuz replaced (")
    assert set(found) == {4, 9}
    found = change(loader="shim 17, grub 3")
    assert found[4].text.startswith("PCR 4 changed: boot loader \\EFI\\BOOT\\BOOTX64.EFI replaced (")
    image = kit.image(4, "\\tool.efi", b"tool")
    assert "boot loader \\tool.efi added" in text_of(GOOD, GOOD.with_events((*GOOD.events, image)), 4)
    assert "boot loader \\tool.efi removed" in text_of(GOOD.with_events((*GOOD.events, image)), GOOD, 4)
    assert text_of(GOOD, GOOD.with_events((*GOOD.events, kit.action(4, "x"))), 4) == (
        "PCR 4 changed: events of EV_EFI_ACTION: 1 added"
    )


def test_option_roms() -> None:
    """A card brings a driver."""
    assert change(quirks=frozenset({LogQuirk.OPTION_ROM}))[2].text.startswith(
        "PCR 2 changed: option ROM driver OptionRom added ("
    )


def test_command_line() -> None:
    """Which words came and went."""
    found = change(command_line="root=/dev/sda2 ro init=/bin/sh")
    assert found[8].text == (
        "PCR 8 changed: DANGEROUS: `init=/bin/sh` (another program runs in place of init);"
        " kernel command line: + init=/bin/sh, - quiet;"
        " boot loader commands changed (+1 command, -1 command)"
    )
    assert "+ /vmlinuz root=/dev/sda2 ro init=/bin/sh" in found[8].entries
    assert "same words in another order" in change(command_line="quiet ro root=/dev/sda2")[8].text
    many = change(command_line=" ".join(f"w{i}" for i in range(20)))[8].text
    assert ", and 11 more;" in many
    line = kit.ipl(8, "kernel_cmdline: /vmlinuz", b"/vmlinuz")
    assert text_of(only(), only(line), 8) == "PCR 8 changed: command line added: /vmlinuz"
    assert text_of(only(line), only(), 8) == "PCR 8 changed: command line removed: /vmlinuz"
    hidden = replace(line, measured=b"something else")
    assert text_of(only(), only(hidden), 8) == (
        "PCR 8 changed: command line added: one that the log does not show"
    )
    assert text_of(only(), only(kit.ipl(8, "grub_cmd: ls", b"ls")), 8) == (
        "PCR 8 changed: boot loader commands changed (+1 command)"
    )


@pytest.mark.parametrize(
    ("command", "meaning"),
    [
        ("set check_signatures=no", "the boot loader starts what is not signed"),
        ("rmmod tpm", "the boot loader stops measuring"),
        ("linux /vmlinuz rdinit=/evil", "another program runs in place of init"),
        ("linux /vmlinuz single", "a shell without a login"),
        ("linux /vmlinuz systemd.unit=rescue.target", "a shell without a login"),
        ("linux /vmlinuz lockdown=none", "root can change the running kernel"),
        ("linux /vmlinuz selinux=0", "mandatory access control is off"),
        ("linux /vmlinuz ima_appraise=off", "IMA does not refuse changed files"),
        ("linux /vmlinuz intel_iommu=off", "devices reach all memory"),
        ("linux /vmlinuz mitigations=off", "known faults of the processor are open"),
    ],
)
def test_what_an_attacker_would_write_stands_first(command: str, meaning: str) -> None:
    """A dangerous word is named with what it means, before everything else; a harmless one is not."""
    harmless = kit.ipl(8, "grub_cmd: ls", b"ls")
    event = kit.ipl(8, f"grub_cmd: {command}", command.encode())
    text = text_of(only(), only(harmless, event), 8)
    assert text.startswith("PCR 8 changed: DANGEROUS: `")
    assert meaning in text
    assert "DANGEROUS" not in text_of(only(event), only(harmless), 8)
    line = kit.ipl(8, f"kernel_cmdline: {command}", command.encode())
    assert meaning in text_of(only(), only(line), 8)
    assert text_of(only(), only(event, line), 8).count("DANGEROUS") == 1


def test_equal_sides_are_not_printed() -> None:
    """Where the log says the same of both boots, it is said once."""
    one, two = (Event(pcr=0, type=EventType.S_CRTM_VERSION, data=b"v\0" + end) for end in (b"", b"\0"))
    assert text_of(only(one), only(two), 0) == "PCR 0 changed: firmware version v, measured differently"
    line = kit.ipl(8, "kernel_cmdline: /vmlinuz", b"/vmlinuz")
    hidden = [replace(line, measured=measured) for measured in (b"one", b"two")]
    found = told(only(hidden[0]), only(hidden[1]))[8]
    assert found.text == (
        "PCR 8 changed: kernel command line: one that the log does not show, measured differently"
    )
    assert len(found.entries) == 2


def test_pcr_10_says_what_it_followed() -> None:
    """IMA begins with a digest over PCR 0 to 9; where one of them changed, PCR 10 has to."""
    (_, answer) = explain(replayed(GOOD), replayed(GOOD), [4, 10])
    assert answer.text.startswith(
        "PCR 10 changed: its first entry, boot_aggregate, is a digest over PCR 0 to 9, so it follows PCR 4;"
    )


@pytest.mark.parametrize(
    ("pcr", "changed", "kept", "text"),
    [
        (
            4,
            {4},
            True,
            "PCR 4 changed: the event log leads to another value, so it is the log of another boot,",
        ),
        (4, set(), True, "PCR 4 is not as the policy accepts: the event log leads to another value,"),
        (9, {9}, True, "PCR 9 changed: the event log does not lead to its value; later software extended it"),
        (9, {9}, False, "PCR 9 changed: no event log of this boot is kept, so nothing tells why"),
        (10, {10}, False, "PCR 10 changed: the kernel extends it with files it measures (IMA);"),
        (10, {9, 10}, True, "PCR 10 changed: its first entry, boot_aggregate, is a digest over PCR 0 to 9,"),
    ],
)
def test_what_no_log_leads_to(pcr: int, changed: set[int], kept: bool, text: str) -> None:
    """A log of another boot is said to be one; what software extends later is said to be that."""
    assert unexplained(pcr, changed, kept=kept).startswith(text)


def test_a_kernel_that_is_only_measured_with_secure_boot() -> None:
    """Without Secure Boot the boot loader does not ask the firmware: nothing was removed."""
    off = boot_log(OFF)
    images = [e for e in off.events if e.pcr == 4 and e.type == EventType.EFI_BOOT_SERVICES_APPLICATION]
    without = off.with_events(tuple(e for e in off.events if e is not images[-1]))
    assert told(GOOD, without)[4].text == (
        "PCR 4 changed: no kernel is measured here because Secure Boot is off: PCR 8 and 9 tell what was started"
    )
    assert told(without, GOOD)[4].text.startswith(
        "PCR 4 changed: the kernel is measured here because Secure Boot is on ("
    )
    # With Secure Boot as it was, a kernel that is gone is gone.
    own = [e for e in GOOD.events if e.pcr == 4 and e.type == EventType.EFI_BOOT_SERVICES_APPLICATION]
    gone = GOOD.with_events(tuple(e for e in GOOD.events if e is not own[-1]))
    assert " removed (" in told(GOOD, gone)[4].text


def test_command_line_of_systemd_boot() -> None:
    """PCR 12."""

    def line(words: str) -> BootLog:
        return only(Event(pcr=12, type=EventType.IPL, data=words.encode("utf-16-le")))

    assert text_of(line("ro quiet"), line("ro"), 12) == "PCR 12 changed: kernel command line: - quiet"


def test_initrd_and_files() -> None:
    """Files of PCR 9 by what they are."""
    assert change(initrd="new")[9].text.startswith("PCR 9 changed: initrd /initrd.img replaced (")
    file = kit.ipl(9, "/grub/fs.lst", b"1")
    assert text_of(only(file), only(), 9).startswith("PCR 9 changed: file /grub/fs.lst removed (")
    assert text_of(only(), only(file), 9).startswith("PCR 9 changed: file /grub/fs.lst added (")


def test_unified_kernel_images() -> None:
    """Sections by name."""
    uki = replace(BASE, uki=True)
    assert change(uki, kernel="new")[11].text.startswith("PCR 11 changed: section .linux replaced (")
    assert change(uki, command_line="new")[11].text.startswith("PCR 11 changed: section .cmdline replaced (")
    separator = kit.separator(11)
    assert "EV_SEPARATOR" not in text_of(only(), only(separator), 11)
    name = kit.stub(11, ".linux", b".linux\0")
    assert text_of(only(), only(name), 11) == "PCR 11 changed: events of EV_IPL: 1 added"


# ---------------------------------------------------------------- firmware


def test_firmware() -> None:
    """Version and code; how the TPM was started."""
    assert change(firmware="2.0")[0].text == (
        "PCR 0 changed: firmware version 1.0 -> 2.0; firmware code changed (+1 part, -1 part)"
    )
    assert change(locality=3)[0].text == "PCR 0 changed: the TPM was started at locality 3, before at 0"
    assert change(replace(BASE, locality=3), locality=None)[0].text == (
        "PCR 0 changed: the TPM was started at locality 0, before at 3"
    )
    version = Event(pcr=0, type=EventType.S_CRTM_VERSION, data=b"\xff")
    assert text_of(only(), only(version), 0).startswith("PCR 0 changed: firmware version none -> ")
    assert text_of(only(), only(kit.separator(0)), 0).endswith("EV_SEPARATOR: 1 added")


def test_settings() -> None:
    """Boot order and options, tables, microcode."""

    def variable(name: str, value: bytes) -> Event:
        data = kit.variable(kit.GLOBAL, name, value)
        return Event(pcr=1, type=EventType.EFI_VARIABLE_BOOT, data=data, measured=value)

    def option(text: str, path: bytes = b"") -> bytes:
        return struct.pack("<IH", 1, 0) + text.encode("utf-16-le") + b"\0\0" + path

    before = only(
        variable("BootOrder", b"\0\0\1\0"),
        variable("Boot0000", option("disk")),
        variable("Boot0001", option("net")),
        variable("Boot0003", option("same")),
    )
    after = only(
        variable("BootOrder", b"\1\0"),
        variable("Boot0000", option("new disk")),
        variable("Boot0002", option("usb")),
        variable("Boot0003", option("same", b"path")),
    )
    assert text_of(before, after, 1) == (
        "PCR 1 changed: Boot0000 changed: disk -> new disk; Boot0001 removed: net; Boot0002 added: usb;"
        " Boot0003 changed: same; boot order Boot0000, Boot0001 -> Boot0001"
    )
    assert change(seed=5)[1].text.endswith("tables that the firmware hands over (SMBIOS, ACPI) changed")
    microcode = Event(pcr=1, type=EventType.CPU_MICROCODE, data=b"", measured=b"1")
    assert text_of(only(), only(microcode), 1) == "PCR 1 changed: CPU microcode changed"
    broken = Event(pcr=1, type=EventType.EFI_VARIABLE_BOOT, data=b"", measured=b"1")
    assert "a UEFI variable that cannot be read added: no text" in text_of(only(), only(broken), 1)


def test_disk_and_boot_attempts() -> None:
    """PCR 5: the partition table, and how the firmware was left."""
    assert change(seed=5)[5].text.startswith("PCR 5 changed: partition table ")
    text = change(quirks=frozenset({LogQuirk.EXIT_FAILS_ONCE}))[5].text
    assert text == "PCR 5 changed: “Exit Boot Services Returned with Failure” is new"
    text = change(quirks=frozenset({LogQuirk.NO_EXIT_BOOT_SERVICES}))[5].text
    assert text.endswith("“Exit Boot Services Returned with Success” is gone")


def test_keys_of_shim() -> None:
    """PCR 14 by the names shim gives."""
    new = kit.ipl(14, "MokList", b"another certificate")
    old = kit.ipl(14, "MokList", b"certificate")
    assert text_of(only(old), only(new), 14) == "PCR 14 changed: shim's MokList changed"
    assert text_of(only(), only(kit.separator(14)), 14).endswith("EV_SEPARATOR: 1 added")


def test_a_pcr_of_which_nobody_knows_anything() -> None:
    """A PCR without an explainer of its own lists types."""
    assert text_of(only(), only(kit.separator(6)), 6) == "PCR 6 changed: events of EV_SEPARATOR: 1 added"


# ---------------------------------------------------------------- limits and forms


@pytest.mark.threat("T65")
def test_long_explanations_are_cut() -> None:
    """Forty lines, twelve phrases, and how many more: however much changed."""
    files = [kit.ipl(9, f"/f{i}", f"{i}".encode()) for i in range(100)]
    found = told(only(), only(*files))[9]
    assert found.text.endswith("; and 88 more changes")
    assert len(found.entries) == 41
    assert found.entries[-1] == "… and 60 more"


def test_without_an_earlier_log() -> None:
    """The events that make up the PCR; also where the earlier log was of another bank."""
    after = replayed(GOOD)
    for before in (None, replayed(GOOD, Alg.SHA384)):
        made, vendor, bare = explain(before, after, {4, 10, 6})
        assert made.text == "PCR 4 (boot loaders) is made of 5 events in the sha256 bank"
        assert len(made.entries) == 5
        assert vendor.text == "PCR 6 (events of the vendor) is made of 1 event in the sha256 bank"
        assert bare == (10, "PCR 10 is not extended by anything in the event log", ())


def test_a_line_per_event() -> None:
    """Index, PCR, type, digest, words; an event that extends nothing has no PCR."""
    lines = describe(replayed(GOOD))
    assert len(lines) == len(GOOD.events) + 1
    assert lines[0].split() == ["0", "PCR", "-", "EV_NO_ACTION", "0" * 16, "Spec", "ID", "Event03"]
    assert any(line.endswith("separator") for line in lines)
    assert all(line.isprintable() for line in lines)


@needs_shared
@pytest.mark.parametrize(
    ("boot", "pcr", "text"),
    [
        ("sb-on-cmdline", 8, "kernel command line: + init=/bin/sh, + init=/init"),
        ("sb-on-initrd", 9, "initrd /initrd.img replaced ("),
        ("sb-off", 7, "Secure Boot turned off"),
    ],
)
def test_real_boots(boot: str, pcr: int, text: str) -> None:
    """What was changed between boots of real firmware is what is said."""
    logs = [
        event_log.replay(event_log.parse((SHARED / f"eventlog/ovmf/n1/{b}/eventlog.bin").read_bytes()), 11)
        for b in ("sb-on", boot)
    ]
    (answer,) = explain(logs[0], logs[1], [pcr])
    assert text in answer.text
