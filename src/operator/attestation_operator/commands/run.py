"""`attestation run …`: attestation runs of a cluster's nodes, for people without kubectl."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from attestation.errors import RequestInvalid
from attestation.runs import BACKENDS
from attestation_cli.plugin import (
    FILE_PATH,
    Column,
    Session,
    checked,
    clean,
    listing,
    printing,
    time_cell,
)
from attestation_operator.commands.place import Asked, Place, ask, in_cluster, nothing_in

if TYPE_CHECKING:
    from attestation_operator.objects import Raw

MAX_POLICY_BYTES: Final = 1 << 20
MAX_NAME: Final = 246
"""Longest name of a run: that of its Result is longer by seven."""
EXIT_NEGATIVE: Final = 1
EXIT_USAGE: Final = 2
EXIT_NOT_FOUND: Final = 3
EXIT_UNDECIDED: Final = 6
_EXITS: Final = {
    "PolicyNotFound": EXIT_NOT_FOUND,
    "NodeNotFound": EXIT_NOT_FOUND,
    "PolicyInvalid": EXIT_USAGE,
    "EvidenceRejected": EXIT_NEGATIVE,
    "VerdictFailed": EXIT_NEGATIVE,
}
"""Exit codes of runs that failed; by any other reason nobody knows."""


@click.group("run")
def group() -> None:
    """Attestation runs of a cluster's nodes: is this node what it claims to be? Asks Kubernetes, by a kubeconfig.

    \b
    Examples:
      attestation run create worker-1 --policy workers --wait
      attestation run list --node worker-1
      attestation run show worker-1-tpm-3fa9c1
      attestation run bundle worker-1-tpm-3fa9c1 -f worker-1.intoto.jsonl
    """


_run = click.argument("run")


@group.command("create")
@click.argument("node")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="tpm",
    show_default=True,
    help="Whose evidence is asked for.",
)
@click.option("--policy", metavar="NAME", help="AttestationPolicy of the namespace that it must satisfy.")
@click.option(
    "--policy-file", type=FILE_PATH, help="File with a policy for this run alone, YAML; it gives no standing."
)
@click.option("--nonce", help="16 to 128 characters that the evidence is to be bound to besides.")
@click.option("--timeout", metavar="SPAN", help="How long it may take: 5s to 5m; without, 2m.")
@click.option("--name", help="Its name; without, of node and backend.")
@click.option("--wait", is_flag=True, help="Wait for its end; the exit code is that of the verdict.")
@printing
@in_cluster
def create(
    session: Session,
    place: Place,
    node: str,
    backend: str,
    policy: str | None,
    policy_file: Path | None,
    nonce: str | None,
    timeout: str | None,
    name: str | None,
    *,
    wait: bool,
) -> None:
    """Ask NODE for evidence. Without a policy nothing is compared, and no run is verified.

    With --wait: 0 where it is verified, 1 where a check failed, 6 where it could not be decided.
    """
    import secrets

    from attestation.api.runs import CallerNonce
    from attestation_operator.crds.runs import Timeout

    if policy is not None and policy_file is not None:
        raise RequestInvalid("either --policy or --policy-file")
    spec: dict[str, Any] = {"backend": backend, "targetNodeName": node}
    if policy is not None:
        spec["policyRef"] = {"name": policy}
    if policy_file is not None:
        spec["policy"] = _policy(policy_file)
    if nonce is not None:
        spec["nonce"] = _option("--nonce", CallerNonce, nonce)
    if timeout is not None:
        spec["timeout"] = _option("--timeout", Timeout, timeout)
    # Chosen here: where the answer is lost, it is known what to look for.
    end = f"-{backend}-{secrets.token_hex(3)}"
    name = name or node[: MAX_NAME - len(end)].rstrip("-.") + end

    async def made(asked: Asked) -> Raw:
        from attestation_operator.objects import RUN

        metadata = {"name": name, "namespace": asked.namespace}
        return await asked.cluster.create(RUN, {"metadata": metadata, "spec": spec})

    run = ask(place, made)
    if not wait:
        if session.json:
            session.emit_json(run)
        else:
            session.emit(f"{_called(run)}: created")
        return
    session.note(f"{_called(run)}: created")
    _finish(session, _followed(session, place, name, to_the_seal=False))


def _policy(file: Path) -> Any:
    import yaml  # type: ignore[import-untyped]  # PyYAML has no types

    from attestation.api.attestation_policy import AttestationPolicySpec

    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_POLICY_BYTES + 1)
        if len(data) > MAX_POLICY_BYTES:
            raise RequestInvalid(f"{file}: longer than a policy may be")
        read = yaml.safe_load(data)
    except OSError as e:
        raise RequestInvalid(f"{file}: {e.strerror}") from e
    except yaml.YAMLError as e:
        raise RequestInvalid(f"{file}: no YAML: {e}") from e
    if isinstance(read, dict) and read.get("kind") == "AttestationPolicy":
        read = read.get("spec")
    if not isinstance(read, dict):
        raise RequestInvalid(f"{file}: neither an AttestationPolicy nor its spec")
    checked(lambda: AttestationPolicySpec.model_validate(read))
    return read


def _option(name: str, kind: Any, text: str) -> str:
    """Return what was typed, if a run may say it: a cluster knows the shape, and from 1.25 on the rules."""
    from pydantic import TypeAdapter

    from attestation_operator.crds.runs import Timeout
    from attestation_operator.durations import NotADuration, parse_duration

    try:
        if kind is Timeout:
            parse_duration(text)
        taken: str = checked(lambda: TypeAdapter(kind).validate_python(text))
    except (NotADuration, RequestInvalid) as e:
        raise RequestInvalid(f"{name} {e}") from None
    return taken


@group.command("list")
@click.option("--node", metavar="NAME", help="Only those of this Node.")
@click.option("--schedule", metavar="NAME", help="Only those that this schedule created.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces.")
@listing
@in_cluster
def list_(
    session: Session, place: Place, node: str | None, schedule: str | None, *, all_namespaces: bool
) -> None:
    """List runs, the newest first."""
    from attestation_operator.commands import run_words as words

    async def listed(asked: Asked) -> tuple[str, list[Raw]]:
        from attestation_operator.objects import RUN
        from attestation_operator.runs.schedule_objects import SCHEDULE_LABEL

        return asked.namespace, await asked.cluster.list(
            RUN,
            namespace=None if all_namespaces else asked.namespace,
            labels=None if schedule is None else {SCHEDULE_LABEL: schedule},
        )

    namespace, found = ask(place, listed)
    runs = [each for each in found if node in (None, each["spec"].get("targetNodeName"))]
    runs.sort(key=lambda run: (run["metadata"]["creationTimestamp"], run["metadata"]["name"]), reverse=True)
    now = datetime.now(UTC)
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("NAMESPACE", wide=not all_namespaces): lambda r: r["metadata"].get("namespace"),
        Column("RUN"): lambda r: r["metadata"]["name"],
        Column("BACKEND"): lambda r: r["spec"].get("backend"),
        Column("NODE"): lambda r: r["spec"].get("targetNodeName"),
        Column("PHASE"): words.phase,
        Column("VERDICT"): words.verdict,
        Column("WHY", drop=1): words.failure,
        Column("AGE"): lambda r: time_cell(words.instant(r, "metadata", "creationTimestamp"), now),
        Column("UID", wide=True): lambda r: r["metadata"]["uid"],
    }
    session.emit_list(iter(runs), columns, "No runs." if all_namespaces else nothing_in(namespace, "runs"))


@group.command("show")
@_run
@printing
@in_cluster
def show(session: Session, place: Place, run: str) -> None:
    """Show a run and its Result, check by check, in words."""
    from attestation_operator.commands.run_follow import read
    from attestation_operator.commands.run_screen import emit_run

    async def both(asked: Asked) -> tuple[Raw, Raw | None]:
        found = await read(asked, run)
        return found, await _result(asked, found)

    emit_run(session, *ask(place, both))


async def _result(asked: Asked, run: Raw) -> Raw | None:
    from attestation_operator.objects import RESULT, Key

    name = ((run.get("status") or {}).get("resultRef") or {}).get("name")
    if not name:
        return None
    found = await asked.cluster.read(Key(kind=RESULT, name=name, namespace=asked.namespace))
    # Another run may have had the name before.
    of = ((found or {}).get("spec") or {}).get("derivedFromRun") or {}
    return found if of.get("uid") == run["metadata"]["uid"] else None


@group.command("watch")
@_run
@printing
@in_cluster
def watch(session: Session, place: Place, run: str) -> None:
    """Tell each change of a run until its end.

    That is when it is sealed, too; then the exit code is that of the verdict, as of `create --wait`. As JSON: one line
    for each state.
    """
    _finish(session, _followed(session, place, run, to_the_seal=True))


def _followed(session: Session, place: Place, name: str, *, to_the_seal: bool) -> Raw:
    """Print how a run goes on; return it as it ended."""
    from attestation_operator.commands.run_follow import follow
    from attestation_operator.commands.run_words import steps

    async def followed(asked: Asked) -> Raw:
        before: Raw | None = None
        async for run in follow(asked, name, to_the_seal=to_the_seal):
            if session.json:
                session.emit(json.dumps(run))
            else:
                for what, value, why in steps(before, run):
                    at = f"{datetime.now(UTC):%H:%M:%S}Z"
                    line = f"{at}  {clean(what):<17}{clean(value):<11}{clean(why)}".rstrip()
                    session.emit(line)
            before = run
        assert before is not None
        return before

    return ask(place, followed)


def _finish(session: Session, run: Raw) -> None:
    """End with the exit code of the verdict."""
    from attestation_operator.commands import run_words as words

    if not session.json:
        session.emit(f"{_called(run)}: {clean(words.why(run) or words.phase(run))}")
    code = _EXITS.get(words.failure(run) or "", EXIT_UNDECIDED)
    if words.verdict(run) == "verified" and words.phase(run) == "Succeeded":
        code = 0
    if code:
        raise click.exceptions.Exit(code)


@group.command("bundle")
@_run
@click.option(
    "-f", "--file", type=FILE_PATH, help="Where to write it; - is standard output [default: RUN.intoto.jsonl]"
)
@printing
@in_cluster
def bundle(session: Session, place: Place, run: str, file: Path | None) -> None:
    """Write the sealed bundle of a run to a file.

    The file proves itself: `attestation bundle verify FILE`. The service gives it to operators (`attestation auth
    login`). RUN is a name, or the UID of a run that is gone.
    """
    import re

    from attestation_operator.commands.run_follow import read

    async def found(asked: Asked) -> str:
        uid: str = (await read(asked, run))["metadata"]["uid"]
        return uid

    whole = re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", run)
    uid = run if whole else ask(place, found)
    with session.client() as client:
        sealed = client.run_bundle(uid)
    file = file or Path(f"{run}.intoto.jsonl")
    if str(file) == "-":
        sys.stdout.buffer.write(sealed)
        return
    try:
        with file.open("xb") as opened:
            opened.write(sealed)
    except OSError as e:
        raise RequestInvalid(f"{file}: {e.strerror}") from e
    session.emit_done(
        f"{clean(str(file))}: written; `attestation bundle verify` says what it proves",
        {"file": str(file), "size_bytes": len(sealed), "run_uid": uid},
    )


def _called(run: Raw) -> str:
    metadata = run["metadata"]
    return clean(f"run {metadata.get('namespace')}/{metadata['name']}")
