"""CA keys in hardware, on each database: one serial number for a request, one bundle for a nonce, lists that grow."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from attestation.errors import ChallengeExpired, ChallengeUnknown, ChallengeUsed, RequestInvalid
from attestation.store import (
    HSMBegunCRL,
    HSMCertificate,
    HSMDelegate,
    HSMIssuer,
    HSMNonce,
    HSMQuote,
    HSMState,
    Store,
    StoredCRL,
    Tx,
)
from tests.contract.store_samples import NOW

HOUR = timedelta(hours=1)


def issuer(issuer_id: str = "a" * 16, **changes: Any) -> HSMIssuer:
    """Return a CA key."""
    made = HSMIssuer(
        issuer_id=issuer_id, cluster_id="default", uid="u", kind="HsmIssuer", namespace="seed", name="ca",
        certificate=b"c", chain=(b"x", b"y"), key_origin="generated", module="softhsm", token_label="t",
        subject="CN=ca", spki_sha256=issuer_id * 4, not_before=NOW, not_after=NOW + 99 * HOUR, registered_at=NOW,
    )  # fmt: skip
    return replace(made, **changes)


def certificate(number: int = 1, **changes: Any) -> HSMCertificate:
    """Return a serial number that is being taken."""
    made = HSMCertificate(
        serial=f"{number:040x}", issuer_id="a" * 16, request_uid=f"r-{number}", kind="CertificateRequest",
        namespace="seed", name="r", spki_sha256="00" * 32, subject="CN=w", names="[]", is_ca=False, requester="x",
        not_before=NOW, not_after=NOW + 24 * HOUR, reserved_at=NOW,
    )  # fmt: skip
    return replace(made, **changes)


def test_a_cluster_has_each_key_once(store: Store) -> None:
    """Another cluster may have it too; a later key of an issuer marks the ones before."""

    def work(tx: Tx) -> tuple[list[bool], int, list[HSMIssuer | None]]:
        added = [
            tx.hsm.register(issuer()),
            tx.hsm.register(issuer("b" * 16, spki_sha256="a" * 64)),
            tx.hsm.register(issuer("c" * 16, spki_sha256="a" * 64, cluster_id="other")),
            tx.hsm.register(issuer("d" * 16)),
        ]
        marked = tx.hsm.supersede("default", "u", "d" * 16, NOW)
        return added, marked, [tx.hsm.issuer(each * 16) for each in "abcd"]

    added, marked, (first, none, other, last) = store.write_sync(work)
    assert (added, marked, none) == ([True, False, True, True], 1, None)
    assert first == issuer(superseded_at=NOW)
    assert other is not None
    assert other.superseded_at is None
    assert last == issuer("d" * 16)


def test_a_key_is_renamed(store: Store) -> None:
    """What is said of it changes, and it is followed by none any more; what was counted stays."""
    said = issuer(uid="v", name="other", certificate=b"d", chain=())

    def work(tx: Tx) -> HSMIssuer | None:
        tx.hsm.register(issuer(superseded_at=NOW, revision=3, crl_number=2))
        tx.hsm.rename(said)
        return tx.hsm.issuer_by_key("default", "a" * 64)

    assert store.write_sync(work) == replace(said, revision=3, crl_number=2)


def test_a_request_has_one_live_serial_number(store: Store) -> None:
    """Given up, it may have another; issued and revoked, it may not."""

    def work(tx: Tx) -> list[bool]:
        tx.hsm.register(issuer())
        found = [tx.hsm.reserve(certificate()), tx.hsm.reserve(certificate(2, request_uid="r-1"))]
        found.append(tx.hsm.void(certificate(), "why", NOW))
        found.append(tx.hsm.reserve(certificate(2, request_uid="r-1")))
        found.append(tx.hsm.issued(f"{2:040x}", b"der", "[]", "00", NOW))
        found.append(tx.hsm.revoke(certificate(2), "superseded", "why", NOW))
        found.append(tx.hsm.reserve(certificate(3, request_uid="r-1")))
        return found

    assert store.write_sync(work) == [True, False, True, True, True, True, False]
    held = store.read_sync(lambda tx: tx.hsm.certificate(f"{2:040x}"))
    assert held is not None
    assert (held.state, held.reason, held.note, held.certificate) == ("revoked", "superseded", "why", b"der")


def test_what_ended_does_not_begin_again(store: Store) -> None:
    """Each step is from one state: nothing is issued after it was given up, nothing revoked twice."""

    def work(tx: Tx) -> list[bool]:
        tx.hsm.register(issuer())
        tx.hsm.reserve(certificate())
        tx.hsm.reserve(certificate(2))
        tx.hsm.void(certificate(), "why", NOW)
        tx.hsm.issued(f"{2:040x}", b"der", "[]", "00", NOW)
        return [
            tx.hsm.issued(f"{1:040x}", b"der", "[]", "00", NOW),
            tx.hsm.revoke(certificate(), "superseded", None, NOW),
            tx.hsm.void(certificate(), "why", NOW),
            tx.hsm.reserve_again(f"{1:040x}", NOW, NOW + HOUR, NOW),
            tx.hsm.issued(f"{2:040x}", b"other", "[]", "00", NOW),
            tx.hsm.void(certificate(2), "why", NOW),
            tx.hsm.reserve_again(f"{2:040x}", NOW, NOW + HOUR, NOW),
        ]

    assert store.write_sync(work) == [False] * 7
    assert store.read_sync(lambda tx: tx.hsm.issuer("a" * 16)) == issuer(revision=1)


def test_lists_name_what_ended_until_its_end(store: Store) -> None:
    """In the order of the serial numbers, with the revision raised by each; other keys' stay out."""

    def work(tx: Tx) -> list[str]:
        tx.hsm.register(issuer())
        tx.hsm.register(issuer("b" * 16))
        for row in (certificate(3), certificate(1), certificate(4, not_after=NOW), certificate(5),
                    certificate(6, issuer_id="b" * 16)):  # fmt: skip
            tx.hsm.reserve(row)
            if row.serial[-1] != "5":
                tx.hsm.void(row, "why", NOW)
        return [each.serial[-1] for each in tx.hsm.listed("a" * 16, NOW, 9)]

    assert store.write_sync(work) == ["1", "3"]
    found = store.read_sync(lambda tx: tx.hsm.issuer("a" * 16))
    assert found is not None
    assert found.revision == 3


def test_numbers_of_lists_only_rise(store: Store) -> None:
    """A list that was begun earlier, or knows less, takes no newer one's place."""

    def made(number: int, revision: int) -> StoredCRL:
        return StoredCRL(issuer_id="a" * 16, number=number, revision=revision, entries=0, this_update=NOW,
                         next_update=NOW + HOUR, crl=bytes([number]))  # fmt: skip

    def work(tx: Tx) -> list[bool]:
        tx.hsm.register(issuer())
        begun = HSMBegunCRL(issuer_id="a" * 16, number=1, revision=5, entries=0, digest="d")
        # Of two that begin the same number one does.
        assert [tx.hsm.begin_crl(begun, NOW) for _ in range(2)] == [True, False]
        return [tx.hsm.put_crl(made(*each)) for each in ((2, 5), (1, 9), (2, 9), (3, 4), (3, 5))]

    assert store.write_sync(work) == [True, False, False, False, True]
    state, found = store.read_sync(lambda tx: (tx.hsm.crl_state("a" * 16), tx.hsm.issuer("a" * 16)))
    assert state == (3, 5, NOW, NOW + HOUR)
    assert found is not None
    # The second was for the number that was begun: nothing is being made any more.
    assert (found.crl_number, found.begun_digest) == (1, None)


def test_a_certified_key_takes_the_place_of_the_one_before(store: Store) -> None:
    """And is pending no more."""
    pending = HSMDelegate(
        issuer_id="a" * 16, state="pending", serial="1", request=b"r", sealed_key=b"k", made_at=NOW
    )
    active = replace(pending, state="active", certificate=b"c", not_after=NOW + HOUR)

    def work(tx: Tx) -> tuple[Any, ...]:
        tx.hsm.register(issuer())
        tx.hsm.put_delegate(pending)
        nobody = dict(tx.hsm.revisions())
        tx.hsm.put_delegate(active)
        answers = tx.hsm.delegate("a" * 16, "active")
        return nobody, dict(tx.hsm.revisions()), tx.hsm.delegate("a" * 16, "pending"), answers

    assert store.write_sync(work) == ({}, {"a" * 16: (0, "1")}, None, active)


def test_a_nonce_is_one_quote_s_and_one_bundle_s(store: Store) -> None:
    """The same may come again; another may not, nor anybody after its end."""
    nonce = HSMNonce(nonce_sha256="n", cluster_id="default", signer_uid="u", purpose="KeyProvisioning",
                     issued_at=NOW, expires_at=NOW + HOUR, evidence_type="sgx")  # fmt: skip

    def work(tx: Tx) -> HSMNonce | None:
        tx.hsm_quotes.issue(nonce)
        tx.hsm_quotes.issue(replace(nonce, nonce_sha256="late"))
        for _ in range(2):
            tx.hsm_quotes.claim("n", "q")
            tx.hsm_quotes.spend("n", "b", NOW)
        with pytest.raises(ChallengeUsed):
            tx.hsm_quotes.claim("n", "other")
        with pytest.raises(ChallengeUsed):
            tx.hsm_quotes.spend("n", "other", NOW)
        with pytest.raises(ChallengeExpired):
            tx.hsm_quotes.spend("late", "b", NOW + HOUR)
        with pytest.raises(ChallengeUnknown):
            tx.hsm_quotes.spend("never", "b", NOW)
        return tx.hsm_quotes.nonce("n")

    assert store.write_sync(work) == replace(nonce, quote_uid="q", used_at=NOW, used_by="b")


def test_a_verdict_is_final_unless_it_is_none(store: Store) -> None:
    """What could not be decided is judged again; what was decided stays."""
    quote = HSMQuote(cluster_id="default", uid="q", namespace="seed", name="qa", content_sha256="00", spec="{}",
                     purpose="KeyProvisioning", signer_uid="u", evidence_type="sgx", nonce_sha256="n",
                     received_at=NOW, expires_at=NOW + HOUR, verdict="indeterminate", result="{}")  # fmt: skip

    def work(tx: Tx) -> tuple[list[bool], HSMQuote | None]:
        found = [
            tx.hsm_quotes.add(quote),
            tx.hsm_quotes.add(replace(quote, verdict="verified")),
            tx.hsm_quotes.judged("default", "q", "failed", '{"x": 1}'),
            tx.hsm_quotes.judged("default", "q", "verified", "{}"),
        ]
        tx.hsm_quotes.stepped("default", "q", "[1]", "loaded")
        return found, tx.hsm_quotes.get("default", "q")

    found, row = store.write_sync(work)
    assert found == [True, False, True, False]
    assert row == replace(quote, verdict="failed", result='{"x": 1}', steps="[1]", last_step="loaded")


def test_pages_are_newest_first(store: Store) -> None:
    """Of keys, certificates and QuoteAttestations; a cursor of one list is none of another."""

    def work(tx: Tx) -> None:
        for each in "ab":
            tx.hsm.register(issuer(each * 16))
        for number in (1, 2, 3):
            tx.hsm.reserve(certificate(number))
        tx.hsm.void(certificate(2), "why", NOW)

    store.write_sync(work)
    page = store.read_sync(lambda tx: tx.hsm.issuers(None, 1))
    assert [each.issuer_id[0] for each in page.items] == ["b"]
    rest = store.read_sync(lambda tx: tx.hsm.issuers(page.next_cursor, 1))
    assert [each.issuer_id[0] for each in rest.items] == ["a"]
    every, void = store.read_sync(
        lambda tx: [tx.hsm.certificates("a" * 16, state, None, 9) for state in (None, "void")]
    )
    assert [each.serial[-1] for each in every.items] == ["3", "2", "1"]
    assert [each.serial[-1] for each in void.items] == ["2"]
    with pytest.raises(RequestInvalid):
        store.read_sync(lambda tx: tx.hsm_quotes.page(page.next_cursor, 1))


def test_what_ended_long_ago_goes(store: Store) -> None:
    """What is still being signed stays, whatever its end; so does what is not over."""

    def work(tx: Tx) -> tuple[int, list[str]]:
        tx.hsm.register(issuer())
        for number, end in ((1, NOW), (2, NOW), (3, NOW + 9 * HOUR)):
            tx.hsm.reserve(certificate(number, not_after=end))
        tx.hsm.void(certificate(1), "why", NOW)
        gone = tx.hsm.purge(NOW + HOUR, 10)
        return gone, [each.serial[-1] for each in tx.hsm.certificates("a" * 16, None, None, 9).items]

    assert store.write_sync(work) == (1, ["3", "2"])


def test_a_key_goes_when_nothing_is_kept_of_it(store: Store) -> None:
    """With its lists and answers; not before it ended or was followed, nor while a certificate of it is kept."""
    delegate = HSMDelegate(
        issuer_id="a" * 16, state="pending", serial="1", request=b"r", sealed_key=b"k", made_at=NOW
    )
    listed = StoredCRL(issuer_id="a" * 16, number=1, revision=0, entries=0, this_update=NOW,
                       next_update=NOW + HOUR, crl=b"l")  # fmt: skip

    def work(tx: Tx) -> list[int]:
        tx.hsm.register(issuer(not_after=NOW))
        tx.hsm.register(issuer("b" * 16, not_after=NOW))
        tx.hsm.register(issuer("c" * 16))
        tx.hsm.register(issuer("d" * 16, superseded_at=NOW))
        tx.hsm.register(issuer("e" * 16, superseded_at=NOW + 2 * HOUR))
        tx.hsm.put_delegate(delegate)
        tx.hsm.put_crl(listed)
        tx.hsm.reserve(certificate(issuer_id="b" * 16, not_after=NOW + 9 * HOUR))
        return [tx.hsm.purge(NOW + HOUR, 10), tx.hsm.purge(NOW + HOUR, 10)]

    assert store.write_sync(work) == [2, 0]
    kept = store.read_sync(lambda tx: [each for each in "abcde" if tx.hsm.issuer(each * 16) is not None])
    assert kept == ["b", "c", "e"]
    assert store.read_sync(lambda tx: (tx.hsm.crl("a" * 16), tx.hsm.delegate("a" * 16, "pending"))) == (
        None,
        None,
    )


def test_what_a_cluster_has_is_counted(store: Store) -> None:
    """Keys, serial numbers that are being signed or were given up and have not ended, nonces that are good."""
    nonce = HSMNonce(nonce_sha256="n", cluster_id="default", signer_uid="u", purpose="KeyProvisioning",
                     issued_at=NOW, expires_at=NOW + HOUR, evidence_type="sgx")  # fmt: skip

    def work(tx: Tx) -> None:
        tx.hsm.register(issuer())
        tx.hsm.register(issuer("b" * 16))
        tx.hsm.register(issuer("c" * 16, cluster_id="other"))
        for number, where in enumerate("aabbc"):
            tx.hsm.reserve(certificate(number, issuer_id=where * 16))
        tx.hsm.void(certificate(0), "why", NOW)
        for name, cluster_id in (("1", "default"), ("2", "default"), ("3", "other")):
            tx.hsm_quotes.issue(replace(nonce, nonce_sha256=name, cluster_id=cluster_id))

    store.write_sync(work)

    def counted(tx: Tx) -> list[int]:
        late = NOW + 24 * HOUR
        return [
            *(tx.hsm.keys_of("default", most) for most in (9, 1)),
            *(tx.hsm.open("default", most) for most in (9, 2)),
            *(tx.hsm.given_up(each * 16, NOW, 9) for each in "ab"),
            tx.hsm.given_up("a" * 16, late, 9),
            *(tx.hsm_quotes.alive("default", at, 9) for at in (NOW, NOW + HOUR)),
        ]

    assert store.read_sync(counted) == [2, 1, 3, 2, 1, 0, 0, 2, 0]


def test_how_the_keys_of_a_cluster_are(store: Store) -> None:
    """Of those with a certificate that is good still: the first end of one that signs, late lists, what is open."""

    def work(tx: Tx) -> None:
        changes: dict[str, dict[str, Any]] = {
            "a": {},
            "b": {"not_after": NOW + 50 * HOUR},
            "c": {"not_after": NOW + 40 * HOUR, "superseded_at": NOW},
            # Nothing of it is good any more: nobody needs a list of it, and its end is nobody's.
            "d": {"not_after": NOW + 30 * HOUR},
            "e": {"cluster_id": "other", "superseded_at": NOW},
        }
        for each, more in changes.items():
            tx.hsm.register(issuer(each * 16, **more))
        for number, where in enumerate("aabcde"):
            end = NOW if where == "d" else NOW + HOUR
            tx.hsm.reserve(certificate(number, issuer_id=where * 16, not_after=end))
        tx.hsm.issued(f"{0:040x}", b"der", "[]", "00", NOW)
        for each, until in (("a", NOW + HOUR), ("b", NOW)):
            tx.hsm.put_crl(StoredCRL(issuer_id=each * 16, number=1, revision=0, entries=0, this_update=NOW,
                                     next_update=until, crl=b"l"))  # fmt: skip

    store.write_sync(work)
    assert store.read_sync(lambda tx: tx.hsm.states(NOW)) == {
        "default": HSMState(first_end=NOW + 50 * HOUR, overdue=2, open=4),
        "other": HSMState(first_end=None, overdue=1, open=1),
    }
    assert store.read_sync(lambda tx: tx.hsm.states(NOW + HOUR)) == {}
