"""Issuing: reserved, signed once, written down, then given (HSM-AND-KUBERNETES §7.4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography import x509

from attestation.errors import (
    AttestationError,
    CertificateUnknown,
    HSMDiffers,
    RequestRefused,
    SignerUnavailable,
)
from attestation.pki.leaf import LeafAsked, judge_leaf
from attestation.wire import b64encode
from attestation_operator.errors import NotRecorded, ServiceAway
from attestation_operator.hsm.issuance import Issuance, Order
from tests.fixtures.hsm_log import Log
from tests.unit.operator.hsm.world import AT, authority, ca_pem, csr, known


class Thread:
    """Does at once what blocks, and counts it."""

    def __init__(self) -> None:
        self.turns = 0
        self.error: AttestationError | None = None

    async def __call__(self, work: Callable[[], Any]) -> Any:
        """Do it, or fail."""
        self.turns += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return work()


def order(uid: str = "u-1") -> Order:
    """Return an order for one certificate."""
    asked = LeafAsked(request=csr("a.example"), usages=("server auth",), is_ca=False, duration=None)
    content = judge_leaf(asked, authority().policy, ca=authority().ca, at=AT)
    return Order(
        uid=uid, kind="CertificateRequest", namespace="default", name="cr-1", requester="me", content=content
    )


def there() -> Log:
    """Return a log that knows the CA."""
    log = Log()
    log.issuers[known().issuer_id] = None  # type: ignore[assignment]  # only its being there counts
    return log


def test_a_certificate_is_reserved_signed_and_written_down_in_this_order() -> None:
    """It carries the serial number that was durable before it was signed, and where it would be revoked."""
    log, thread = there(), Thread()
    made = asyncio.run(Issuance(log, thread).issue(authority(), order()))
    assert log.asked == ["reserve", "record"]
    leaf = x509.load_der_x509_certificate(made)
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(ca_pem().encode()))
    assert f"{leaf.serial_number:040x}" == log.reserved["u-1"][0]
    [point] = leaf.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
    assert point.full_name is not None
    assert point.full_name[0].value == known().crl_url


def test_all_that_wait_go_together() -> None:
    """A hundred are not a hundred questions: the first goes alone, what came meanwhile after it."""
    log, thread = there(), Thread()

    async def all_of_them() -> list[bytes]:
        issuance = Issuance(log, thread)
        return await asyncio.gather(*(issuance.issue(authority(), order(f"u-{i}")) for i in range(150)))

    made = asyncio.run(all_of_them())
    assert len(set(made)) == 150
    assert log.asked == ["reserve", "record"] * 2


def test_what_was_issued_for_a_request_is_given_again() -> None:
    """After a process ended between the log and the cluster: nothing is signed twice."""
    log, thread = there(), Thread()
    first = asyncio.run(Issuance(log, thread).issue(authority(), order()))
    again = asyncio.run(Issuance(log, thread).issue(authority(), order()))
    assert first == again
    assert log.asked == ["reserve", "record", "reserve"]


@pytest.mark.parametrize("operation", ["reserve", "record"])
def test_what_is_not_in_the_log_is_given_to_nobody(operation: str) -> None:
    """The service is away before or after the signature: who asked waits, and gets the same serial number later."""
    log, thread = there(), Thread()
    log.failing[operation] = [ServiceAway("away")]
    with pytest.raises(ServiceAway):
        asyncio.run(Issuance(log, thread).issue(authority(), order()))
    assert log.issued == {}
    serial = log.reserved.get("u-1", ("",))[0]
    made = asyncio.run(Issuance(log, thread).issue(authority(), order()))
    found = f"{x509.load_der_x509_certificate(made).serial_number:040x}"
    assert found == log.reserved["u-1"][0]
    assert serial in ("", found)


@pytest.mark.threat("T294")
def test_a_certificate_that_the_log_does_not_confirm_is_given_to_nobody() -> None:
    """Whatever the answer was: it would be a certificate that nobody can revoke."""

    class Forgetful(Log):
        async def record(self, issuer_id: str, certificates: Any) -> Any:
            """Say nothing of what was asked."""
            return []

    log = Forgetful()
    log.issuers[known().issuer_id] = None  # type: ignore[assignment]  # only its being there counts
    with pytest.raises(AttestationError) as caught:
        asyncio.run(Issuance(log, Thread()).issue(authority(), order()))
    assert caught.value.code == "not-recorded"


@pytest.mark.threat("T294")
def test_one_serial_number_is_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service in other hands gives a second request the number of the first: nothing is signed for it."""

    class Twice(Log):
        async def reserve(self, issuer_id: str, requests: Any) -> Any:
            """Give all of them one number."""
            for each in requests:
                self.reserved[each.request_uid] = f"01{issuer_id:0>38}", each
            return await super().reserve(issuer_id, requests)

    monkeypatch.setattr("attestation_operator.hsm.issuance.REMEMBERED", 1)
    log = Twice()
    log.issuers["ab"] = None  # type: ignore[assignment]  # only its being there counts
    issuance = Issuance(log, Thread())

    async def one_after_the_other() -> None:
        of = replace(authority(), issuer_id="ab")
        first = await issuance.issue(of, order("u-1"))
        assert await issuance.issue(of, order("u-1")) == first
        with pytest.raises(AttestationError) as caught:
            await issuance.issue(of, order("u-2"))
        assert caught.value.code == "answer-invalid"
        # Only so many are remembered.
        log.issuers["cd"] = None  # type: ignore[assignment]  # likewise
        await issuance.issue(replace(authority(), issuer_id="cd"), order("u-3"))
        await issuance.issue(of, order("u-2"))

    asyncio.run(one_after_the_other())


@pytest.mark.parametrize("error", [HSMDiffers("another one stands there"), ZeroDivisionError("a fault")])
def test_one_that_is_refused_or_a_fault_of_ours_takes_no_other_with_it(error: Exception) -> None:
    """A batch that fails is asked for one by one."""

    class Picky(Log):
        async def reserve(self, issuer_id: str, requests: Any) -> Any:
            """Refuse what holds one of them."""
            if any(each.request_uid == "u-1" for each in requests):
                raise error
            return await super().reserve(issuer_id, requests)

    log = Picky()
    log.issuers[known().issuer_id] = None  # type: ignore[assignment]  # only its being there counts

    async def three() -> list[Any]:
        issuance = Issuance(log, Thread())
        orders = [issuance.issue(authority(), order(f"u-{i}")) for i in range(3)]
        return await asyncio.gather(*orders, return_exceptions=True)

    first, second, third = asyncio.run(three())
    assert second is error
    assert isinstance(first, bytes)
    assert isinstance(third, bytes)


@pytest.mark.parametrize("error", [HSMDiffers("another one"), CertificateUnknown("given up")])
def test_a_controller_that_was_quicker_is_no_end_of_a_request(error: AttestationError) -> None:
    """Nothing was decided: asked again, the log gives what the other one issued, or another serial number."""

    class Raced(Log):
        theirs: str | None = None

        async def record(self, issuer_id: str, certificates: Any) -> Any:
            """The first time another controller writes its own down, or the service gives the number up."""
            if "record" in self.asked:
                return await super().record(issuer_id, certificates)
            if isinstance(error, HSMDiffers):
                await super().record(issuer_id, certificates)
                self.theirs = certificates[0].certificate
            else:
                self.asked.append("record")
                self.reserved.clear()
            raise error

    log = Raced()
    log.issuers[known().issuer_id] = None  # type: ignore[assignment]  # only its being there counts
    issuance = Issuance(log, Thread())

    async def twice() -> bytes:
        with pytest.raises(NotRecorded):
            await issuance.issue(authority(), order())
        return await issuance.issue(authority(), order())

    made = asyncio.run(twice())
    assert b64encode(made) == log.issued["u-1"] == (log.theirs or log.issued["u-1"])


def test_a_subject_that_the_log_cannot_keep_is_refused_before_anything_is_signed() -> None:
    """Cut off it would be another one: the log refuses the certificate, and all beside it are signed again."""
    log, thread = there(), Thread()
    made = order()
    name = x509.Name([x509.NameAttribute(x509.NameOID.USER_ID, "u" * 256)] * 9)
    long = replace(made, content=replace(made.content, subject=name))
    with pytest.raises(RequestRefused):
        asyncio.run(Issuance(log, thread).issue(authority(), long))
    assert (log.asked, thread.turns) == ([], 0)


def test_a_token_that_does_not_sign_fails_what_waits_and_not_what_comes() -> None:
    """Who comes later is tried anew."""
    log, thread = there(), Thread()
    thread.error = SignerUnavailable("away")
    with pytest.raises(SignerUnavailable):
        asyncio.run(Issuance(log, thread).issue(authority(), order()))
    thread.error = None
    assert asyncio.run(Issuance(log, thread).issue(authority(), order()))


def test_what_the_log_cannot_keep_is_refused_before_it_waits_beside_others() -> None:
    """A request of a stranger's takes no batch with it."""
    log, thread = there(), Thread()

    async def both() -> list[Any]:
        issuance = Issuance(log, thread)
        bad = replace(order("u-1"), name="")
        orders = [issuance.issue(authority(), each) for each in (bad, order("u-2"))]
        return await asyncio.gather(*orders, return_exceptions=True)

    refused, made = asyncio.run(both())
    assert isinstance(refused, RequestRefused)
    assert isinstance(made, bytes)


def test_a_fault_of_ours_ends_nobody_s_wait_unsaid() -> None:
    """Whoever waits is told, as an error and not as being cancelled, and the next one is served."""
    log, thread = there(), Thread()

    async def two() -> list[Any]:
        issuance = Issuance(log, thread)
        thread.error = ZeroDivisionError("a fault")  # type: ignore[assignment]  # what nobody foresaw
        first = await asyncio.gather(issuance.issue(authority(), order("u-1")), return_exceptions=True)
        thread.error = None
        return [*first, await issuance.issue(authority(), order("u-2"))]

    first, second = asyncio.run(two())
    assert isinstance(first, ZeroDivisionError)
    assert isinstance(second, bytes)
