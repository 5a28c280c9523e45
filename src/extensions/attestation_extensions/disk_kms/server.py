"""The gRPC server of one worker: two methods, bytes in, bytes out, bounded before anything is looked up.

Imported in a worker only: gRPC begins threads, and no thread survives a fork.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
import structlog

from attestation.errors import MalformedEvidence, RateLimited, Unavailable
from attestation_extensions.disk_kms.judging import peer_address
from attestation_extensions.disk_kms.keeping import Keeping, Refused
from attestation_extensions.disk_kms.messages import MAX_BYTES, Request, encode_response, parse_request

SERVICE: Final = "sidero.kms.KMSService"
CALL_SECONDS: Final = 8.0
"""Talos waits ten."""
REFUSED_SECONDS: Final = 0.1
"""From request to refusal, many times what the work takes: what is left of its differences does not show."""
STOP_SECONDS: Final = 5.0
READ_SECONDS: Final = 3.0
"""From the head of a call to its message, which an honest node sends with it."""
AT_ONCE: Final = 64
"""Calls that are answered; those whose message has not come keep none of these places."""
OPEN: Final = 1024
"""Calls that are open, answered or not: a bound of memory."""
CONNECTIONS: Final = 256
OPTIONS: Final = (
    ("grpc.so_reuseport", 1),
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.absolute_max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 8),
    # A node connects, asks once and goes: who stays, or pings, wants something else.
    ("grpc.max_connection_idle_ms", 30_000),
    ("grpc.max_connection_age_ms", 60_000),
    ("grpc.max_connection_age_grace_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 60_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.server_handshake_timeout_ms", 5_000),
    # Of this worker: who connects to us and says nothing must leave files to what else it serves.
    ("grpc.max_allowed_incoming_connections", CONNECTIONS),
    ("grpc.default_compression_algorithm", 0),
)
"""Every worker listens at the same address, and the system deals connections out."""
NOWHERE: Final = "unix"
DENIED: Final = "no disk key is given"
"""All that is told of a refusal."""
NO_REQUEST: Final = "not a request of this protocol"
TOO_MANY: Final = "too many requests"

log = structlog.get_logger("attestation_extensions.disk_kms")
Answering = Callable[[Request, str], Awaitable[bytes]]


async def serve(keeping: Keeping, address: str, certificate: tuple[Path, Path] | None) -> grpc.aio.Server:
    """Listen at *address*.

    Args:
        keeping: What answers.
        address: `host:port`.
        certificate: PEM files of a chain and of its key, read again at each handshake, so that a renewed one is used;
            None serves without TLS.

    Raises:
        OSError: The address cannot be listened at, or the files cannot be read.
    """
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=OPEN)
    places = asyncio.Semaphore(AT_ONCE)
    methods = {
        "Seal": _method(keeping.seal, places),
        "Unseal": _method(keeping.unseal, places),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    try:
        port = (
            server.add_insecure_port(address)
            if certificate is None
            else server.add_secure_port(address, _credentials(*certificate))
        )
    except RuntimeError as e:
        raise _not_listening(address) from e
    if port == 0:
        raise _not_listening(address)
    await server.start()
    return server


def _not_listening(address: str) -> OSError:
    return OSError(errno.EADDRNOTAVAIL, f"cannot listen at {address}")


def _method(answer: Answering, places: asyncio.Semaphore) -> grpc.RpcMethodHandler:
    async def answering(sent: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        # Before a place is taken: else who opens calls and sends nothing keeps every node from its disk.
        data = await _message(sent)
        if data is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, NO_REQUEST)
        elif places.locked():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY)
        else:
            async with places:
                return await _answer(answer, data, context)
        raise AssertionError  # abort raises

    # A call of one message is on the wire a stream of one: as a stream, we say how long it may take. Without a
    # deserializer the bytes come as they are: they are read by us.
    return grpc.stream_unary_rpc_method_handler(answering)


async def _message(sent: AsyncIterator[bytes]) -> bytes | None:
    """Return the one message of a call; None where it does not come, or is not alone."""
    found: bytes | None = None
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for data in sent:
                if found is not None:
                    return None
                found = data
    except TimeoutError:
        return None
    return found


async def _answer(answer: Answering, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    """Answer one call. The statuses tell of the request, of our state, or nothing: a refusal has no reason."""
    # A client on a Unix socket has no address, and no machine has quoted from there.
    address = peer_address(context.peer()) or NOWHERE
    loop = asyncio.get_running_loop()
    began = loop.time()
    status, text = grpc.StatusCode.INTERNAL, "internal error"
    try:
        request = parse_request(data)
        async with asyncio.timeout(CALL_SECONDS):
            return encode_response(await answer(request, address))
    except (MalformedEvidence, ValueError):
        status, text = grpc.StatusCode.INVALID_ARGUMENT, NO_REQUEST
    except Refused:
        await asyncio.sleep(began + REFUSED_SECONDS - loop.time())
        status, text = grpc.StatusCode.PERMISSION_DENIED, DENIED
    except RateLimited:
        status, text = grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY
    except (Unavailable, TimeoutError) as e:
        log.warning("disk_kms.not_served", kind=type(e).__name__)
        status, text = grpc.StatusCode.UNAVAILABLE, "not now"
    except Exception as e:  # noqa: BLE001 -- the outermost border: gRPC would send the words of the error
        log.error("disk_kms.failed", kind=type(e).__name__)  # noqa: TRY400 -- may quote a row
    await context.abort(status, text)
    raise AssertionError  # abort raises


def _credentials(chain: Path, key: Path) -> grpc.ServerCredentials:
    def read() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(key.read_bytes(), chain.read_bytes())])

    def again() -> grpc.ServerCertificateConfiguration | None:
        try:
            return read()
        except OSError as e:
            log.warning("disk_kms.certificate_unreadable", reason=e.strerror)
            return None  # what was read before still serves

    return grpc.dynamic_ssl_server_credentials(read(), again)
