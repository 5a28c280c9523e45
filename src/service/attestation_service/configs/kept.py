"""The key-encryption keys of configurations, opened where they are needed first, and what lies under them.

A key that is away takes nothing with it but configurations, at the start as well as later: it is looked for again
whenever somebody needs it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from attestation.errors import ConfigurationsNotKept, ConfigurationUnreadable, KeyUnusable, UnwrapFailed
from attestation.keys import KEK, KeyOptions, LocalKEK, open_keks
from attestation.store import Configuration, Delivered, SealedConfiguration, WrappedConfiguration
from attestation_service.authority.places import key_options
from attestation_service.configs import sealing
from attestation_service.configs.beside import Beside
from attestation_service.configs.sealing import Opened
from attestation_service.settings import Settings

KEPT_OPEN: Final = 16
"""So many versions stay open in memory; a device need not be asked for each machine."""


class KeptConfigurations:
    """See the module. Its methods may ask devices and block: call them from its threads, `beside`.

    Args:
        settings: `ITL_CONFIG_KEK` and `ITL_CONFIG_ENCRYPTION_KEY` name the keys, the newest first.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.beside = Beside()
        self._lock = threading.Lock()
        self._keks: Mapping[str, KEK] = {}
        self._open: OrderedDict[tuple[bytes, bytes, Configuration], Opened] = OrderedDict()

    @property
    def is_on(self) -> bool:
        """True where configurations are kept in the database, and files are not asked."""
        return self._settings.keeps_configurations

    def newest(self) -> str:
        """Return the name of the key under which what is new is kept.

        Raises:
            ConfigurationsNotKept: No key is set.
            ConfigurationUnreadable: It cannot be used.
            SignerUnavailable: Its device does not answer.
        """
        return next(iter(self._opened()))

    def knows(self, kek_id: str) -> bool:
        """Return True if the key of this name is set. Raises as `newest`."""
        return kek_id in self._opened()

    def seal(self, text: bytes, about: Configuration) -> SealedConfiguration:
        """Return *text* as it is kept, under the newest key, whose name *about* has. Raises as `newest`."""
        return sealing.seal(text, about, self._of(about.kek_id))

    def open(self, sealed: SealedConfiguration) -> Opened:
        """Return what is kept.

        Raises:
            ConfigurationsNotKept: No key is set.
            ConfigurationUnreadable: It lies under another key, or somebody changed it.
            SignerUnavailable: The device of the key does not answer.
        """
        known = (sealed.wrapped, sealed.blob, sealed.about)
        with self._lock:
            if (found := self._open.get(known)) is not None:
                self._open.move_to_end(known)
                return found
        try:
            found = sealing.unseal(sealed, self._of(sealed.about.kek_id))
        except UnwrapFailed:
            raise ConfigurationUnreadable(
                f"configuration {sealed.about.ref} is not what was stored: its row was changed, or the key was"
            ) from None
        with self._lock:
            self._open[known] = found
            while len(self._open) > KEPT_OPEN:
                self._open.popitem(last=False)
        return found

    def text(self, delivered: Delivered) -> bytes:
        """Return what is delivered, if it was activated here.

        Raises:
            ConfigurationUnreadable: It cannot be opened, or was not; else as `open`.
        """
        sealed, active = delivered
        opened = self.open(sealed)
        fits = (active.place, active.version, active.sha256) == (
            sealed.about.place,
            sealed.about.version,
            sealed.about.sha256,
        )
        if not (fits and sealing.vouches(opened, active)):
            raise ConfigurationUnreadable(
                f"configuration {sealed.about.ref} was not activated by this service"
            )
        return opened.text

    def rewrapped(self, sealed: WrappedConfiguration) -> bytes:
        """Return the secret of *sealed* under the newest key. Raises as `open`."""
        try:
            return sealing.rewrapped(sealed, self._of(sealed.about.kek_id), self._of(self.newest()))
        except UnwrapFailed:
            raise ConfigurationUnreadable(
                f"configuration {sealed.about.ref} is not what was stored"
            ) from None

    def close(self) -> None:
        """Let go of the keys."""
        with self._lock:
            keks, self._keks = self._keks, {}
            self._open.clear()
        for each in keks.values():
            each.close()

    def _of(self, kek_id: str) -> KEK:
        found = self._opened().get(kek_id)
        if found is None:
            raise ConfigurationUnreadable(
                f"configurations lie under a key-encryption key that is not set: {kek_id}"
            )
        return found

    def _opened(self) -> Mapping[str, KEK]:
        if not self.is_on:
            raise ConfigurationsNotKept("ITL_CONFIG_KEK is not set: base configurations are files here")
        with self._lock:
            if not self._keks:
                try:
                    self._keks = open_config_keks(self._settings)
                except KeyUnusable as e:
                    raise ConfigurationUnreadable(
                        f"the key-encryption key of configurations: {e.code}"
                    ) from e
            return self._keks


def open_config_keks(settings: Settings) -> dict[str, KEK]:
    """Open the keys that the settings name; return each by its name, the newest first.

    Raises:
        KeyUnusable: One of them cannot be used; subclasses say why.
        SignerUnavailable: A device does not answer.
    """
    options: KeyOptions = replace(key_options(settings), passphrase=None)
    found = open_keks(settings.config_kek, options)
    if settings.config_encryption_key is not None:
        local = LocalKEK(bytes.fromhex(settings.config_encryption_key.get_secret_value()))
        found.setdefault(local.key_id, local)
    return found
