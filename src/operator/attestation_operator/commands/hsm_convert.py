"""`attestation hsm convert`: YAML of others as ours, and on stderr what that changed and left out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from attestation.errors import RequestInvalid
from attestation_cli.plugin import Session, clean, printing
from attestation_operator.commands.hsm_judging import EVIDENCE, READ, refuse

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES: Final = 1 << 20
MAX_DOCUMENTS: Final = 256
MAX_DEPTH: Final = 16


@click.command("convert")
@click.argument("file", type=READ)
@click.option(
    "--module", "modules", multiple=True, metavar="NAME=PATH", help="A name of the controller's list."
)
@click.option("-n", "--namespace", default="default", show_default=True, help="Of what names none.")
@click.option(
    "--signer", "signers", multiple=True, metavar="SHA256", help="Who may hand the keys of issuers over."
)
@click.option(
    "--evidence",
    "evidence_type",
    type=click.Choice(EVIDENCE),
    metavar="TYPE",
    default="sgx",
    show_default=True,
    help="By which hardware proves itself.",
)
@click.option(
    "--issuer-uid",
    "issuer_uids",
    multiple=True,
    metavar="NAME=UID",
    help="UID of an issuer, by namespace/name, for QuoteAttestations.",
)
@printing
def convert_file(
    session: Session,
    file: Path,
    *,
    modules: tuple[str, ...],
    namespace: str,
    signers: tuple[str, ...],
    evidence_type: str,
    issuer_uids: tuple[str, ...],
) -> None:
    """Write objects of others as objects of this project, YAML, several documents.

    Read are HardwareSecurityModules as proposed for cert-manager, with their issuers, and QuoteAttestations of that
    proposal and of Intel's Trusted Certificate Issuer. What is written differently, and what has no counterpart, stands
    on stderr. The command ends with 1 where something was left out.

    \b
    Example:
      attestation hsm convert seed.yaml --module softhsm=/usr/lib/softhsm/libsofthsm2.so \\
        --signer 5f0c…c62 > ours.yaml
    """
    from attestation_operator.crds.yaml import document
    from attestation_operator.hsm.converting import Converted, Wanted, convert

    wanted = Wanted(
        modules={path: name for name, path in _pairs(modules)},
        namespace=namespace,
        signers=signers,
        evidence_type=evidence_type,
        issuer_uids=dict(_pairs(issuer_uids)),
        at=datetime.now(UTC),
    )
    found = Converted()
    for each in _documents(file):
        convert(each, wanted, found)
    if session.json:
        session.emit_json({"objects": found.objects, "changes": found.changes, "dropped": found.dropped})
    elif found.objects:
        click.echo("---\n".join(map(document, found.objects)), nl=False)
    for words in found.changes:
        click.echo(f"changed: {clean(words)}", err=True)
    for words in found.dropped:
        click.echo(f"left out: {clean(words)}", err=True)
    if found.dropped or not found.objects:
        raise click.exceptions.Exit(1)


def _pairs(given: Iterable[str]) -> Iterable[tuple[str, str]]:
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals or not value:
            refuse(f"{clean(each)}: NAME=… expected")
        yield name, value


def _documents(file: Path) -> list[Any]:
    """Read the documents of a file.

    Aliases are refused: a few lines of them stand for more than any computer holds. So are tags, members that stand
    twice, and what is nested deeper than any object.

    Raises:
        RequestInvalid: It is no such YAML.
    """
    import yaml  # type: ignore[import-untyped]  # PyYAML has no types

    with file.open("rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        refuse(f"{clean(str(file))}: more than {MAX_BYTES} bytes")
    try:
        depth = 0
        for event in yaml.parse(data, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                refuse(f"{clean(str(file))}: an alias; write out what it stands for")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    refuse(f"{clean(str(file))}: nested more than {MAX_DEPTH} deep")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
        found = list(yaml.load_all(data, Loader=_once(yaml)))
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as e:
        # Its words quote lines, in which a PIN may stand.
        mark = getattr(e, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise RequestInvalid(f"{clean(str(file))}: no YAML that is read here{where}") from None
    # A separator at the beginning or end makes an empty document.
    found = [each for each in found if each is not None]
    if len(found) > MAX_DOCUMENTS:
        refuse(f"{clean(str(file))}: more than {MAX_DOCUMENTS} documents")
    return found


def _once(yaml: Any) -> Any:
    """Return a safe loader that refuses a member that stands twice."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            if len({str(key) for key in keys}) != len(keys):
                raise yaml.constructor.ConstructorError(None, None, "a member stands twice", node.start_mark)
            return super().construct_mapping(node, deep)

    return Loader
