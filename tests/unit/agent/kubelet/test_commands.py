"""The commands themselves: when they ask again, what they tell, and what they refuse before anything is asked."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.errors import MachineNotAdmitted
from attestation_agent.exits import Exit, NoNodeCertificate, UsageError, exit_of
from attestation_agent.kubelet import proxy
from attestation_agent.kubelet.commands import LOOK_SECONDS, Node, answer_until
from attestation_agent.kubelet.flow import Held, ensure
from attestation_agent.kubelet.kept import BUNDLE, Kept, is_memory
from attestation_agent.kubelet.settings import KUBELET_OPTIONS, Chosen, Listen, load, parse_listen
from attestation_agent.settings import OPTIONS
from attestation_agent.settings import load as load_run
from tests.unit.agent.kubelet.cluster import DAY, HOUR, START, Cluster
from tests.unit.agent.world import Events


def settings(command: str = "bootstrap", environ: dict[str, str] | None = None, **flags: Any) -> Chosen:
    """Return the settings of a command."""
    defaults = {"server_url": "https://attest.example", "node_name": "w-1"}
    return load(command, {**defaults, **flags}, environ or {})


# Settings


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"server_url": None}, "address of the service"),
        ({"node_name": "W_1"}, "--node-name"),
        ({"node_name": "-"}, "--node-name"),
        ({"signer_name": "nothing"}, "--signer-name"),
        ({"certificate_seconds": "599"}, "--certificate-seconds"),
        ({"certificate_seconds": "day"}, "--certificate-seconds"),
        ({"wait_seconds": "3601"}, "--wait-seconds"),
        ({"attestation": "maybe"}, "--attestation"),
        ({"tpm_device": "tpmrm0"}, "--tpm-device"),
        ({"ak_template_index": "0x81000000"}, "--ak-template-index"),
        ({"ak_certificate_index": "x"}, "--ak-certificate-index"),
        ({"store": "nv:0x01c00002"}, "--store"),
        ({"store": "nv:"}, "--store"),
        ({"store": "tpm"}, "--store"),
        ({"kubelet_dir": "here"}, "--kubelet-dir"),
    ],
)
def test_what_cannot_work_is_refused(flags: dict[str, Any], said: str) -> None:
    """Before anything is opened, with the name of the flag."""
    with pytest.raises(UsageError, match=said):
        settings(**flags)


def test_the_seed_s_settings() -> None:
    """They mean what they say."""
    chosen = settings(
        tpm_device="/dev/tpmrm1", ak_template_index="0x01C10003", store="nv:0x01800010", attestation="tpm"
    )
    assert chosen.shared["tpm"] == "device:/dev/tpmrm1"
    assert (chosen.kubelet.ak_template_index, chosen.kubelet.store) == (0x01C10003, 0x01800010)
    assert settings(attestation="none", server_url=None).kubelet.attestation == "none"
    with pytest.raises(UsageError, match="kubelet bootstrap"):
        settings("proxy", attestation="none")


def test_the_host_s_name_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """In small letters, as kubelet does."""
    monkeypatch.setattr(socket, "gethostname", lambda: "Worker-7")
    assert settings(node_name=None).node_name == "worker-7"
    monkeypatch.setattr(socket, "gethostname", lambda: "a_b")
    with pytest.raises(UsageError, match="--node-name"):
        settings(node_name=None)


def test_variables_of_one_command_are_known_to_the_others() -> None:
    """One file of settings for all; a typo still stops the start of the command that it is for."""
    everything = {"ITL_KUBELET_LISTEN": "127.0.0.1:1", "ITL_CONFIG_PATH": "/x", "ITL_KUBELET_STORE": "files"}
    assert settings("credential", everything).kubelet.store is None
    load_run({"server_url": "https://attest.example"}, {"ITL_KUBELET_LISTEN": "x"})
    with pytest.raises(UsageError, match="ITL_KUBELET_LISTEN"):
        settings("credential", {"ITL_KUBELET_LISTN": "x"})
    variables = [o.variable for o in (*OPTIONS, *KUBELET_OPTIONS)]
    assert len(set(variables)) == len(variables)


@pytest.mark.parametrize(
    "text", ["0.0.0.0:6440", "127.0.0.1", "127.0.0.1:0", "localhost:1", ":1", "127.0.0.1:1/x"]
)
def test_the_proxy_listens_on_loopback_alone(text: str) -> None:
    """Anywhere else, this node's identity could be asked for over the network."""
    with pytest.raises(ValueError):
        parse_listen(text)


def test_where_it_listens() -> None:
    """Both families."""
    assert parse_listen("127.0.0.1:6440").text == "127.0.0.1:6440"
    assert parse_listen("[::1]:6440").text == "[::1]:6440"


# What is kept


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    """Keys do not go where others read, nor through a link."""
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "file").write_text("")
    for name in ("open", "link", "file", "file/below"):
        with pytest.raises(UsageError):
            Kept(tmp_path / name)
    Kept(tmp_path / "new" / "below")
    assert (tmp_path / "new" / "below").stat().st_mode & 0o777 == 0o700


def test_what_is_memory() -> None:
    """Of this computer: /dev/shm is, /proc is not."""
    assert is_memory(Path("/dev/shm/x"))
    assert not is_memory(Path("/proc"))


# The exec plugin


@pytest.mark.parametrize(
    ("at", "until"),
    [
        (START, START + HOUR),
        (START + 15.5 * HOUR, START + 16 * HOUR),
        (START + 17 * HOUR, START + 17 * HOUR + timedelta(minutes=5)),
        (START + DAY - timedelta(minutes=2), START + DAY),
    ],
)
def test_when_a_client_comes_again(tmp_path: Path, at: Any, until: Any) -> None:
    """In an hour, at the renewal, soon after one that failed, never after the end."""
    cluster = Cluster(directory=tmp_path / "node")
    held = ensure(cluster.surroundings(), cluster.wanted(), patience_seconds=60)
    assert answer_until(held.current, at) == until


def test_without_the_variable_nobody_is_answered(tmp_path: Path) -> None:
    """Somebody typed the command."""
    with pytest.raises(UsageError, match="KUBERNETES_EXEC_INFO"):
        node(tmp_path).credential(None)


# Staying


def node(tmp_path: Path, wait: Callable[[float], bool] = lambda _: True, **flags: Any) -> Node:
    chosen = settings(kubelet_dir=str(tmp_path / "node"), **flags)
    return Node(chosen, log=Events(), wait=wait, uniform=lambda low, high: high)


def certificates(tmp_path: Path, count: int) -> list[Held]:
    """Return certificates of one node, one after the other."""
    cluster = Cluster(directory=tmp_path / "others")
    found = []
    for _ in range(count):
        found.append(ensure(cluster.surroundings(), cluster.wanted(), patience_seconds=60))
        cluster.clock.at += 20 * HOUR
    return found


def test_the_manager_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """READY with the first certificate, not before; a renewal restarts the proxy, the first certificate does not."""
    place = tmp_path / "notify"
    first, second = certificates(tmp_path, 2)
    steps: list[Any] = [NoNodeCertificate("not yet"), first, first, second, second]
    waited: list[float] = []
    changed: list[int] = []

    def once() -> Held:
        step = steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step  # type: ignore[no-any-return]  # a Held

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return not steps

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(place))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(place))

        def restarted() -> bool:
            changed.append(len(steps))
            return True

        code = node(tmp_path, wait)._living(once, stay=True, changed=restarted)
        assert [manager.recv(100), manager.recv(100)] == [b"READY=1", b"STOPPING=1"]
    assert code == Exit.OK
    assert changed == [1]
    assert waited == [5.0, LOOK_SECONDS, LOOK_SECONDS, LOOK_SECONDS, LOOK_SECONDS]


def test_a_restart_that_failed_is_tried_again(tmp_path: Path) -> None:
    """Until it did not: the proxy would go on with a certificate that ends before the next renewal."""
    first, second = certificates(tmp_path, 2)
    steps, outcomes = [first, second, second, second, second], [False, False, True]
    node(tmp_path, lambda _: not steps)._living(
        lambda: steps.pop(0), stay=True, changed=lambda: outcomes.pop(0)
    )
    assert outcomes == []


def test_what_the_restart_command_says_counts(tmp_path: Path) -> None:
    """Its exit code; without one there is nothing to restart."""
    for words, ok in (("true", True), ("false", False), (None, True)):
        flags: dict[str, Any] = {"restart_command": words} if words else {}
        chosen = settings("proxy", kubelet_dir=str(tmp_path / "node"), **flags)
        assert Node(chosen, log=Events(), wait=lambda _: True)._restart() is ok


def test_failures_are_answered_with_longer_pauses(tmp_path: Path) -> None:
    """Also while an old certificate is still good; a setting that cannot work ends it."""
    (held,) = certificates(tmp_path, 1)
    stale = Held(current=held.current, failure=MachineNotAdmitted("locked"))
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) == 4

    node(tmp_path, wait)._living(lambda: stale, stay=True)
    assert waited == [5.0, 10.0, 20.0, 40.0]

    def usage() -> Held:
        raise UsageError("wrong")

    with pytest.raises(UsageError):
        node(tmp_path, wait)._living(usage, stay=True)

    def fails() -> Held:
        raise NoNodeCertificate("denied")

    with pytest.raises(NoNodeCertificate) as e:
        node(tmp_path, wait)._living(fails, stay=False)
    assert exit_of(e.value) is Exit.NO_CERTIFICATE


# The proxy's files


def test_what_the_proxy_and_kubelet_know_each_other_by() -> None:
    """One certificate for this address, of a kind that no TPM takes; another address or its last year: a new one."""
    listen, other = Listen(address="127.0.0.1", port=1), Listen(address="::1", port=1)
    pem = proxy.make_local(listen, START)
    assert proxy.is_local_good(pem, listen, START)
    assert not proxy.is_local_good(pem, other, START)
    assert not proxy.is_local_good(pem, listen, START + proxy.LOCAL_LIFETIME - 364 * DAY)
    assert not proxy.is_local_good(pem, listen, START - 2 * DAY)
    assert not proxy.is_local_good(b"", listen, START)
    key, at = pem.index(b"-----BEGIN CERT"), proxy.make_local(listen, START)
    assert not proxy.is_local_good(at[: at.index(b"-----BEGIN CERT")] + pem[key:], listen, START)


def test_a_bundle_holds_key_and_certificate(tmp_path: Path) -> None:
    """As kubelet and nginx open them, both from one name."""
    cluster = Cluster(directory=tmp_path / "node")
    ensure(cluster.surroundings(), cluster.wanted(), patience_seconds=60)
    data = (cluster.directory / BUNDLE).read_bytes()
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(data, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert x509.load_pem_x509_certificate(data).public_key() == key.public_key()
