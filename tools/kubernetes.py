"""A real Kubernetes API for tests and the demo: etcd, kube-apiserver and kube-controller-manager, on loopback.

`tools/kubernetes.sh` builds the two of Kubernetes from Debian's source package. Everything ends with the process that
started it, however that ends: then the pipe to the shell that watches it closes.

This is Kubernetes 1.20.2: it lacks rules in CEL, `expirationSeconds`, `selectableFields` and
ValidatingAdmissionPolicy. It is for tests and demos, never for a cluster that somebody needs.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import ipaddress
import json
import os
import secrets
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

RECIPE: Final = Path(__file__).with_name("kubernetes.sh")
PROGRAMS: Final = ("kube-apiserver", "kube-controller-manager")
START_SECONDS: Final = 120
STOP_SECONDS: Final = 30

CONTROLLERS: Final = "namespace,garbagecollector,serviceaccount,csrsigning"
"""Those of the controller manager that run from the start: not the approver of node certificates."""

STOCK_APPROVER: Final = "csrapproving"
"""The controller that approves whoever may create `certificatesigningrequests/nodeclient`, and reads no evidence."""

CSRS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

_WATCHED: Final = """
"$@" </dev/null &
read -r told || told=
kill "-${told:-TERM}" $!
wait $!
"""


class KubernetesMissing(RuntimeError):
    """The programs have not been built here, or etcd is not installed; the text says what to do."""


class Refused(Exception):
    """The API refused a request.

    Attributes:
        code: The HTTP status.
        message: Why, in its words.
    """

    def __init__(self, code: int, body: bytes) -> None:
        self.code = code
        try:
            self.message = str(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            self.message = body.decode("utf-8", "replace")
        super().__init__(f"{code}: {self.message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody who logs in with a token."""

    name: str
    groups: tuple[str, ...]


USERS: Final[Mapping[str, User]] = {
    "admin": User(name="admin", groups=("system:masters",)),
    "operator": User(name="operator", groups=("operators",)),
    "bootstrap": User(name="system:bootstrap:abcdef", groups=("system:bootstrappers",)),
}
"""Who can log in to every cluster, by the name that tests have for them. Of these only the first may do anything."""


def cache() -> Path:
    """Return the folder where what was built is kept, whether it is there or not."""
    said = subprocess.run([RECIPE, "where"], check=True, capture_output=True, text=True, timeout=60)
    return Path(said.stdout.strip())


def programs() -> dict[str, Path]:
    """Return where each program is.

    Raises:
        KubernetesMissing: One is not there.
    """
    folder = cache()
    found = {name: folder / name for name in PROGRAMS}
    etcd = shutil.which("etcd")
    missing = [name for name, path in found.items() if not os.access(path, os.X_OK)]
    if missing or etcd is None:
        raise KubernetesMissing(
            f"{' and '.join(missing) or 'etcd'} is not there: `./dev test --all` builds Kubernetes from Debian's "
            "source package, in about ten minutes and once, and brings etcd"
        )
    return {**found, "etcd": Path(etcd)}


class _Process:
    """A server, the shell that watches it, and what it printed."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self.log = log
        with log.open("ab") as out:
            self._shell = subprocess.Popen(
                ["sh", "-c", _WATCHED, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,  # what ends the caller by ^C ends it by the pipe
            )

    @property
    def running(self) -> bool:
        return self._shell.poll() is None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def stop(self, signal: str = "TERM") -> None:
        if not self.running:
            return
        try:
            self._shell.communicate(f"{signal}\n".encode(), timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # The shell waits: what it started is in its session, which is ours alone.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._shell.pid, 9)
            self._shell.wait(STOP_SECONDS)


class Cluster:
    """The servers of a cluster without nodes.

    Args:
        folder: What it keeps while it runs: data, keys, logs, kubeconfigs. Its keys are there from the first moment.
        free_port: Finds ports.
        users: Who can log in beside `USERS`, by the name that the caller has for them.
        options: Of the API server, beside ours.
    """

    def __init__(
        self,
        folder: Path,
        free_port: Callable[[], int],
        *,
        users: Mapping[str, User] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.folder, self._free_port, self._options = folder, free_port, tuple(options)
        self.users: Final = {**USERS, **(users or {})}
        self.tokens: Final = {name: secrets.token_urlsafe(24) for name in self.users}
        self.ca_file = folder / "ca.crt"
        self.port: Final = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.issuer: Final = self.url
        """Of the tokens of ServiceAccounts."""
        self._running: list[_Process] = []
        self._write_keys()

    # ------------------------------------------------------------ its life

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def accept_clients_of(self, authority: bytes) -> None:
        """Let this CA, PEM, sign certificates of clients too, as that of the cluster does; before the start."""
        with (self.folder / "client-ca.crt").open("ab") as bundle:
            bundle.write(authority)

    def start(self) -> None:
        """Start all three; return once the API answers.

        Raises:
            KubernetesMissing: It has not been built here.
            RuntimeError: One does not start; with the end of its log.
        """
        self._programs = programs()
        self._etcd = self._start_etcd()
        self._start_api(self._etcd)
        self._start_controllers(CONTROLLERS)

    def stop(self) -> None:
        """End all of them, the last first."""
        while self._running:
            self._running.pop().stop()

    @property
    def running(self) -> bool:
        """True while all of them do."""
        return bool(self._running) and all(each.running for each in self._running)

    def logs(self) -> str:
        """Return the end of what each has printed."""
        return "\n".join(f"--- {each.log.name}\n{each.tail()}" for each in self._running)

    @contextlib.contextmanager
    def without_api(self) -> Iterator[None]:
        """End the API server as a crash does, and start it again when the block ends; etcd has what it kept."""
        place = self._running.index(self._api)
        self._running.pop(place).stop("KILL")
        try:
            yield
        finally:
            self._start_api(self._etcd)
            # It ends after those that watch it: it would wait for them.
            self._running.insert(place, self._running.pop())

    @contextlib.contextmanager
    def controllers(self, names: str) -> Iterator[None]:
        """Run a second controller manager, with these controllers, until the block ends."""
        process = self._start_controllers(names)
        try:
            yield
        finally:
            self._running.remove(process)
            process.stop()

    # ------------------------------------------------------------ how it is reached

    def kubeconfig(self, user: str) -> Path:
        """Return a kubeconfig of *user*: a key of `users`."""
        return self.kubeconfig_of(user, {"token": self.tokens[user]})

    def kubeconfig_of(self, name: str, credentials: Mapping[str, Any]) -> Path:
        """Write a kubeconfig with *credentials*, as the field `user` has them, and return where."""
        path = self.folder / f"{name}.kubeconfig"
        authority = base64.b64encode(self.ca_file.read_bytes()).decode("ascii")
        _write(
            path,
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [
                        {
                            "name": "local",
                            "cluster": {"server": self.url, "certificate-authority-data": authority},
                        }
                    ],
                    "users": [{"name": name, "user": dict(credentials)}],
                    "contexts": [{"name": name, "context": {"cluster": "local", "user": name}}],
                    "current-context": name,
                },
                indent=1,
            ).encode(),
        )
        return path

    def service_account_token(
        self,
        namespace: str,
        name: str,
        audience: str,
        *,
        pod: Mapping[str, str] | None = None,
        seconds: int = 3600,
    ) -> str:
        """Return a token of a ServiceAccount for *audience*, bound to *pod* ({name, uid}) where there is one."""
        bound = {"kind": "Pod", "apiVersion": "v1", **pod} if pod else None
        answer = self.ask(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"audiences": [audience], "expirationSeconds": seconds, "boundObjectRef": bound},
            },
        )
        return str(answer["status"]["token"])

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        user: str = "admin",
        certificate: tuple[Path, Path] | None = None,
        method: str = "",
        media_type: str = "application/json",
    ) -> Any:
        """Send a request: a POST where there is a body; return the answer.

        Args:
            path: Of the URL.
            body: To be JSON.
            user: As whom: a key of `users`.
            certificate: Instead, with which certificate, and the file of its key.
            method: Another one.
            media_type: Of the body: which kind of patch it is.

        Raises:
            Refused: The API refuses it.
        """
        trust, headers = self._trust(), {"Content-Type": media_type}
        if certificate is None:
            headers["Authorization"] = f"Bearer {self.tokens[user]}"
        else:
            trust.load_cert_chain(*certificate)
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            headers,
            method=method or ("GET" if body is None else "POST"),
        )
        try:
            with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            with e:
                raise Refused(e.code, e.read()) from None

    def through(self, url: str, ca_file: Path) -> Cluster:
        """Return this cluster as it is reached at *url*, by a certificate or authority in *ca_file*."""
        there = copy.copy(self)
        there.url, there.ca_file = url, ca_file
        return there

    def who_is(self, certificate: tuple[Path, Path]) -> User:
        """Return whom the API takes the holder of a certificate and its key for: what it would stamp.

        Raises:
            Refused: The API believes no such certificate.
        """
        would_be = self.ask(
            f"{CSRS}?dryRun=All",
            {
                "apiVersion": "certificates.k8s.io/v1",
                "kind": "CertificateSigningRequest",
                "metadata": {"name": "who"},
                "spec": {
                    "request": base64.b64encode(_request()).decode("ascii"),
                    "signerName": "example.com/nobody",
                    "usages": ["client auth"],
                },
            },
            certificate=certificate,
        )["spec"]
        return User(name=would_be["username"], groups=tuple(would_be["groups"]))

    def wait_for(
        self, path: str, name: str, is_done: Callable[[Any], bool], *, seconds: int = 60, user: str = "admin"
    ) -> Any:
        """Watch the object *name* of the collection *path* and return it as soon as *is_done* says so.

        Raises:
            TimeoutError: It never did; with the object as it was last.
        """
        query = f"watch=1&fieldSelector=metadata.name%3D{name}&timeoutSeconds={seconds}"
        request = urllib.request.Request(
            f"{self.url}{path}?{query}", headers={"Authorization": f"Bearer {self.tokens[user]}"}
        )
        last = None
        with urllib.request.urlopen(request, timeout=seconds + 30, context=self._trust()) as events:
            for line in events:
                last = json.loads(line)["object"]
                if is_done(last):
                    return last
        raise TimeoutError(f"{name} is not as it should be after {seconds} s: {json.dumps(last)}")

    @staticmethod
    def eventually(is_so: Callable[[], bool], *, seconds: int = 60) -> None:
        """Return as soon as *is_so* says so: for what can be asked but not watched.

        Raises:
            TimeoutError: It never did.
        """
        give_up_at = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"not so after {seconds} s")
            time.sleep(0.05)

    def jwks(self) -> dict[str, Any]:
        """Return the keys that sign tokens of ServiceAccounts, as the API publishes them."""
        return dict(self.ask("/openid/v1/jwks"))

    # ------------------------------------------------------------ parts

    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca_file)

    def _write_keys(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate, key = _authority("kubernetes")
        _write(self.ca_file, certificate.public_bytes(Encoding.PEM))
        _write(self.folder / "ca.key", _pem(key))
        _write(self.folder / "client-ca.crt", certificate.public_bytes(Encoding.PEM))
        server_key = ec.generate_private_key(ec.SECP256R1())
        _write(self.folder / "server.key", _pem(server_key))
        _write(self.folder / "server.crt", _server_certificate(server_key, key))
        tokens = rsa.generate_private_key(65537, 2048)
        _write(self.folder / "sa.key", _pem(tokens))
        _write(
            self.folder / "sa.pub",
            tokens.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        )
        rows = (
            f'{self.tokens[key]},{user.name},{key},"{",".join(user.groups)}"\n'
            for key, user in self.users.items()
        )
        _write(self.folder / "tokens.csv", "".join(rows).encode())

    def _start_etcd(self) -> str:
        mine, peers = (f"http://127.0.0.1:{self._free_port()}" for _ in range(2))
        process = self._run(
            "etcd",
            *("--data-dir", self.folder / "etcd", "--unsafe-no-fsync", "--logger=zap"),
            *(f"--listen-client-urls={mine}", f"--advertise-client-urls={mine}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            *("--initial-cluster", f"default={peers}"),
        )
        self._wait(f"{mine}/health", process)
        return mine

    def _start_api(self, etcd: str) -> None:
        at = self.folder
        self._api = self._run(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            *("--bind-address=127.0.0.1", f"--secure-port={self.port}", "--insecure-port=0"),
            *(f"--tls-cert-file={at / 'server.crt'}", f"--tls-private-key-file={at / 'server.key'}"),
            *(f"--client-ca-file={at / 'client-ca.crt'}", f"--token-auth-file={at / 'tokens.csv'}"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            *("--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.0.0.0/24"),
            *(f"--service-account-issuer={self.issuer}", f"--api-audiences={self.issuer}"),
            *(
                f"--service-account-signing-key-file={at / 'sa.key'}",
                f"--service-account-key-file={at / 'sa.pub'}",
            ),
            *("--endpoint-reconciler-type=none", "--profiling=false"),
            *self._options,
        )
        self._wait(f"{self.url}/readyz", self._api, token=self.tokens["admin"])

    def _start_controllers(self, names: str) -> _Process:
        at, port = self.folder, self._free_port()
        process = self._run(
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig('admin')}",
            f"--controllers={names}",
            *(
                f"--cluster-signing-cert-file={self.ca_file}",
                f"--cluster-signing-key-file={at / 'ca.key'}",
                f"--root-ca-file={self.ca_file}",
                "--cluster-signing-duration=24h",
            ),
            *("--leader-elect=false", "--port=0", "--bind-address=127.0.0.1", f"--secure-port={port}"),
            *("--cert-dir", at / f"controllers-{port}", "--profiling=false"),
            log=f"kube-controller-manager-{port}",
        )
        self._wait(f"https://127.0.0.1:{port}/healthz", process)
        return process

    def _run(self, program: str, *arguments: str | Path, log: str = "") -> _Process:
        process = _Process([self._programs[program], *arguments], self.folder / f"{log or program}.log")
        self._running.append(process)
        return process

    def _wait(self, url: str, process: _Process, token: str = "") -> None:
        """Return as soon as *url* says that *process* can work."""
        trust = self._trust()
        if not token:  # its certificate is its own, and it is asked nothing that matters
            trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
        give_up_at = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5, context=trust):
                return
            if not process.running or time.monotonic() > give_up_at:
                raise RuntimeError(f"{process.log.stem} did not start:\n{process.tail()}")
            time.sleep(0.05)


def _write(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    # The servers read no other form of a key for tokens.
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _request() -> bytes:
    made = x509.CertificateSigningRequestBuilder().subject_name(_name("who"))
    return made.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(Encoding.PEM)


def _builder(subject: str) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("kubernetes"))
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=7))
    )


def _authority(name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _server_certificate(key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey) -> bytes:
    service = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    names = [
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        *(x509.DNSName(name) for name in ("localhost", *service)),
    ]
    certificate = (
        _builder("kube-apiserver")
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
        .sign(issuer_key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)
