"""Which extensions are enabled, and whether they can be used: asked before the application is built."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from attestation.api.said import said
from attestation.extension import (
    CONTRACT,
    GROUP,
    OWN_EVENTS,
    SEMANTIC_VERSION,
    AttestationExtension,
    Event,
    ExtensionEvent,
    Handler,
    Observer,
    QueryTable,
    event_named,
)
from attestation_service.extensions.enabled import (
    BUILT_IN,
    NONE,
    Enabled,
    ExtensionInvalid,
    first_words,
    groups_of,
    prefixes_of,
    strange,
)
from attestation_service.extensions.listing import listing
from attestation_service.extensions.mounting import routers_of
from attestation_service.extensions.tables import demand_tables
from attestation_service.query.catalog import of_extension
from attestation_service.query.views import views
from attestation_service.settings import PREFIX, Settings, SettingsInvalid

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
QUERY_NAME: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")


def load(settings: Settings) -> Enabled:
    """Make the extensions that *settings* enable, and ask what they add; nothing of any other is imported.

    Of ours, each must work. What does not of others is left out, and `Enabled.skipped` says why.

    Raises:
        ExtensionInvalid: One is named twice or is not installed; one of ours fails, or does not keep the contract.
        SettingsInvalid: A setting of an extension that is not enabled.
    """
    names = settings.extensions
    if not names:
        return Enabled(routers=(listing((), NONE),))  # the list of none; nothing else is loaded for it
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ExtensionInvalid(twice, "is named twice")
    for name in names:
        # Settings and tables of the one could be those of the other.
        if other := next((each for each in names if name.startswith(f"{each}_")), None):
            raise ExtensionInvalid(name, f"cannot be enabled with {other}: its name begins as that one's")
    points = {name: _point(name) for name in names}
    foreign = {name for name, point in points.items() if not _is_ours(point)}
    found = Enabled(foreign=frozenset(foreign))
    kinds: dict[str, type[AttestationExtension]] = {}
    for name, point in points.items():
        try:
            kind = _import(name, point)
            _demand_own_variables(name, kind, kinds)
            kinds[name] = kind
        except ExtensionInvalid as e:
            found.skip(e)
    given = _settings_of(names, kinds, settings.extension_values)
    made: list[AttestationExtension] = []
    for name, kind in kinds.items():
        try:
            each = _make(name, kind, given[name])
            with strange(name, "cannot be made"):
                _demand_free(each, made)
        except ExtensionInvalid as e:
            found.skip(e)
        else:
            made.append(each)
    usable, routers = routers_of(made, found)
    handlers = _subscriptions(usable, found)
    observers = _observers(usable, found)
    query_tables = _query_tables(usable, found)
    return Enabled(
        extensions=tuple(each for each in usable if each.name not in found.skipped),
        routers=routers,
        handlers=handlers,
        observers=observers,
        query_tables=query_tables,
        foreign=found.foreign,
        skipped=found.skipped,
    )


def _is_ours(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == BUILT_IN


def _point(name: str) -> EntryPoint:
    if not NAME.fullmatch(name):
        raise ExtensionInvalid(name, "has a name that none can have: small letters, digits and _")
    from importlib.metadata import entry_points  # here: a service without extensions need not load it

    points = list(entry_points(group=GROUP, name=name))
    if not points:
        found = ", ".join(sorted({each.name for each in entry_points(group=GROUP)})) or "none"
        raise ExtensionInvalid(name, f"is not installed; installed: {found}")
    if len(points) > 1:
        raise ExtensionInvalid(name, f"is installed twice: {', '.join(each.value for each in points)}")
    return points[0]


def _import(name: str, point: EntryPoint) -> type[AttestationExtension]:
    with strange(name, "cannot be imported"):
        kind = point.load()
    if not isinstance(kind, type) or not issubclass(kind, AttestationExtension):
        raise ExtensionInvalid(name, f"is no AttestationExtension: {point.value}")
    if (contract := getattr(kind, "contract", None)) != CONTRACT:
        raise ExtensionInvalid(name, f"was written for contract {contract}; this service has {CONTRACT}")
    return kind


def _make(name: str, kind: type[AttestationExtension], given: Mapping[str, str]) -> AttestationExtension:
    with strange(name, "cannot be made"):
        made = kind(_chosen(name, kind, given))
        said_name, about = made.name, (made.version, made.description)
        _demand_text((*made.prefixes, *made.tables, *made.cli_groups, *made.events, *about))
        demand_tables(name, made)
        for event in made.events:
            ExtensionEvent(event)
        for asked in _asked(made):
            if not QUERY_NAME.fullmatch(asked):
                raise ExtensionInvalid(
                    name, f"has a table for queries called {asked!r}; `Visits` would be a name"
                )
    if said_name != name:
        raise ExtensionInvalid(name, f"calls itself {said_name!r}")
    if not all(about):
        raise ExtensionInvalid(name, "says nothing of its version or of what it does")
    if not SEMANTIC_VERSION.fullmatch(made.version):
        raise ExtensionInvalid(name, f"has the version {made.version!r}; `1.0.0` would be a semantic one")
    return made


def _demand_text(said: Iterable[object]) -> None:
    for each in said:
        if not isinstance(each, str):
            raise TypeError(f"{each!r} is no text")


def _demand_free(extension: AttestationExtension, others: Iterable[AttestationExtension]) -> None:
    """Refuse what takes a table, a prefix, a command group or events that another one has."""
    for other in others:
        for what, ours, theirs in (
            ("the table", _tables(extension), _tables(other)),
            ("the prefix", prefixes_of(extension), prefixes_of(other)),
            ("the command group", groups_of(extension), groups_of(other)),
            ("events called", first_words(extension), first_words(other)),
            ("the table for queries", _asked(extension), _asked(other)),
        ):
            if both := sorted(one for one in ours if any(_meet(one, each) for each in theirs)):
                raise ExtensionInvalid(extension.name, f"takes {what} {both[0]}, which {other.name} has")
        for one, two in ((extension, other), (other, extension)):
            if table := next(
                (each for each in _tables(one) if each.startswith(f"extension_{two.name}_")), None
            ):
                why = f"cannot be enabled with {other.name}: {table} of {one.name} is called as those of {two.name}"
                raise ExtensionInvalid(extension.name, why)


def _meet(one: str, other: str) -> bool:
    """Return True for the same names, and for paths one of which stands below the other: the first would answer."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _asked(extension: AttestationExtension) -> list[str]:
    """Return what the query language calls what it may look up of *extension*."""
    return [table.name for table in extension.get_query_tables()]


def _tables(extension: AttestationExtension) -> list[str]:
    return [*extension.tables, *(model.__tablename__ for model in extension.get_models())]


# ---------------------------------------------------------------- settings


def _demand_own_variables(
    name: str, kind: type[AttestationExtension], others: Mapping[str, type[AttestationExtension]]
) -> None:
    """Refuse variables that the service has, or another extension, and what names none."""
    with strange(name, "names no variables"):
        variables = frozenset(dict(kind.variables))
        foreign = sorted(each for each in variables if not _is_for_extensions(each))
    if foreign:
        raise ExtensionInvalid(name, f"takes the variable {foreign[0]}, which is not for extensions")
    for other, theirs in others.items():
        if both := sorted(variables & theirs.variables.keys()):
            raise ExtensionInvalid(name, f"takes the variable {both[0]}, which {other} has")


def _is_for_extensions(variable: str) -> bool:
    ours = variable.removeprefix(PREFIX).lower() in Settings.model_fields
    return variable.startswith(PREFIX) and not ours and not variable.startswith(Settings.EXTENSION_PREFIX)


def _settings_of(
    names: Sequence[str], kinds: Mapping[str, type[AttestationExtension]], values: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Return the values of each of *names*, by the name of the field.

    Raises:
        SettingsInvalid: There is one that belongs to none of them.
    """
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    declared: dict[str, tuple[str, str]] = {}
    for name, kind in kinds.items():
        for variable, field in kind.variables.items():
            declared.setdefault(variable, (name, field))  # a second one that declares it is refused
    for variable, value in sorted(values.items()):
        if variable in declared:
            name, field = declared[variable]
            found[name][field] = value
            continue
        rest = variable.removeprefix(Settings.EXTENSION_PREFIX).lower()
        owner = next((each for each in names if rest.startswith(f"{each}_")), None)
        if owner is None or not variable.startswith(Settings.EXTENSION_PREFIX):
            if len(kinds) < len(names) and not variable.startswith(Settings.EXTENSION_PREFIX):
                continue  # of one that cannot be imported, perhaps: it is told of
            raise SettingsInvalid(f"unknown setting {variable}; it belongs to no extension of ITL_EXTENSIONS")
        found[owner][rest.removeprefix(f"{owner}_")] = value
    return found


def _chosen(name: str, kind: type[AttestationExtension], given: Mapping[str, str]) -> BaseModel:
    model = kind.Settings
    spelled = {field: variable for variable, field in kind.variables.items()}

    def variable(field: str) -> str:
        return spelled.get(field, f"{Settings.EXTENSION_PREFIX}{name.upper()}_{field.upper()}")

    if unknown := sorted(given.keys() - model.model_fields.keys()):
        raise ExtensionInvalid(name, f"has no setting {variable(unknown[0])}")
    try:
        return model(**given)
    except ValidationError as e:
        # The variable, never its value: it may be a secret.
        faults = [
            f"{variable(str(each['loc'][0]) if each['loc'] else '')}: {said(each)}" for each in e.errors()
        ]
        raise ExtensionInvalid(name, "; ".join(faults)) from None


# ---------------------------------------------------------------- events


def _subscriptions(
    extensions: Iterable[AttestationExtension], enabled: Enabled
) -> dict[str, Mapping[Event, Handler]]:
    """Return what handles which event, by extension; one that fails, or handles what is no event, is skipped."""
    found: dict[str, Mapping[Event, Handler]] = {}
    extensions = tuple(extensions)
    every = (*OWN_EVENTS, *(ExtensionEvent(word) for each in extensions for word in each.events))
    for each in extensions:
        try:
            with strange(each.name, "has no subscriptions"):
                told: dict[Any, Any] = dict(each.get_subscriptions())  # its word for it
        except ExtensionInvalid as e:
            enabled.skip(e)
            continue
        wanted: dict[Event, Handler] = dict.fromkeys(every, told.pop("*")) if callable(told.get("*")) else {}
        for event, handler in told.items():
            try:
                wanted[event_named(event)] = handler
                known = callable(handler)
            except (ValueError, TypeError):
                known = False
            if not known:
                why = f"subscribes to {event!r}, which is no event, or not with a function"
                enabled.skip(ExtensionInvalid(each.name, why))
                break
        else:
            if wanted:
                found[each.name] = wanted
    return found


def _observers(extensions: Iterable[AttestationExtension], enabled: Enabled) -> tuple[Observer, ...]:
    """Return what counts; an extension that fails, or whose observer is no function, is skipped."""
    found: list[Observer] = []
    for each in extensions:
        try:
            with strange(each.name, "has no observer"):
                observer: Any = each.get_observer()  # its word for it
        except ExtensionInvalid as e:
            enabled.skip(e)
            continue
        if callable(observer):
            found.append(observer)
        elif observer is not None:
            enabled.skip(ExtensionInvalid(each.name, "has an observer that is no function"))
    return tuple(found)


def _query_tables(extensions: Iterable[AttestationExtension], enabled: Enabled) -> tuple[QueryTable, ...]:
    """Return what the query language may look up; an extension whose tables cannot be shown is skipped."""
    taken = {view.name.casefold() for view in views(datetime.fromtimestamp(0, UTC))}
    found: list[QueryTable] = []
    for each in extensions:
        try:
            with strange(each.name, "has a table that no query can show"):
                tables = tuple(each.get_query_tables())
                for table in tables:
                    _demand_shown(table, taken)
        except ExtensionInvalid as e:
            enabled.skip(e)
        else:
            found += tables
    return tuple(found)


def _demand_shown(table: QueryTable, taken: set[str]) -> None:
    """Refuse a table called like one of the service, or of others but for case, and a column that cannot be shown."""
    if table.name.casefold() in taken:
        raise ValueError(f"there is a table {table.name} already")
    if table.right not in ("read", "audit"):
        raise ValueError(f"{table.name} is for {table.right!r}")
    of_extension(table)
    taken.add(table.name.casefold())


def by_event(subscribed: Mapping[str, Mapping[Event, Handler]]) -> dict[Event, list[str]]:
    """Return who is told of which event."""
    found: dict[Event, list[str]] = defaultdict(list)
    for name, handlers in subscribed.items():
        for event in handlers:
            found[event].append(name)
    return dict(found)
