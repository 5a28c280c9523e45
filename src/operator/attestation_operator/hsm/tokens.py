"""Tokens and their keys, as issuers know them: by the HardwareSecurityModule and a label. Everything here blocks.

A thin layer over `attestation.keys`: which module, which PIN file and which label; and the keys that are open.
A PIN passes through no object of ours: its file is named, and read at each login.
"""

# Algorithms for: cluster-ca-key
from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from attestation.errors import KeyAmbiguous, KeyMismatch, KeyNotFound, KeyUnsupported, ModuleNotListed
from attestation.keys.care import TokenFacts, destroy_key, look, token_facts
from attestation.keys.open import Algorithm, KeyOptions, OpenKey, create_key, open_key
from attestation_operator.crds.hsm import P256, HardwareSecurityModuleSpec

PROBE_LABEL: Final = "itl-probe"
"""Stands where a URI needs a label and the token alone is meant."""


OnThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Has something done that blocks, away from the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyName:
    """A key on a token, by label, id (hex), or both."""

    label: str | None = None
    id: str | None = None


_Place = tuple[str, str | None, str | None]
"""Of a token: module, label, serial."""

_OF_ONE_KEY: Final = (KeyNotFound, KeyAmbiguous, KeyMismatch)
"""What is wrong with a key and not with its token: that key is let go of, and its issuer finds out what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """A key that is open, with the test key that it was opened beside."""

    key: OpenKey
    test_key: str | None


class _Token:
    """What is open on one token. A token that is slow holds up its own issuers and no other's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.keys: dict[str, _Open] = {}


class Tokens:
    """The tokens that this process may use.

    Args:
        modules: PKCS#11 modules by name.
        tpms: How to reach TPMs, by name.
        pin_dir: Where PINs are mounted.
        tpm_keys_dir: Where wrapped keys of TPMs are kept.
    """

    def __init__(
        self, *, modules: Mapping[str, Path], tpms: Mapping[str, str], pin_dir: Path, tpm_keys_dir: Path
    ) -> None:
        self._modules = modules
        self._tpms = tpms
        self._pin_dir = pin_dir
        self._tpm_keys = tpm_keys_dir
        self._lock = threading.Lock()
        self._tokens: dict[_Place, _Token] = {}

    def facts(self, token: HardwareSecurityModuleSpec) -> TokenFacts:
        """Return what a token says of itself, after a login."""
        return token_facts(self.uri(token, KeyName(label=PROBE_LABEL)), self._options(token))

    def open(self, token: HardwareSecurityModuleSpec, name: KeyName) -> OpenKey:
        """Return a key; it stays open. It is there once, now: a second one of its name would be a choice.

        Raises:
            KeyNotFound, KeyAmbiguous, KeyUnusable, SignerUnavailable: As `attestation.keys.open.open_key`.
        """
        uri, options = self.uri(token, name), self._options(token)
        held = self._held(token)
        with held.lock:
            there = held.keys.get(uri)
            if there is not None and there.test_key == options.test_key:
                try:
                    look(uri, options)
                except KeyNotFound:
                    self._let_go(held, uri)
                    raise
                return there.key
            key = open_key(uri, options)
            # Another test key was named since: the new one is open before the old one is let go of.
            self._let_go(held, uri)
            held.keys[uri] = _Open(key=key, test_key=options.test_key)
            return key

    def make(self, token: HardwareSecurityModuleSpec, label: str, algorithm: Algorithm) -> OpenKey:
        """Make a key, or open that of the label; it stays open."""
        uri, options = self.uri(token, KeyName(label=label)), self._options(token)
        if token.module in self._tpms:
            self._tpm_keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        held = self._held(token)
        with held.lock:
            key = create_key(uri, algorithm, options)
            self._let_go(held, uri)
            held.keys[uri] = _Open(key=key, test_key=options.test_key)
            return key

    def make_ca(self, token: HardwareSecurityModuleSpec, label: str, algorithm: Algorithm) -> OpenKey:
        """Make the key of a CA, or open that of the label.

        Raises:
            KeyUnsupported: Of another kind than CAs have on such a token.
        """
        if algorithm == "ecdsa-p256" and token.module not in self._tpms:
            raise KeyUnsupported(P256)
        return self.make(token, label, algorithm)

    def forget(self, token: HardwareSecurityModuleSpec, name: KeyName) -> None:
        """Let go of a key; it stays on its token."""
        held = self._held(token)
        with held.lock:
            self._let_go(held, self.uri(token, name))

    def destroy(self, token: HardwareSecurityModuleSpec, label: str) -> bool:
        """Destroy a key; False where there was none."""
        name = KeyName(label=label)
        self.forget(token, name)
        return destroy_key(self.uri(token, name), self._options(token))

    def test(self, token: HardwareSecurityModuleSpec) -> bool:
        """Make a test signature with each key that is open on a token; False where none is.

        A key that is gone, or another one by now, says nothing of the token: it is let go of, and its issuer, which
        looks for it again, says what became of it.

        Raises:
            SignerUnavailable, KeyUnusable: The token does not sign.
        """
        held, signed = self._held(token), False
        with held.lock:
            found = list(held.keys.items())
        for uri, each in found:
            try:
                each.key.self_test(each.key.public_key)
                signed = True
            except _OF_ONE_KEY:
                with held.lock:
                    if held.keys.get(uri) is each:
                        self._let_go(held, uri)
        return signed

    def close(self) -> None:
        """Let go of all keys."""
        with self._lock:
            tokens = list(self._tokens.values())
        for held in tokens:
            with held.lock:
                for uri in list(held.keys):
                    self._let_go(held, uri)

    def _held(self, token: HardwareSecurityModuleSpec) -> _Token:
        with self._lock:
            return self._tokens.setdefault(_place(token), _Token())

    def _let_go(self, held: _Token, uri: str) -> None:
        there = held.keys.pop(uri, None)
        if there is not None:
            there.key.close()

    def uri(self, token: HardwareSecurityModuleSpec, name: KeyName) -> str:
        """Return the URI of a key, with the places of module and PIN.

        Raises:
            ModuleNotListed: The deployment lists no module and no TPM of that name.
        """
        pin = self._pin_file(token)
        tcti = self._tpms.get(token.module)
        if tcti is not None:
            path = self._tpm_keys / f"{_filed(name.label or name.id or '')}.tss2"
            auth = f"&auth-source=file:{quote(str(pin), safe='/')}" if pin is not None else ""
            return f"tpm2:path={quote(str(path), safe='/')}?tcti={quote(tcti, safe=':/')}{auth}"
        if token.module not in self._modules:
            raise ModuleNotListed(f"the controller lists no module and no TPM {token.module}")
        named = {
            "token": token.token_label,
            "serial": token.serial,
            "object": name.label,
        }
        parts = [f"{key}={quote(value, safe='')}" for key, value in named.items() if value is not None]
        if name.id is not None:
            parts.append("id=" + "".join(f"%{byte:02x}" for byte in bytes.fromhex(name.id)))
        source = f"&pin-source=file:{quote(str(pin), safe='/')}" if pin is not None else ""
        return f"pkcs11:{';'.join(parts)};type=private?module-name={token.module}{source}"

    def named(self, token: HardwareSecurityModuleSpec, label: str) -> tuple[str, KeyOptions]:
        """Return the URI of a label on a token, and how keys there are opened.

        Raises:
            ModuleNotListed: As `uri`.
        """
        return self.uri(token, KeyName(label=label)), self._options(token)

    def _pin_file(self, token: HardwareSecurityModuleSpec) -> Path | None:
        ref = token.pin_secret_ref
        return None if ref is None else self._pin_dir / ref.name / ref.key

    def _options(self, token: HardwareSecurityModuleSpec) -> KeyOptions:
        return KeyOptions(modules=self._modules, test_key=token.health_check.test_key)


def _place(token: HardwareSecurityModuleSpec) -> _Place:
    return token.module, token.token_label, token.serial


def _filed(label: str) -> str:
    """Return a label as the name of a file; two labels have two names."""
    return quote(label, safe="").replace(".", "%2E")
