"""One machine's own values, written into the configuration of its role, as its version of Talos wants them (§2.1).

Only what is the machine's is written; every other document, comment and key stays as its author left it. The same
values written again change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarint import OctalInt

from attestation.errors import BaseConfigInvalid
from attestation.talos.conflicts import conflicts
from attestation.talos.documents import STUMBLES, kind_of, quoted, read_stream, unreadable, write_stream
from attestation.talos.versions import Generation

DEFAULT_INTERFACE: Final = "eth0"
LABEL_FINGERPRINT_HEX: Final = 16
"""Characters of the EK fingerprint that go into a label; all 96 do not fit (at most 63)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFile:
    """A file that the machine is to have.

    Args:
        path: Where: below /var up to Talos 1.13, below /etc from 1.14 on.
        content: What is in it.
        mode: Its permissions, e.g. 0o444.
    """

    path: str
    content: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What is one machine's own in its configuration.

    Args:
        machine_id: Of its record.
        ek_fingerprint: SHA-384 of its EK, hex.
        hostname: As an operator gave it.
        assigned_ip: Its address with the length of the prefix.
        installer_image: Of the service; used where the configuration names none.
        files: What it is to have besides.
    """

    machine_id: str
    ek_fingerprint: str
    hostname: str | None
    assigned_ip: str | None
    installer_image: str
    files: tuple[OwnFile, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of its node; they prove nothing (§2.3)."""
        return {
            "itl.io/machine-id": self.machine_id,
            "itl.io/tpm-ek": self.ek_fingerprint[:LABEL_FINGERPRINT_HEX],
        }

    @property
    def annotations(self) -> dict[str, str]:
        """Return the annotations of its node."""
        return {"itl.io/tpm-ek-full": self.ek_fingerprint}


def complete(base: bytes, own: Own, generation: Generation) -> bytes:
    """Return *base* with what is the machine's own, in the documents of *generation*.

    Raises:
        BaseConfigInvalid: Not YAML that everybody reads alike; not one v1alpha1 document (from 1.14 on: more than
            one); a place of ours that holds something else; no link that the address could be given to; or a file in
            a place that this version cannot have.
    """
    documents = read_stream(base)
    complete_documents(documents, own, generation)
    return write_stream(documents)


def complete_documents(documents: list[CommentedMap], own: Own, generation: Generation) -> None:
    """Write what is the machine's own into documents that were read; else as `complete`."""
    try:
        _complete(documents, own, generation)
    except STUMBLES as e:
        raise unreadable(e) from None


def _complete(documents: list[CommentedMap], own: Own, generation: Generation) -> None:
    plain = [each for each in documents if not kind_of(each)]
    if len(plain) > 1 or (not plain and generation is not Generation.ALL_DOCUMENTS):
        raise BaseConfigInvalid(f"base configuration: {len(plain)} v1alpha1 documents, expected 1")
    v1alpha1 = plain[0] if plain else CommentedMap()
    # Talos refuses a document beside what it took the place of: where the base has that still, ours goes there too.
    # A host name alone is no reason: it is taken out.
    settled = {kind for kind, path in conflicts(v1alpha1) if path != "machine.network.hostname"}
    settled -= {kind_of(each) for each in documents}
    late = generation is Generation.ALL_DOCUMENTS
    if late and "UnattendedInstallConfig" not in settled:
        _install_document(documents, own)
    elif own.installer_image:
        _default_image(_map(_map(v1alpha1, "machine"), "install"), own)
    if generation.since(Generation.NETWORK_DOCUMENTS):
        if "HostnameConfig" in settled:
            _classic_hostname(v1alpha1, own)
        else:
            if own.hostname:
                _take_out(plain, ("machine", "network"), ("hostname",))
            _host_document(documents, own)
        _link_document(documents, own)
    else:
        _classic_hostname(v1alpha1, own)
        _classic_addresses(v1alpha1, own)
    if late and "KubeNodeConfig" not in settled:
        _take_out(plain, ("machine", "nodeLabels"), own.labels)
        _take_out(plain, ("machine", "nodeAnnotations"), own.annotations)
        _node_document(documents, own)
    else:
        machine = _map(v1alpha1, "machine")
        _write(_map(machine, "nodeLabels"), own.labels)
        _write(_map(machine, "nodeAnnotations"), own.annotations)
    if late:
        _etc_documents(documents, own)
    else:
        _classic_files(_map(v1alpha1, "machine"), own)


def _default_image(place: CommentedMap, own: Own) -> None:
    if not place.get("image"):
        place["image"] = quoted(own.installer_image)


# ---------------------------------------------------------------- up to 1.11, and what later versions still take


def _classic_hostname(v1alpha1: CommentedMap, own: Own) -> None:
    if own.hostname:
        _map(_map(v1alpha1, "machine"), "network")["hostname"] = quoted(own.hostname)


def _classic_addresses(v1alpha1: CommentedMap, own: Own) -> None:
    machine = _map(v1alpha1, "machine")
    if own.assigned_ip:
        interfaces = _list(_map(machine, "network"), "interfaces")
        if not interfaces:
            interfaces.append(CommentedMap({"interface": DEFAULT_INTERFACE}))
        if not isinstance(interfaces[0], CommentedMap):
            raise BaseConfigInvalid("base configuration: machine.network.interfaces[0] is not a mapping")
        addresses = _list(interfaces[0], "addresses")
        if own.assigned_ip not in addresses:
            addresses.append(quoted(own.assigned_ip))


def _classic_files(machine: MutableMapping[str, Any], own: Own) -> None:
    for file in own.files:
        if not file.path.startswith("/var/"):
            raise BaseConfigInvalid(f"file {file.path}: this version of Talos makes files below /var only")
        files = _list(machine, "files")
        new = CommentedMap(
            {
                "content": quoted(file.content),
                "permissions": OctalInt(file.mode),
                "path": quoted(file.path),
                "op": "create",
            }
        )
        _put(files, new, same=lambda each, path=file.path: each.get("path") == path)


# ---------------------------------------------------------------- documents


def _host_document(documents: list[CommentedMap], own: Own) -> None:
    if own.hostname:
        document = _document(documents, "HostnameConfig")
        # Both at once is refused by Talos. Quoted: a reader of YAML 1.1 takes `off` for false.
        document["auto"] = quoted("off")
        document["hostname"] = quoted(own.hostname)


def _link_document(documents: list[CommentedMap], own: Own) -> None:
    """Give the address to the first link of the base; without one, to the first alias."""
    if not own.assigned_ip:
        return
    link = next((each for each in documents if kind_of(each) == "LinkConfig"), None)
    if link is None:
        alias = next((each for each in documents if kind_of(each) == "LinkAliasConfig"), None)
        if alias is None or not isinstance(alias.get("name"), str):
            raise BaseConfigInvalid(
                "base configuration: no LinkConfig, or LinkAliasConfig with a name, for the address"
            )
        link = _new("LinkConfig", name=alias["name"])
        documents.append(link)
    addresses = _list(link, "addresses")
    if not any(isinstance(each, dict) and each.get("address") == own.assigned_ip for each in addresses):
        addresses.append(CommentedMap({"address": quoted(own.assigned_ip)}))


def _node_document(documents: list[CommentedMap], own: Own) -> None:
    node = _document(documents, "KubeNodeConfig")
    _write(_map(node, "labels"), own.labels)
    _write(_map(node, "annotations"), own.annotations)


def _install_document(documents: list[CommentedMap], own: Own) -> None:
    """Name the image in the document that is there; none is made, for it must say which disk is to be erased."""
    kind = "UnattendedInstallConfig"
    if own.installer_image and any(kind_of(each) == kind for each in documents):
        _default_image(_map(_document(documents, kind), "installer"), own)


def _etc_documents(documents: list[CommentedMap], own: Own) -> None:
    for file in own.files:
        name = file.path.removeprefix("/etc/")
        if name == file.path:
            raise BaseConfigInvalid(f"file {file.path}: this version of Talos makes files below /etc only")
        new = _new(
            "EtcFileConfig", name=quoted(name), mode=OctalInt(file.mode), contents=quoted(file.content)
        )
        _put(
            documents,
            new,
            same=lambda each, name=name: kind_of(each) == "EtcFileConfig" and each.get("name") == name,
        )


def _document(documents: list[CommentedMap], kind: str) -> CommentedMap:
    """Return the one document of *kind*, made where there is none.

    Raises:
        BaseConfigInvalid: There are several.
    """
    found = [each for each in documents if kind_of(each) == kind]
    if len(found) > 1:
        raise BaseConfigInvalid(
            f"base configuration: {len(found)} documents of kind {kind}, expected at most 1"
        )
    if not found:
        found = [_new(kind)]
        documents.extend(found)
    return found[0]


def _new(kind: str, **members: Any) -> CommentedMap:
    return CommentedMap({"apiVersion": "v1alpha1", "kind": kind, **members})


def _take_out(plain: list[CommentedMap], place: tuple[str, str], words: Iterable[str]) -> None:
    """Take what is the machine's own out of its former place: it is said in one, and nowhere else otherwise."""
    for document in plain:
        found: Any = document
        for name in place:
            found = found.get(name) if isinstance(found, CommentedMap) else None
        for word in words:
            if not isinstance(found, CommentedMap) or word not in found:
                continue
            if any(word in each for each in found.merge):
                raise BaseConfigInvalid(f"base configuration: {'.'.join(place)} has {word} by a merge")
            del found[word]


def _put(among: list[Any], new: CommentedMap, *, same: Any) -> None:
    """Put *new* in the place of the first that is the same thing, else at the end."""
    for index, each in enumerate(among):
        if isinstance(each, CommentedMap) and same(each):
            among[index] = new
            return
    among.append(new)


def _write(place: CommentedMap, words: dict[str, str]) -> None:
    for key, value in words.items():
        place[key] = quoted(value)


def _map(parent: MutableMapping[str, Any], key: str) -> CommentedMap:
    """Return the mapping at *key*, made where absent or empty."""
    child = parent.get(key)
    if child is None:
        child = parent[key] = CommentedMap()
    if not isinstance(child, CommentedMap):
        raise BaseConfigInvalid(f"base configuration: {key} is not a mapping")
    return child


def _list(parent: MutableMapping[str, Any], key: str) -> CommentedSeq:
    """Return the list at *key*, made where absent or empty."""
    child = parent.get(key)
    if child is None:
        child = parent[key] = CommentedSeq()
    if not isinstance(child, CommentedSeq):
        raise BaseConfigInvalid(f"base configuration: {key} is not a list")
    return child
