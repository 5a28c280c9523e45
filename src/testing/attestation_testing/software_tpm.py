"""Real TPM behaviour without hardware: swtpm processes, manufactured here in milliseconds.

`swtpm_setup` takes most of a second per TPM. A blank swtpm starts in 10 ms; deriving its EK, signing the certificate
and writing it to NV takes a few more, so fleets of hundreds are practical.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from attestation.device import TPM, AKType, NodeTPM
from attestation.device.node import EK_PREFERENCE
from attestation.errors import DeviceError
from attestation.tpm import commands
from attestation.tpm.commands import NVAttr, NVPublic
from attestation.tpm.constants import Alg, Curve, Hierarchy
from attestation.tpm.hashes import bank_alg
from attestation.tpm.public import Public, Scheme, parse_public
from attestation.tpm.sessions import Password
from attestation.tpm.templates import EK_TEMPLATES, EKTemplate
from attestation_testing.ak_certificates import make_ak_certificate
from attestation_testing.certificates import CertificateAuthority, EKCertificateOptions

START_TIMEOUT_SECONDS: Final = 60.0
STOP_TIMEOUT_SECONDS: Final = 60.0
COMMAND_TIMEOUT_SECONDS: Final = 120.0

# A shell stands between us and swtpm, and waits for the end of its standard input. We hold the other end: when we
# stop the TPM, or die in whatever way, the kernel closes it, and the shell kills the one process it started. swtpm's
# own --terminate would end the TPM with its first client; a signal on the death of the parent is not portable and
# fires when the thread that started it ends.
_GUARD: Final = 'swtpm "$@" </dev/null & child=$!; read -r _; kill -9 "$child" 2>/dev/null; wait "$child"'
_MAX_SOCKET_PATH_BYTES: Final = 100
"""sockaddr_un holds 107 bytes, and the name of the control channel is five longer."""
_CERTIFICATE_ATTRIBUTES: Final = int(
    NVAttr.PP_WRITE
    | NVAttr.PP_READ
    | NVAttr.OWNER_READ
    | NVAttr.AUTH_READ
    | NVAttr.NO_DA
    | NVAttr.PLATFORM_CREATE
)
_NV_CHUNK_BYTES: Final = 512


class SoftwareTPM:
    """One swtpm process with its state.

    Args:
        directory: Where its state stands; made if absent. A directory used before is the same TPM again.

    Attributes:
        uri: For `open_transport`, `TPM.open`, `NodeTPM.open` and the agent.
        tcti: For tpm2-tools (`TPM2TOOLS_TCTI`) and OpenSSL's provider tpm2 (`TPM2OPENSSL_TCTI`).
        directory: Absolute.
    """

    def __init__(self, directory: Path) -> None:
        # swtpm with a relative directory fails every command with 0x101.
        self.directory = directory.resolve()
        self._sockets: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        socket_path = self.directory / "tpm.sock"
        if len(str(socket_path).encode()) > _MAX_SOCKET_PATH_BYTES:
            # Too long for a socket.
            self._sockets = Path(tempfile.mkdtemp(prefix="swtpm-"))
            socket_path = self._sockets / "tpm.sock"
        self._socket_path = socket_path
        self.uri = f"unix:{socket_path}"
        self.tcti = f"swtpm:path={socket_path}"

    @property
    def running(self) -> bool:
        """True from `start` to `stop`."""
        return self._process is not None

    def start(self) -> Self:
        """Start swtpm, powered on and started up (TPM2_Startup), and wait until it listens.

        Raises:
            DeviceError: swtpm is missing, ended at once, or does not listen in time.
        """
        if self._process is not None:
            return self
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket_path.unlink(missing_ok=True)
        Path(f"{self._socket_path}.ctrl").unlink(missing_ok=True)
        arguments = [
            "socket",
            "--tpm2",
            "--tpmstate",
            f"dir={self.directory}",
            "--server",
            f"type=unixio,path={self._socket_path},mode=0600",
            # For others' software (libtss2-tcti-swtpm), which sets the locality over it; we do not need it.
            "--ctrl",
            f"type=unixio,path={self._socket_path}.ctrl,mode=0600",
            "--flags",
            "not-need-init,startup-clear",
            "--log",
            f"file={self.directory / 'swtpm.log'}",
        ]
        if shutil.which("swtpm") is None:
            raise DeviceError("swtpm is not installed")
        # A session of its own: Ctrl-C in a terminal is ours to handle, the TPM stays until we stop it.
        self._process = subprocess.Popen(
            ["sh", "-c", _GUARD, "swtpm-guard", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._wait_until_listening()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_until_listening(self) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < give_up_at:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
                probe.connect(str(self._socket_path))
                return
            time.sleep(0.002)
        raise DeviceError(f"swtpm does not listen; see {self.directory / 'swtpm.log'}")

    def stop(self) -> None:
        """End the process at once, as a power cut would; the state stays in the directory."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop, and remove the socket's directory if it has one of its own."""
        self.stop()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def client(self) -> TPM:
        """Return a client; swtpm serves one at a time, so close it before the next."""
        return TPM.open(self.uri, timeout_seconds=COMMAND_TIMEOUT_SECONDS)

    def node(
        self, *, ak: AKType | bytes = AKType.ECC_P256, ek_templates: tuple[str, ...] = EK_PREFERENCE
    ) -> NodeTPM:
        """Return this TPM as the agent sees it."""
        return NodeTPM.open(
            self.uri, ak=ak, ek_templates=ek_templates, timeout_seconds=COMMAND_TIMEOUT_SECONDS
        )

    # Power

    def reboot(self) -> None:
        """Shut down in order and start again: resetCount grows by one, PCRs are reset."""
        with self.client() as tpm:
            tpm.shutdown()
        self.stop()
        self.start()

    def power_cut(self) -> None:
        """Take the power without TPM2_Shutdown, then start again; clients lose their connection."""
        self.stop()
        self.start()

    def extend_pcr(self, index: int, digest: bytes, *, bank: str = "sha256") -> None:
        """Extend one PCR with *digest*, which has the bank's length."""
        with self.client() as tpm:
            tpm.execute(commands.pcr_extend(index, {int(bank_alg(bank)): digest}), Password())

    def measure(self, index: int, data: bytes) -> None:
        """Extend a PCR of the SHA-256 bank with the digest of *data*."""
        self.extend_pcr(index, hashlib.sha256(data).digest())

    # Manufacture

    def ek_public(self, template: str = "L-2") -> Public:
        """Derive the EK of *template* and return its public area."""
        with self.client() as tpm:
            return derive_ek(tpm, template)

    def manufacture(
        self,
        authority: CertificateAuthority,
        *,
        template: str = "L-2",
        at: datetime | None = None,
        options: EKCertificateOptions | None = None,
    ) -> bytes:
        """Derive the EK, certify it, write the certificate to NV, and return the DER.

        Args:
            authority: Who signs.
            template: TCG name, L-1 to H-7.
            at: Beginning of validity; a day ago by default.
            options: What the certificate says otherwise.
        """
        with self.client() as tpm:
            ek = derive_ek(tpm, template)
            certificate = authority.issue_ek_certificate(ek, at=at or datetime.now(UTC), options=options)
            write_nv(tpm, ek_template(template).nv_index, certificate)
        return certificate

    def install_certificate(self, certificate: bytes, *, template: str = "L-2") -> None:
        """Write any bytes where the certificate of *template* belongs: a copied certificate, padding, rubbish."""
        with self.client() as tpm:
            write_nv(tpm, ek_template(template).nv_index, certificate)

    def install_chain(self, chain: bytes, *, index: int = 0x01C00100) -> None:
        """Write a piece of the EK certificate chain (concatenated DER) to *index*."""
        with self.client() as tpm:
            write_nv(tpm, index, chain)


def ek_template(name: str) -> EKTemplate:
    """Return the TCG template of that name.

    Raises:
        KeyError: There is none.
    """
    return {template.name: template for template in EK_TEMPLATES}[name]


def derive_ek(tpm: TPM, template: str) -> Public:
    """Derive the EK of *template* in *tpm*, as its manufacturer would."""
    chosen = ek_template(template)
    with tpm.scope():
        made = tpm.execute(
            commands.create_primary(Hierarchy.ENDORSEMENT, chosen.tpmt(zeros=chosen.low_range)), Password()
        )
        return parse_public(made.public)


IAK_AUTH_POLICY: Final = bytes.fromhex("5437182326e414fca797d5f174615a1641f61255797c3a2b22c21d120b2d1e07")
"""Of an IAK with SHA-256 (TCG TPM 2.0 Keys for Device Identity and Attestation, 7.3.4)."""


def iak_template() -> Public:
    """Return the public area of an IAK, P-256 with SHA-256, before a TPM makes it."""
    bare = Public(
        type=Alg.ECC,
        name_alg=Alg.SHA256,
        attributes=0x000500F2,
        auth_policy=IAK_AUTH_POLICY,
        symmetric=None,
        scheme=Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA256),
        curve=Curve.NIST_P256,
        x=b"IAK",
        y=b"IAK",
        tpmt=b"",
    )
    return replace(bare, tpmt=bare.serialise())


def certify_ak_of(
    tpm: TPM,
    authority: CertificateAuthority,
    template: Public,
    *,
    certificate_index: int,
    at: datetime,
    handle: int | None = None,
    template_index: int | None = None,
) -> Public:
    """Make an attestation key in *tpm* as a maker or provider would, certify it, and leave both where they are found.

    Args:
        tpm: Where.
        authority: Who certifies.
        template: For TPM2_CreatePrimary under the endorsement hierarchy.
        certificate_index: NV index of the certificate.
        at: The certificate is valid at this instant.
        handle: Where the key is made persistent; or None.
        template_index: NV index for the template, where the key is to be derived again; or None.
    """
    with tpm.scope():
        made = tpm.execute(commands.create_primary(Hierarchy.ENDORSEMENT, template.tpmt), Password())
        public = parse_public(made.public)
        if handle is not None:
            tpm.execute(commands.evict_control(Hierarchy.OWNER, made.entity, handle), Password())
    certificate = make_ak_certificate(public.spki_der(), authority, at=at)
    write_nv(tpm, certificate_index, certificate + bytes(64))
    if template_index is not None:
        write_nv(tpm, template_index, template.tpmt)
    return public


def write_nv(tpm: TPM, index: int, data: bytes, *, attributes: int = _CERTIFICATE_ATTRIBUTES) -> None:
    """Make *index* hold *data*, as platform firmware would; replaces what was there."""
    platform = commands.permanent(Hierarchy.PLATFORM)
    if index in tpm.handles(index)[:1]:
        existing = tpm.execute(commands.nv_read_public(index)).entity
        tpm.execute(commands.nv_undefine_space(Hierarchy.PLATFORM, existing), Password())
    public = NVPublic(
        index=index, name_alg=Alg.SHA256, attributes=attributes, auth_policy=b"", size_bytes=len(data)
    )
    tpm.execute(commands.nv_define_space(Hierarchy.PLATFORM, public), Password())
    for offset in range(0, len(data), _NV_CHUNK_BYTES):
        entity = tpm.execute(commands.nv_read_public(index)).entity
        chunk = data[offset : offset + _NV_CHUNK_BYTES]
        tpm.execute(commands.nv_write(platform, entity, chunk, offset), Password())


@contextlib.contextmanager
def fleet(
    count: int,
    directory: Path,
    *,
    authority: CertificateAuthority | None = None,
    template: str = "L-2",
    threads: int = 4,
) -> Iterator[list[SoftwareTPM]]:
    """Start *count* TPMs in parallel, manufactured by *authority* if there is one; stop them all at the end.

    Args:
        count: How many; about 7 MB of memory each.
        directory: Their states stand in `0000`, `0001`, … below it.
        authority: Who certifies the EKs; None leaves the TPMs blank.
        template: EK template to certify.
        threads: How many are started at the same time.
    """
    tpms = [SoftwareTPM(directory / f"{i:04}") for i in range(count)]

    def make(tpm: SoftwareTPM) -> None:
        tpm.start()
        if authority is not None:
            tpm.manufacture(authority, template=template)

    try:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            list(pool.map(make, tpms))
        yield tpms
    finally:
        with ThreadPoolExecutor(max_workers=threads) as pool:
            list(pool.map(SoftwareTPM.close, tpms))
