"""The file by which a node finds its API server (kubeconfig): read strictly, and written for kubelet.

Only what a joining node needs is read. What is not known is refused rather than passed over, since each member of
this file is about whom to believe or as whom to speak: `insecure-skip-tls-verify`, programs to run, passwords and
impersonation are refused by name.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from attestation_agent.exits import UsageError

MAX_BYTES: Final = 1 << 20
_MAX_TOKEN_BYTES: Final = 64 << 10
_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?\Z")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,65536}\Z")
_PEM_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"

_TOP: Final = frozenset(
    {"apiVersion", "kind", "clusters", "users", "contexts", "current-context", "preferences", "extensions"}
)
_CONTEXT: Final = frozenset({"cluster", "user", "namespace", "extensions"})
_CLUSTER: Final = frozenset(
    {
        "server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority",
        "certificate-authority-data", "proxy-url", "disable-compression", "extensions",
    }
)  # fmt: skip
_USER: Final = frozenset(
    {
        "token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data",
        "extensions",
    }
)  # fmt: skip


class KubeconfigRejected(UsageError):
    """A kubeconfig cannot be used, or says something that a node must not follow."""

    code = "kubeconfig-rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where the API server is, and by which certificates it is believed.

    Args:
        server: `https://host[:port][/path]`, without a slash at the end.
        ca_pem: The only CAs to trust for it.
        tls_server_name: Name that its certificate must have, where it is not the host of `server`.
        proxy_url: `http://host:port` of a proxy on the way.
    """

    server: str
    ca_pem: bytes
    tls_server_name: str | None = None
    proxy_url: str | None = None

    @property
    def host(self) -> str:
        """Name or address of the server, as in its URL but without brackets."""
        return urlsplit(self.server).hostname or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """As whom to speak: a token, or a certificate and its key; nobody where there is neither."""

    token: str | None = field(default=None, repr=False)
    certificate_pem: bytes | None = None
    key_pem: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubeconfig:
    """The current context of a kubeconfig."""

    cluster: Cluster
    user: User


def load(path: Path) -> Kubeconfig:
    """Read the file at *path*, and the files that it names; a relative name begins in its directory.

    Raises:
        KubeconfigRejected: A file cannot be read, or is not what it must be.
    """
    return parse(_read(path, MAX_BYTES), lambda name: _read(path.parent / name, MAX_BYTES))


def parse(data: bytes, read: Any) -> Kubeconfig:
    """Read a kubeconfig: YAML or JSON, at most 1 MiB.

    Args:
        data: The file.
        read: Returns the content of a file that it names; called with the name as written.

    Raises:
        KubeconfigRejected: The only way to fail, beside what *read* raises.
    """
    top = _mapping(_document(data), "the file", _TOP)
    if top.get("apiVersion") != "v1" or top.get("kind") != "Config":
        raise KubeconfigRejected("kubeconfig: not of apiVersion v1 and kind Config")
    context = _mapping(
        _named(top, "contexts", "context", _text(top, "current-context", "the file")), "the context", _CONTEXT
    )
    cluster = _mapping(
        _named(top, "clusters", "cluster", _text(context, "cluster", "the context")), "the cluster", _CLUSTER
    )
    user = _mapping(_named(top, "users", "user", _text(context, "user", "the context")), "the user", _USER)
    return Kubeconfig(cluster=_cluster(cluster, read), user=_user(user, read))


def cluster_of(
    *,
    server: object,
    ca_pem: bytes,
    insecure_skip_tls_verify: object = None,
    tls_server_name: object = None,
    proxy_url: object = None,
) -> Cluster:
    """Return a cluster whose members were checked, wherever they were written.

    Raises:
        KubeconfigRejected: The only way to fail.
    """
    if insecure_skip_tls_verify not in (None, False):
        raise KubeconfigRejected("insecure-skip-tls-verify: anybody could be the API server then; refused")
    if not isinstance(server, str) or not _is_https(server):
        raise KubeconfigRejected("server: not https://host[:port]")
    if _PEM_CERTIFICATE not in ca_pem:
        raise KubeconfigRejected(
            "certificate-authority: names no certificate in PEM to believe the API server by"
        )
    if tls_server_name in (None, ""):
        tls_server_name = None
    elif not isinstance(tls_server_name, str) or not _HOST.match(tls_server_name):
        raise KubeconfigRejected("tls-server-name: not the name of a host")
    if proxy_url in (None, ""):
        proxy_url = None
    elif not isinstance(proxy_url, str) or not proxy_url.startswith("http://"):
        raise KubeconfigRejected("proxy-url: only http://host:port can be used")
    return Cluster(
        server=server.rstrip("/"), ca_pem=ca_pem, tls_server_name=tls_server_name, proxy_url=proxy_url
    )


def written(cluster: Cluster, user: Mapping[str, object]) -> bytes:
    """Return a kubeconfig for kubelet with one context, as JSON, which YAML contains.

    Args:
        cluster: The API server, or what stands before it.
        user: Members of the user: files by their paths.
    """
    members: dict[str, object] = {
        "server": cluster.server,
        "certificate-authority-data": base64.b64encode(cluster.ca_pem).decode("ascii"),
    }
    if cluster.tls_server_name is not None:
        members["tls-server-name"] = cluster.tls_server_name
    if cluster.proxy_url is not None:
        members["proxy-url"] = cluster.proxy_url
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": members}],
        "users": [{"name": "node", "user": dict(user)}],
        "contexts": [{"name": "node", "context": {"cluster": "cluster", "user": "node"}}],
        "current-context": "node",
    }
    return json.dumps(content, indent=2).encode("ascii") + b"\n"


def _document(data: bytes) -> object:
    if len(data) > MAX_BYTES:
        raise KubeconfigRejected(f"kubeconfig: longer than {MAX_BYTES} bytes")
    # Imported here: most commands of the agent read no YAML.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = False
    try:
        with warnings.catch_warnings():
            # A warning would quote lines, and those may hold a token.
            warnings.simplefilter("ignore")
            return yaml.load(data.decode("utf-8"))
    except (
        YAMLError, RecursionError, ValueError, TypeError, AttributeError, LookupError, AssertionError,
    ) as e:  # fmt: skip
        # Beside its own errors, ruamel stumbles over what YAML allows and Python does not. Its words quote lines.
        mark = getattr(e, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "it"
        raise KubeconfigRejected(f"kubeconfig: {where} is not YAML that everybody reads alike") from None


def _mapping(found: object, what: str, known: frozenset[str]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise KubeconfigRejected(f"kubeconfig: {what} is no mapping")
    for name in found:
        if name not in known:
            # Not the value: it may be a password.
            shown = (
                name if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9-]{1,40}", name) else "a member"
            )
            raise KubeconfigRejected(f"kubeconfig: {what} has {shown}, which a node does not follow")
    return found


def _named(top: Mapping[str, Any], many: str, one: str, name: str) -> object:
    """Return the member *one* of the entry of *many* that has this name; it must be there once."""
    entries = top.get(many)
    if not isinstance(entries, list):
        raise KubeconfigRejected(f"kubeconfig: {many} is no list")
    found = [entry for entry in entries if isinstance(entry, dict) and entry.get("name") == name]
    if len(found) != 1:
        raise KubeconfigRejected(f"kubeconfig: of {many} there are {len(found)} with the name that is meant")
    return found[0].get(one)


def _text(members: Mapping[str, Any], name: str, what: str) -> str:
    text = members.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= 1024:
        raise KubeconfigRejected(f"kubeconfig: {what} has no {name}")
    return text


def _cluster(members: Mapping[str, Any], read: Any) -> Cluster:
    ca = _file_or_data(members, "certificate-authority", "the cluster", read)
    return cluster_of(
        server=members.get("server"),
        ca_pem=ca or b"",
        insecure_skip_tls_verify=members.get("insecure-skip-tls-verify"),
        tls_server_name=members.get("tls-server-name"),
        proxy_url=members.get("proxy-url"),
    )


def _user(members: Mapping[str, Any], read: Any) -> User:
    certificate = _file_or_data(members, "client-certificate", "the user", read)
    key = _file_or_data(members, "client-key", "the user", read)
    if (certificate is None) is not (key is None):
        raise KubeconfigRejected(
            "kubeconfig: the user has a client certificate without key, or a key without it"
        )
    token = members.get("token")
    # As client-go reads it: the file wins, because it may be renewed.
    if members.get("tokenFile") is not None:
        content: bytes = read(_text(members, "tokenFile", "the user"))
        token = content[:_MAX_TOKEN_BYTES].decode("utf-8", "replace").strip()
    if token is not None and (not isinstance(token, str) or not _TOKEN.match(token)):
        raise KubeconfigRejected("kubeconfig: the token is not one")
    return User(token=token, certificate_pem=certificate, key_pem=key)


def _file_or_data(members: Mapping[str, Any], name: str, what: str, read: Any) -> bytes | None:
    """Return what stands in the file itself, else in the one that it names; None for neither."""
    data = members.get(f"{name}-data")
    if data is None:
        if members.get(name) is None:
            return None
        content: bytes = read(_text(members, name, what))
        return content
    try:
        return base64.b64decode(data if isinstance(data, str) else "*", validate=True)
    except (binascii.Error, ValueError):
        raise KubeconfigRejected(f"kubeconfig: {name}-data is not base64") from None


def _is_https(server: str) -> bool:
    try:
        parsed = urlsplit(server)
        host, port = parsed.hostname, parsed.port
    except ValueError:
        return False
    return bool(
        parsed.scheme == "https"
        and host
        and port != 0
        and (_HOST.match(host) or ":" in host)
        and all("!" <= character <= "~" for character in server)
        and not set(server) & set("\"'\\;{}$<>`|^")
        and "@" not in parsed.netloc
        and not parsed.query
        and not parsed.fragment
    )


def _read(path: Path, most_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except (OSError, ValueError) as e:
        raise KubeconfigRejected(f"{path}: {getattr(e, 'strerror', None) or 'cannot be opened'}") from e
    if len(data) > most_bytes:
        raise KubeconfigRejected(f"{path}: longer than {most_bytes} bytes")
    return data
