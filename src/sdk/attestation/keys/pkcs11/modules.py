"""Which PKCS#11 modules this deployment has, and one process of a machine at a time where that matters."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from attestation.errors import KeyURIInvalid, ModuleNotListed, ModuleUnusable
from attestation.keys.uri import PKCS11Ref

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RETRY_SECONDS: Final = 0.02


def parse_modules(entries: Iterable[str]) -> Mapping[str, Path]:
    """Return the modules of a list of `name=/path/to/module.so`, as `ITL_PKCS11_MODULES` holds it.

    Raises:
        KeyURIInvalid: An entry of another form, a relative path, or a name that stands there twice.
    """
    modules: dict[str, Path] = {}
    for entry in entries:
        name, equals, path = entry.partition("=")
        if not equals or not _NAME.fullmatch(name) or not path.startswith("/"):
            raise KeyURIInvalid(f"ITL_PKCS11_MODULES: each entry is name=/path/to/module.so; found {entry!r}")
        if name in modules:
            raise KeyURIInvalid(f"ITL_PKCS11_MODULES: {name} stands there twice")
        modules[name] = Path(path)
    return MappingProxyType(modules)


def module_of(ref: PKCS11Ref, modules: Mapping[str, Path]) -> tuple[str, Path]:
    """Return name and path of the module that *ref* names; the only one of the list where it names none.

    Raises:
        ModuleNotListed: The list has no such module: nothing else is ever loaded.
    """
    listed = ", ".join(sorted(modules)) or "none"
    if ref.module_name is not None:
        if ref.module_name not in modules:
            raise ModuleNotListed(
                f"the PKCS#11 module {ref.module_name} is not in ITL_PKCS11_MODULES; listed: {listed}"
            )
        return ref.module_name, modules[ref.module_name]
    if len(modules) != 1:
        raise ModuleNotListed(f"{ref.shown} needs module-name=…; modules in ITL_PKCS11_MODULES: {listed}")
    return next(iter(modules.items()))


@contextlib.contextmanager
def alone(path: Path, *, wait_seconds: float) -> Iterator[bool]:
    """Hold the lock of the module *path* among the processes of this machine; it says whether we have it.

    Whoever can read the module can hold the lock, so it is waited for only so long.

    Raises:
        ModuleUnusable: There is no such file, or it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise ModuleUnusable(f"the PKCS#11 module {path} cannot be read: {e.strerror}") from e
    try:
        yield _locked(descriptor, time.monotonic() + wait_seconds)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_RETRY_SECONDS)
        else:
            return True
