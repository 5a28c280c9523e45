"""What was started, with what words: images, files, command lines, sections (TPM.md §4.3-4.5).

Digests are measured; device paths, file names and labels are not. A claim that something *is* the kernel's
command line rests on what is measured:

- PCR 2 and 4: every event that is not a checked separator or action is an image, whatever it calls itself.
- PCR 8 (GRUB): the digest is of the text behind the label `grub_cmd: ` or `kernel_cmdline: `. The label is
  not measured, so it decides nothing. A text that begins with `/` or `(` is a command line: GRUB's kernel names
  begin so and the names of its commands do not. An event that does not match its text could be a command line
  nobody may see; it is listed with no text.
- PCR 12 (systemd-boot, systemd-stub): the same, with UTF-16 text.
- PCR 9 (GRUB, the kernel's EFI stub): the digest is of a file. Its name is not measured: `kernels` and
  `initrds` are named by what the checked commands of PCR 8 load, as a help for people. Who decides by them must
  allow every digest of PCR 9 (`files`), or compare the PCR.
- PCR 11 (systemd-stub): section names are measured, each before its contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from attestation.evidence.event_log import uefi
from attestation.evidence.event_log.event_types import Covers, EventType, is_unexpected

LABELS: Final = (
    b"grub_cmd: ",
    b"kernel_cmdline: ",
    b"module_cmdline: ",
    b"grub_kernel_cmdline ",
    b"grub_cmd ",
)
"""What GRUB writes before the text that it hashes; the two without a colon are of RHEL 8."""
_COMMAND_LINE_LABELS: Final = (b"kernel_cmdline: ", b"module_cmdline: ", b"grub_kernel_cmdline ")
_LOADS: Final = re.compile(r"(linux|initrd)(?:efi|16)?\s+(.*)", re.DOTALL)


class Image(NamedTuple):
    """An image, or something else in PCR 2 or 4 of which only the digest is known.

    Args:
        pcr: 2 or 4.
        kind: `driver` (PCR 2); `boot-loader`; `kernel`: loaded from memory, without a device path; `image`: an
            event of a type that is not expected there. A help for people: only the digest and the order are
            measured.
        digest: As extended: for an image its Authenticode hash.
        device_path: As the event says; not measured.
        event: Index in the log.
    """

    pcr: int
    kind: str
    digest: bytes
    device_path: bytes
    event: int

    @property
    def path(self) -> str:
        """The device path in words, for people; empty where there is none."""
        return uefi.device_path_text(self.device_path)


class Measured(NamedTuple):
    """A text or file that was measured.

    Args:
        text: Command lines: the text, checked; None where the event does not show what was hashed: it could
            be any command line. Files: the name that the event gives them, not measured.
        digest: As extended.
        pcr: Where.
        event: Index in the log.
    """

    text: str | None
    digest: bytes
    pcr: int
    event: int


class Section(NamedTuple):
    """A section of a unified kernel image, as systemd-stub measured it into PCR 11.

    Args:
        name: `.linux`, `.cmdline`, …: measured.
        digest: Of its contents.
        event: Index in the log of the contents' event.
    """

    name: str
    digest: bytes
    event: int


class BootChain(NamedTuple):
    """Everything that was started or read, in order."""

    images: tuple[Image, ...] = ()
    command_lines: tuple[Measured, ...] = ()
    kernels: tuple[Measured, ...] = ()
    initrds: tuple[Measured, ...] = ()
    files: tuple[Measured, ...] = ()
    uki_sections: tuple[Section, ...] = ()


class Step(NamedTuple):
    """An event of PCR 2, 4, 8, 9, 11 or 12.

    Args:
        event: Index in the log.
        pcr: Where.
        event_type: u32.
        digest: As extended.
        covers: What the digest covers of *data*.
        data: Of the event.
    """

    event: int
    pcr: int
    event_type: int
    digest: bytes
    covers: Covers
    data: bytes


def read(steps: Iterable[Step]) -> BootChain:
    """Return the boot chain that *steps* tell, all of PCR 2, 4, 8, 9, 11 and 12, in order."""
    images: list[Image] = []
    command_lines: list[Measured] = []
    files: list[Measured] = []
    loaded: dict[str, str] = {}
    uki: list[Step] = []
    for step in steps:
        pcr = step.pcr
        if pcr in (2, 4):
            # Who knows the bytes that a digest covers may tell any image as an action; none is so short as one.
            if step.covers is Covers.NOTHING or len(step.data) > 64:
                images.append(_image(step))
        elif pcr == 9:
            files.append(Measured(_file_name(step), step.digest, 9, step.event))
        elif pcr == 11:
            uki.append(step)
        elif step.data not in (bytes(4), b"WBCL") or step.covers is Covers.NOTHING:
            text = measured_text(step)
            if pcr == 12 or text is None or _is_command_line(step.data, text):
                command_lines.append(Measured(text, step.digest, pcr, step.event))
            else:
                _note_loads(text, loaded)
    return BootChain(
        images=tuple(images),
        command_lines=tuple(command_lines),
        kernels=tuple(f for f in files if loaded.get(_bare(f.text or "")) == "linux"),
        initrds=tuple(
            f for f in files if f.text == "Linux initrd" or loaded.get(_bare(f.text or "")) == "initrd"
        ),
        files=tuple(files),
        uki_sections=tuple(_sections(uki)),
    )


def _image(step: Step) -> Image:
    if is_unexpected(step.pcr, step.event_type):
        return Image(step.pcr, "image", step.digest, b"", step.event)
    path = uefi.image_device_path(step.data)
    kind = "driver" if step.pcr == 2 else "boot-loader" if path else "kernel"
    return Image(step.pcr, kind, step.digest, path, step.event)


def measured_text(step: Step) -> str | None:
    """Return the text that the digest of *step* covers; None where it covers none."""
    if step.covers is Covers.TEXT:
        text, _ = split_label(step.data)
        return text.decode("utf-8", errors="replace")
    if step.covers is Covers.DATA:
        encoding = "utf-16-le" if is_utf16(step.data) else "utf-8"
        return step.data.decode(encoding, errors="replace").rstrip("\0")
    return None


def split_label(data: bytes) -> tuple[bytes, bytes]:
    """Return the text behind GRUB's label, without the NUL at its end, and the label; it may be empty."""
    for label in LABELS:
        if data.startswith(label):
            return data[len(label) :].removesuffix(b"\0"), label
    return data.removesuffix(b"\0"), b""


def is_utf16(data: bytes) -> bool:
    """Tell whether *data* looks like UTF-16LE text that begins with an ASCII character."""
    return len(data) >= 2 and len(data) % 2 == 0 and data[1] == 0 and data[0] != 0


def _is_command_line(data: bytes, text: str) -> bool:
    # A byte more, and UTF-16 is no longer told by its length: no command of GRUB has a NUL.
    labelled = data.startswith(_COMMAND_LINE_LABELS)
    return text.startswith(("/", "(")) or labelled or is_utf16(data) or "\0" in text


def _file_name(step: Step) -> str:
    data = step.data
    if step.event_type == EventType.EVENT_TAG and len(data) >= 8:
        return uefi.ascii_text(data[8:])
    return uefi.utf16_text(data) if is_utf16(data) else uefi.ascii_text(data)


def _note_loads(text: str, loaded: dict[str, str]) -> None:
    """Keep which files a checked GRUB command loads: `linux FILE …`, `initrd FILE…`."""
    match = _LOADS.match(text)
    if match is not None:
        command, rest = match.groups()
        names = rest.split()
        for name in names[:1] if command == "linux" else names:
            loaded[_bare(name)] = command


def _bare(name: str) -> str:
    """Return a GRUB file name without its device: `(hd0,gpt2)/vmlinuz` -> `/vmlinuz`."""
    return name.partition(")")[2] if name.startswith("(") else name


def _sections(steps: Sequence[Step]) -> list[Section]:
    """Return the sections: a name that its digest covers, then the contents under the same name."""
    found: list[Section] = []
    name: str | None = None
    for step in steps:
        if step.covers is Covers.NAME and name is None:
            name = uefi.utf16_text(step.data)
        else:
            found.append(Section(name or "", step.digest, step.event))
            name = None
    return found
