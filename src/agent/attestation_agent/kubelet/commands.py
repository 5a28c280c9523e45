"""`attestation-agent kubelet proxy`, `kubelet bootstrap` and `kubelet credential`."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.client import NodeClient, Retries
from attestation.clock import Clock, SystemClock
from attestation.device import AK_WORDS, EK_PREFERENCE, EK_STRONG, TPM, AKType, NodeTPM
from attestation.device.nv import is_written, read_nv, remove_nv, write_nv_file
from attestation.errors import AttestationError, DeviceError
from attestation.tpm import parse_public
from attestation_agent.commands import run_command
from attestation_agent.edge import Log
from attestation_agent.exits import Exit, UsageError, exit_of
from attestation_agent.kubelet import exec_credential, proxy
from attestation_agent.kubelet.api import KubernetesAPI
from attestation_agent.kubelet.flow import Held, Surroundings, Wanted, due_at, ensure
from attestation_agent.kubelet.kept import Current, Kept, is_memory
from attestation_agent.kubelet.keys import ExternalSoftwareKey, NodeKey, ResidentKey, spki_of_key_file
from attestation_agent.kubelet.kubeconfig import Cluster, Kubeconfig, KubeconfigRejected, written
from attestation_agent.kubelet.kubeconfig import load as load_kubeconfig
from attestation_agent.kubelet.settings import Chosen, load
from attestation_agent.logs import configure
from attestation_agent.rhythm import Rhythm
from attestation_agent.state import State

LOOK_SECONDS: Final = 60.0
"""How often somebody who stays looks whether anything is due."""
ASK_AGAIN: Final = timedelta(hours=1)
"""A client of the exec plugin comes again at least so often."""
MAX_NV_BYTES: Final = 2048
"""A certificate that is longer does not go into NV memory: no TPM has to have room for more in one index."""
RETRY_AFTER: Final = timedelta(minutes=5)
_MAX_AK_TEMPLATE_BYTES: Final = 1024
_MAX_AK_CERTIFICATE_BYTES: Final = 8 << 10


def main(flags: Mapping[str, Any]) -> int:
    """Run `kubelet COMMAND`; *flags* as the command line gave them.

    Raises:
        AttestationError: It ended without what it was started for.
    """
    chosen = load(flags["kubelet"], flags, os.environ)
    log = configure(chosen.shared["log_level"], chosen.shared["log_format"])
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    node = Node(chosen, log=log, wait=stop.wait)
    if flags["kubelet"] == "credential":
        return node.credential(os.environ.get(exec_credential.VARIABLE))
    keep = node.proxy if flags["kubelet"] == "proxy" else node.bootstrap
    return keep(stay=bool(flags["stay"]))


class Node:
    """One node and its certificate.

    Args:
        chosen: The settings.
        log: Where events go.
        wait: Pauses so many seconds; True where we shall stop.
        clock: Tells the time.
        uniform: Draws a number between two bounds.
    """

    def __init__(
        self,
        chosen: Chosen,
        *,
        log: Log,
        wait: Callable[[float], bool],
        clock: Clock | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._chosen = chosen
        self._log = log
        self._wait = wait
        self._clock = clock or SystemClock()
        self._uniform = uniform
        self._settings = chosen.kubelet
        self._kept = Kept(self._settings.kubelet_dir)

    # The three commands

    def credential(self, asked: str | None) -> int:
        """Answer a client of Kubernetes: the exec plugin.

        Raises:
            AttestationError: There is nothing to answer; the client reads why on our standard error.
        """
        if asked is None:
            raise UsageError(
                f"{exec_credential.VARIABLE} is missing: a client of Kubernetes starts this, by users[].user.exec"
            )
        info = exec_credential.parse(asked)
        bootstrap = load_kubeconfig(self._settings.bootstrap_kubeconfig)
        cluster = info.cluster or bootstrap.cluster
        held = self._ensure(Kubeconfig(cluster=cluster, user=bootstrap.user), resident=False)
        current = held.current
        until = answer_until(current, self._clock.now())
        sys.stdout.write(exec_credential.answer(current.issued.pem, current.key_pem, until) + "\n")
        sys.stdout.flush()
        return Exit.OK

    def bootstrap(self, *, stay: bool) -> int:
        """Get a certificate for a software key, and write it and a kubeconfig for kubelet."""
        if not is_memory(self._settings.kubelet_dir):
            self._log.warning("kubelet.key_on_disk", directory=str(self._settings.kubelet_dir))
        if self._settings.attestation == "none":
            self._log.warning("kubelet.without_evidence")
        bundle = str(self._kept.bundle)

        def once() -> Held:
            kubeconfig = load_kubeconfig(self._settings.bootstrap_kubeconfig)
            held = self._ensure(kubeconfig, resident=False)
            written_for = written(kubeconfig.cluster, {"client-certificate": bundle, "client-key": bundle})
            self._kept.write(self._kubeconfig(), written_for)
            return held

        return self._living(once, stay=stay)

    def proxy(self, *, stay: bool) -> int:
        """Get a certificate for a key of the TPM, and write it, nginx's configuration and a kubeconfig for kubelet."""
        self._drop_a_lost_key()

        def once() -> Held:
            kubeconfig = load_kubeconfig(self._settings.bootstrap_kubeconfig)
            # First: what cannot stand behind nginx asks for no certificate.
            conf = proxy.nginx_conf(self._kept.directory, kubeconfig.cluster, self._settings.listen)
            held = self._ensure(kubeconfig, resident=True)
            self._write_proxy(kubeconfig.cluster, conf)
            return held

        return self._living(once, stay=stay, changed=self._restart)

    # What they share

    def _living(
        self, once: Callable[[], Held], *, stay: bool, changed: Callable[[], bool] = lambda: True
    ) -> int:
        """Have a certificate, and where we stay, always a newer one in time; say so to the service manager.

        Args:
            once: Has one.
            stay: Whether to go on.
            changed: Called after a renewal, again and again until it returns True.
        """
        rhythm = Rhythm(uniform=self._uniform, first_seconds=5.0)
        serial, failures = None, 0
        while True:
            try:
                held = once()
            except (AttestationError, OSError) as e:
                if not stay or (isinstance(e, AttestationError) and exit_of(e) is Exit.USAGE):
                    raise
                failures += 1
                self._log.warning(
                    "kubelet.failed", code=getattr(e, "code", "os-error"), reason=str(e), failures=failures
                )
                pause = rhythm.after_failure(failures, getattr(e, "retry_after_seconds", None))
            else:
                if serial is None:
                    tell_manager("READY=1")
                # A proxy that was not restarted goes on with the old certificate, until that ends.
                if serial in (None, held.current.issued.serial) or changed():
                    serial = held.current.issued.serial
                failures = failures + 1 if held.failure else 0
                pause = rhythm.after_failure(failures, None) if held.failure else LOOK_SECONDS
                if not stay:
                    return Exit.OK
            if self._wait(pause):
                tell_manager("STOPPING=1")
                return Exit.OK

    def _ensure(self, kubeconfig: Kubeconfig, *, resident: bool) -> Held:
        settings = self._settings
        before = self._kept.current()
        wanted = Wanted(
            node_name=self._chosen.node_name,
            signer_name=settings.signer_name,
            lifetime_seconds=settings.certificate_seconds,
            trusted=self._client_cas(kubeconfig.cluster),
            attested=settings.attestation == "tpm",
        )
        held = ensure(
            self._surroundings(kubeconfig, resident=resident),
            wanted,
            patience_seconds=float(settings.wait_seconds),
        )
        if settings.store is not None and (
            before is None or before.issued.serial != held.current.issued.serial
        ):
            self._copy(settings.store, held.current)
        return held

    def _surroundings(self, kubeconfig: Kubeconfig, *, resident: bool) -> Surroundings:
        state = State(self._chosen.shared["state_dir"])
        retries = Retries(attempts=2, sleep=self._wait)

        @contextlib.contextmanager
        def service() -> Iterator[NodeClient]:
            shared = self._chosen.shared
            with NodeClient(shared["server_url"], ca_file=shared["ca_file"], retries=retries) as client:
                yield client

        @contextlib.contextmanager
        def api() -> Iterator[KubernetesAPI]:
            with contextlib.closing(KubernetesAPI(kubeconfig.cluster, kubeconfig.user)) as found:
                yield found

        def machine_id() -> str | None:
            known = state.known_as()
            return None if known is None else known.machine_id

        def make_key(tpm: Any) -> NodeKey:
            return ResidentKey.make(tpm) if resident else ExternalSoftwareKey.make()

        def read_key(data: bytes, tpm: Any) -> NodeKey | None:
            return ResidentKey.read(data, tpm) if resident else ExternalSoftwareKey.read(data)

        return Surroundings(
            kept=self._kept,
            service=service,
            machine_id=machine_id,
            api=api,
            tpm=self._tpm if self._settings.attestation == "tpm" else _no_tpm,
            make_key=make_key,
            read_key=read_key,
            spki_of=lambda data: spki_of_key_file(data, resident=resident),
            event_log=self._event_log,
            clock=self._clock,
            wait=self._wait,
            uniform=self._uniform,
            log=self._log,
        )

    def _client_cas(self, cluster: Cluster) -> list[x509.Certificate]:
        path = self._settings.client_ca_file
        try:
            return x509.load_pem_x509_certificates(cluster.ca_pem if path is None else path.read_bytes())
        except OSError as e:
            raise UsageError(f"{path}: {e.strerror}") from e
        except ValueError as e:
            raise KubeconfigRejected("the CAs of clients cannot be read") from e

    def _event_log(self) -> bytes | None:
        path: Path = self._chosen.shared["event_log"]
        try:
            return path.read_bytes()
        except OSError as e:
            self._log.warning("kubelet.event_log_unreadable", path=str(path), reason=e.strerror)
            return None

    def _kubeconfig(self) -> Path:
        return self._settings.kubeconfig or self._kept.directory / "kubelet.conf"

    # The proxy's files

    def _write_proxy(self, cluster: Cluster, conf: str) -> None:
        directory, listen, now = self._kept.directory, self._settings.listen, self._clock.now()
        try:
            local = (directory / proxy.LOCAL).read_bytes()
        except OSError:
            local = b""
        if not proxy.is_local_good(local, listen, now):
            local = proxy.make_local(listen, now)
        self._kept.write(directory / proxy.LOCAL, local)
        self._kept.write(directory / proxy.AUTHORITIES, cluster.ca_pem)
        self._kept.write(directory / proxy.OPENSSL, proxy.OPENSSL_CONF.encode("ascii"))
        self._kept.write(directory / proxy.NGINX, conf.encode("ascii"))
        self._kept.write(self._kubeconfig(), proxy.kubeconfig(directory, local, listen))

    def _drop_a_lost_key(self) -> None:
        """Forget a certificate whose key this TPM does not know any more, as after TPM2_Clear."""
        present = self._kept.current()
        if present is None:
            return
        with self._tpm() as tpm:
            if ResidentKey.read(present.key_pem, tpm) is None:
                self._log.warning("kubelet.key_lost", serial=present.issued.serial)
                self._kept.forget()

    def _restart(self) -> bool:
        """Run the restart command; False where it failed and is to be tried again."""
        if not self._settings.restart_command:
            return True
        seconds = self._chosen.shared["command_timeout_seconds"]
        outcome = run_command(self._settings.restart_command, timeout_seconds=seconds)
        if not outcome.ok:
            self._log.warning("kubelet.restart_failed", outcome=outcome.text)
        return outcome.ok

    # The TPM

    @contextlib.contextmanager
    def _tpm(self) -> Iterator[NodeTPM]:
        shared, settings = self._chosen.shared, self._settings
        ak: AKType | bytes = AK_WORDS[shared["ak"]]
        if settings.ak_template_index is not None:
            ak = self._nv(settings.ak_template_index, _MAX_AK_TEMPLATE_BYTES)
        templates = EK_STRONG if shared["ek"] == "strong" else EK_PREFERENCE
        with NodeTPM.open(shared["tpm"], ak=ak, ek_templates=templates) as tpm:
            if settings.ak_certificate_index is not None:
                self._check_ak(tpm, settings.ak_certificate_index)
            yield tpm

    def _nv(self, index: int, most_bytes: int) -> bytes:
        """Read an NV index that must be there."""
        with TPM.open(self._chosen.shared["tpm"]) as tpm:
            data = read_nv(tpm, index, most_bytes) if is_written(tpm, index) else None
        if data is None:
            raise UsageError(f"NV index 0x{index:08X} holds nothing that could be used")
        return data

    def _check_ak(self, tpm: NodeTPM, index: int) -> None:
        """Compare the AK with its certificate: with another key, all that follows would be refused later."""
        data = self._nv(index, _MAX_AK_CERTIFICATE_BYTES)
        try:
            # NV indices are longer than what is in them.
            certified = x509.load_der_x509_certificate(data[: _der_length(data)]).public_key()
        except ValueError as e:
            raise UsageError(f"NV index 0x{index:08X} holds no certificate that can be read") from e
        ak = parse_public(tpm.ak_public()).spki_der()
        if ak != certified.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo):
            raise UsageError(f"the certificate in NV index 0x{index:08X} is for another key than the AK")

    def _copy(self, index: int, current: Current) -> None:
        """Keep a copy of the certificate in NV memory; that it fails changes nothing, the files are what is used."""
        data = current.issued.leaf.public_bytes(Encoding.DER)
        try:
            with TPM.open(self._chosen.shared["tpm"]) as tpm:
                wrong = _copied(tpm, index, data)
        except DeviceError as e:
            wrong = str(e)
        if wrong is not None:
            self._log.warning("kubelet.nv_failed", index=f"0x{index:08X}", reason=wrong)


def _copied(tpm: TPM, index: int, data: bytes) -> str | None:
    """Let *index* hold *data* and read it back; return what is wrong, None where nothing is.

    Raises:
        DeviceError: The TPM refused or failed.
    """
    if len(data) > MAX_NV_BYTES:
        return f"the certificate has {len(data)} bytes, NV memory gets {MAX_NV_BYTES} at most"
    if is_written(tpm, index) is not None:
        remove_nv(tpm, index)
    write_nv_file(tpm, index, data)
    return None if read_nv(tpm, index, MAX_NV_BYTES) == data else "what was written is not what is read"


@contextlib.contextmanager
def _no_tpm() -> Iterator[Any]:
    """Without evidence, nobody asks the TPM for anything."""
    yield None


def answer_until(current: Current, now: datetime) -> datetime:
    """Return when a client of the exec plugin shall come again.

    Not later than the end of the certificate or in an hour; where a renewal is due before, then, and where one is
    due already and failed, soon.
    """
    due = due_at(current)
    again = due if due > now else now + RETRY_AFTER
    return min(again, now + ASK_AGAIN, current.issued.not_after)


def tell_manager(state: str) -> None:
    """Tell the service manager, where one listens (sd_notify(3)): kubelet starts when there is a certificate."""
    place = os.environ.get("NOTIFY_SOCKET")
    if not place:
        return
    # The first character of an abstract address is a zero byte, which no variable can hold.
    address = f"\0{place[1:]}" if place.startswith("@") else place
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as s,
    ):
        s.sendto(state.encode(), address)


def _der_length(data: bytes) -> int:
    """Return the length that the outer DER says, of the long form with two bytes; else all."""
    return 4 + int.from_bytes(data[2:4]) if data[:2] == b"\x30\x82" else len(data)
