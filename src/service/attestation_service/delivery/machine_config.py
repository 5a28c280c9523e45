"""The MachineConfig of one machine: the base of its role with the machine's own values written into it.

Base files are `<cluster>/<role>-final.yaml` in `ITL_CONFIG_CACHE_DIR`. Those that lie in it directly, as they did
before there were folders (ITL-REFERENCE §17), are of the cluster `default` and of no other: a base holds the
secrets of its cluster.

They are read and written as YAML 1.2 round trip (ruamel.yaml): comments, document order and everything we do not
know survive. Refused, because two readers could understand it differently or it costs without bound: duplicate keys,
aliases that expand more than tenfold or refer to themselves, more than 1 MiB (DELIVERY-AND-OPERATORS §2.5).
"""

from __future__ import annotations

import io
import re
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode
from ruamel.yaml.scalarstring import DoubleQuotedScalarString as Quoted

from attestation.api.base import CLUSTER_ID_PATTERN
from attestation.errors import BaseConfigInvalid, BaseConfigMissing
from attestation.machines import DEFAULT_CLUSTER, Role

MAX_BYTES: Final = 1 << 20
MAX_ALIAS_EXPANSION: Final = 10
_CLUSTER_ID: Final = re.compile(CLUSTER_ID_PATTERN)
DEFAULT_INTERFACE: Final = "eth0"
LABEL_FINGERPRINT_HEX: Final = 16
"""Characters of the EK fingerprint that go into a label; all 96 do not fit (at most 63)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What is one machine's own in its configuration."""

    machine_id: str
    ek_fingerprint: str
    hostname: str | None
    assigned_ip: str | None
    installer_image: str


def load_base(directory: Path, role: Role, cluster_id: str) -> bytes:
    """Read the base configuration of *role* in a cluster; each part of its path is of a closed form.

    Raises:
        BaseConfigMissing: There is no such file.
        BaseConfigInvalid: It is larger than 1 MiB or cannot be read.
    """
    what = f"base configuration for role {role} in cluster {cluster_id}"
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise BaseConfigMissing(f"no {what}")
    name = f"{Role(role).value}-final.yaml"
    places = [directory / cluster_id / name]
    if cluster_id == DEFAULT_CLUSTER:
        places.append(directory / name)
    for path in places:
        try:
            with path.open("rb") as f:
                text = f.read(MAX_BYTES + 1)
        except FileNotFoundError:
            continue
        except OSError as e:
            raise BaseConfigInvalid(f"{what}: {e.strerror}") from e
        if len(text) > MAX_BYTES:
            raise BaseConfigInvalid(f"{what}: more than {MAX_BYTES} bytes")
        return text
    raise BaseConfigMissing(f"no {what}")


def merge(base: bytes, overrides: Overrides) -> bytes:
    """Write *overrides* into the v1alpha1 document of the YAML stream *base*; the rest stays as it is.

    Raises:
        BaseConfigInvalid: Not YAML that everybody reads alike, or without exactly one v1alpha1 document.
    """
    try:
        text = base.decode("utf-8")
        _check_aliases(text)
        yaml = _round_trip()
        documents = list(yaml.load_all(text))
        _apply(_v1alpha1(documents), overrides)
        out = io.BytesIO()
        yaml.dump_all(documents, out)
    except (
        YAMLError,
        RecursionError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
        AssertionError,
    ) as e:
        # Beside its own errors, ruamel stumbles over what YAML allows and Python does not, e.g. mappings as keys.
        # The message of a YAML error quotes the lines around it, and those may hold cluster secrets; numbers do not.
        mark = getattr(e, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "it"
        raise BaseConfigInvalid(
            f"base configuration: {where} is not YAML that everybody reads alike"
        ) from None
    if out.tell() > MAX_BYTES:
        raise BaseConfigInvalid(f"merged configuration: more than {MAX_BYTES} bytes")
    return out.getvalue()


def _round_trip() -> YAML:
    yaml = YAML(typ="rt", pure=True)
    yaml.preserve_quotes = True
    yaml.width = MAX_BYTES  # never fold a line that the operator wrote as one
    yaml.allow_duplicate_keys = False
    yaml.indent(mapping=2, sequence=4, offset=2)
    _silence(yaml)
    return yaml


def _silence(yaml: YAML) -> None:
    """Anchors may be used again (YAML 1.2, 7.1); the warning would quote lines, and those may hold secrets."""
    yaml.composer.warn_double_anchors = False


def _check_aliases(text: str) -> None:
    yaml = YAML(typ="rt", pure=True)
    _silence(yaml)
    for document in yaml.compose_all(text):
        sizes: dict[int, int] = {}
        expanded = _expanded(document, sizes, frozenset())
        if expanded > MAX_ALIAS_EXPANSION * max(1, len(sizes)):
            raise BaseConfigInvalid("base configuration: aliases expand more than tenfold")


def _expanded(node: Node | None, sizes: dict[int, int], above: frozenset[int]) -> int:
    """Return how many nodes *node* has once its aliases are written out."""
    if node is None:
        return 0
    if id(node) in above:
        raise BaseConfigInvalid("base configuration: an alias refers to itself")
    if (known := sizes.get(id(node))) is not None:
        return known
    inside = above | {id(node)}
    children: list[Node] = []
    if isinstance(node, MappingNode):
        children = [child for pair in node.value for child in pair]
    elif isinstance(node, SequenceNode):
        children = list(node.value)
    size = 1 + sum(_expanded(child, sizes, inside) for child in children)
    sizes[id(node)] = size
    return size


def _v1alpha1(documents: list[Any]) -> CommentedMap:
    """Return the one document without `kind`: the v1alpha1 MachineConfig."""
    found = [d for d in documents if isinstance(d, CommentedMap) and "kind" not in d]
    if len(found) != 1:
        raise BaseConfigInvalid(f"base configuration: {len(found)} v1alpha1 documents, expected 1")
    return found[0]


def _apply(document: CommentedMap, overrides: Overrides) -> None:
    """Set the paths of ITL-REFERENCE §17."""
    machine = _map(document, "machine")
    if overrides.installer_image:
        install = _map(machine, "install")
        if not install.get("image"):
            install["image"] = _text(overrides.installer_image)
    if overrides.hostname:
        _map(machine, "network")["hostname"] = _text(overrides.hostname)
    if overrides.assigned_ip:
        _add_address(_map(machine, "network"), overrides.assigned_ip)
    labels = _map(machine, "nodeLabels")
    labels["itl.io/machine-id"] = _text(overrides.machine_id)
    labels["itl.io/tpm-ek"] = _text(overrides.ek_fingerprint[:LABEL_FINGERPRINT_HEX])
    _map(machine, "nodeAnnotations")["itl.io/tpm-ek-full"] = _text(overrides.ek_fingerprint)


def _add_address(network: MutableMapping[str, Any], address: str) -> None:
    """Append *address* to the first interface; without one, make `eth0`."""
    interfaces = network.get("interfaces")
    if interfaces is None:
        interfaces = network["interfaces"] = CommentedSeq()
    if not isinstance(interfaces, list):
        raise BaseConfigInvalid("base configuration: machine.network.interfaces is not a list")
    if not interfaces:
        interfaces.append(CommentedMap({"interface": DEFAULT_INTERFACE}))
    first = interfaces[0]
    if not isinstance(first, CommentedMap):
        raise BaseConfigInvalid("base configuration: machine.network.interfaces[0] is not a mapping")
    addresses = first.get("addresses")
    if addresses is None:
        addresses = first["addresses"] = CommentedSeq()
    if not isinstance(addresses, list):
        raise BaseConfigInvalid("base configuration: addresses of the first interface are not a list")
    if address not in addresses:
        addresses.append(_text(address))


def _map(parent: MutableMapping[str, Any], key: str) -> CommentedMap:
    """Return the mapping at *key*, made where absent or empty."""
    child = parent.get(key)
    if child is None:
        child = parent[key] = CommentedMap()
    if not isinstance(child, CommentedMap):
        raise BaseConfigInvalid(f"base configuration: {key} is not a mapping")
    return child


def _text(value: str) -> str:
    """Quote *value*: sixteen hex digits may look like a number, and YAML 1.1 readers know more words."""
    quoted: str = Quoted(value)
    return quoted
