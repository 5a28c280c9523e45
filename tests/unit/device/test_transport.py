"""Transports against peers that behave badly: slow, short, long, silent, gone."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attestation.device import open_transport
from attestation.device.transport import DeviceTransport, SocketTransport, Transport
from attestation.errors import DeviceError

COMMAND = bytes.fromhex("80010000000c0000017b0008")
RESPONSE = bytes.fromhex("800100000014000000000008") + b"12345678"

Peer = Callable[[socket.socket], None]


@pytest.fixture
def connect() -> Iterator[Callable[[Peer], Transport]]:
    """Connect a transport to a peer function that runs in a thread."""
    transports: list[Transport] = []
    threads: list[threading.Thread] = []

    def make(peer: Peer) -> Transport:
        ours, theirs = socket.socketpair()

        def run() -> None:
            with theirs:
                peer(theirs)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        transports.append(SocketTransport(ours, "test"))
        return transports[-1]

    yield make
    for transport in transports:
        transport.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_response_in_pieces_is_put_together(connect: Callable[[Peer], Transport]) -> None:
    """Reads may be as short as one byte; the size in the header says when it is all there."""

    def peer(theirs: socket.socket) -> None:
        assert theirs.recv(4096) == COMMAND
        for byte in RESPONSE:
            theirs.sendall(bytes([byte]))
            time.sleep(0.001)

    assert connect(peer).transmit(COMMAND, 5) == RESPONSE


def test_silence_ends_in_time_and_a_late_answer_is_never_used(connect: Callable[[Peer], Transport]) -> None:
    """After a timeout the transport is broken: the late response must not answer the next command."""
    timed_out = threading.Event()
    sent_late = threading.Event()

    def peer(theirs: socket.socket) -> None:
        theirs.recv(4096)
        timed_out.wait(60)
        theirs.sendall(RESPONSE)
        sent_late.set()

    transport = connect(peer)
    with pytest.raises(DeviceError, match="no answer in time"):
        transport.transmit(COMMAND, 0.1)
    assert not sent_late.is_set()
    timed_out.set()
    assert sent_late.wait(60)
    with pytest.raises(DeviceError, match="failed before"):
        transport.transmit(COMMAND, 1)


def test_trickling_bytes_do_not_extend_the_time(connect: Callable[[Peer], Transport]) -> None:
    """The timeout is for the whole response, not for each byte."""

    def peer(theirs: socket.socket) -> None:
        theirs.recv(4096)
        for byte in RESPONSE:
            time.sleep(0.2)
            try:
                theirs.sendall(bytes([byte]))
            except OSError:
                return

    with pytest.raises(DeviceError, match="no answer in time"):
        connect(peer).transmit(COMMAND, 0.3)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "closed after 0"),
        (RESPONSE[:5], "closed after 5"),
        (RESPONSE[:15], "closed after 15"),
        (RESPONSE + b"\0", "21 bytes says 20"),
        (b"\x80\x01" + (4097).to_bytes(4) + bytes(5000), "says 4097"),
        (b"\x80\x01" + (9).to_bytes(4) + bytes(4), "says 9"),
        (b"\x80\x01\xff\xff\xff\xff" + bytes(4), "says 4294967295"),
    ],
)
def test_what_is_no_whole_response_is_refused(
    connect: Callable[[Peer], Transport], sent: bytes, why: str
) -> None:
    """Cut short, longer than stated, beyond 4096 bytes: DeviceError, and no memory taken on the peer's word."""

    def peer(theirs: socket.socket) -> None:
        theirs.recv(4096)
        theirs.sendall(sent)

    with pytest.raises(DeviceError, match=why):
        connect(peer).transmit(COMMAND, 5)


def test_peer_that_is_gone_is_a_device_error(connect: Callable[[Peer], Transport]) -> None:
    """Errors of the operating system come out as ours."""
    transport = connect(lambda theirs: None)
    time.sleep(0.05)
    with pytest.raises(DeviceError):
        transport.transmit(COMMAND, 1)


def test_command_beyond_4096_bytes_is_not_sent(connect: Callable[[Peer], Transport]) -> None:
    """No TPM takes it."""
    with pytest.raises(DeviceError, match="4097 bytes"):
        connect(lambda theirs: None).transmit(bytes(4097), 1)


def test_closed_transport_says_so(connect: Callable[[Peer], Transport]) -> None:
    """Closing twice is fine; using it afterwards is an error of ours."""
    transport = connect(lambda theirs: None)
    transport.close()
    transport.close()
    with pytest.raises(DeviceError, match="closed"):
        transport.transmit(COMMAND, 1)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/dev/tpmrm0",
        "device:",
        "unix:",
        "tcp:",
        "tcp:host",
        "tcp:host:0",
        "tcp:host:x",
        "tcp::1",
        "usb:1",
        "usb:127.0.0.1:1",
    ],
)
def test_unknown_uris_are_refused(uri: str) -> None:
    """A URI has one of three forms."""
    with pytest.raises(DeviceError, match="expected device:PATH"):
        open_transport(uri)


def test_absent_peers_are_device_errors(tmp_path: Path) -> None:
    """No device, no socket, nobody listening."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    for uri in (f"device:{tmp_path}/none", f"unix:{tmp_path}/none", f"tcp:127.0.0.1:{port}"):
        with pytest.raises(DeviceError):
            open_transport(uri)


def test_tcp_and_unix_carry_commands(tmp_path: Path) -> None:
    """Both kinds of sockets work through their URIs, and both are ours alone."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as unix, socket.create_server(("127.0.0.1", 0)) as tcp:
        unix.bind(str(path))
        unix.listen()
        for server, uri in ((unix, f"unix:{path}"), (tcp, f"tcp:127.0.0.1:{tcp.getsockname()[1]}")):

            def serve(server: socket.socket = server) -> None:
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(RESPONSE)

            thread = threading.Thread(target=serve)
            thread.start()
            transport = open_transport(uri)
            assert transport.exclusive
            assert transport.transmit(COMMAND, 5) == RESPONSE
            transport.close()
            thread.join(60)


def test_a_full_waiting_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A software TPM lets one client wait; who comes then tries again until there is a place, or gives up."""
    monkeypatch.setattr("attestation.device.transport.CONNECT_TIMEOUT_SECONDS", 0.3)
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(0)
        waiting = open_transport(f"unix:{path}")
        with pytest.raises(DeviceError, match="too many wait for it; a software TPM serves one program"):
            open_transport(f"unix:{path}")
        monkeypatch.setattr("attestation.device.transport.CONNECT_TIMEOUT_SECONDS", 60.0)
        accept = threading.Timer(0.05, lambda: server.accept()[0].close())
        accept.start()
        open_transport(f"unix:{path}").close()
        accept.join()
        waiting.close()


def test_device_file_is_written_and_read_whole(tmp_path: Path) -> None:
    """One write, then reads up to the stated size; a FIFO opened for both gives back what was written."""
    path = tmp_path / "tpm"
    os.mkfifo(path)
    transport = open_transport(f"device:{path}")
    assert isinstance(transport, DeviceTransport)
    assert not transport.exclusive
    assert transport.transmit(COMMAND, 5) == COMMAND
    transport.close()
    transport.close()
    with pytest.raises(DeviceError, match="closed"):
        transport.transmit(COMMAND, 1)


def test_device_that_takes_half_a_command_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes a command whole or not at all."""
    path = tmp_path / "tpm"
    os.mkfifo(path)
    transport = open_transport(f"device:{path}")
    monkeypatch.setattr("attestation.device.transport.os.write", lambda fd, data: len(data) - 1)
    with pytest.raises(DeviceError, match="not taken whole"):
        transport.transmit(COMMAND, 1)
    transport.close()


def test_a_software_tpm_that_another_program_holds_says_so(tmp_path: Path) -> None:
    """It takes the connection and answers nothing: what to do is told, which for a device is nothing."""
    path = tmp_path / "tpm.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)
        first = open_transport(f"unix:{path}")
        with pytest.raises(
            DeviceError, match="in time; a software TPM serves one program at a time: try again"
        ):
            first.transmit(COMMAND, 0.1)
        first.close()
