"""OpenSSL judges a rotation: whoever knows the old key, the new one or the bundle verifies what either signed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.store import Issuer
from attestation_service.authority import Issued
from tests.unit.service.ca_world import no_more, nothing, wanted
from tests.unit.service.conftest import (  # noqa: F401 -- fixtures of the service
    Service,
    Starter,
    anyio_backend,
    migrated,
    start,
)

pytestmark = pytest.mark.anyio

DAY = 86_400


def pem(der: bytes) -> str:
    """Return a certificate in PEM."""
    return x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM).decode()


class Judge:
    """`openssl verify` with its own trust, sent certificates and lists, at the instant of the service."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service = service
        self.folder = folder

    async def verify(
        self, leaf: bytes, *, trusts: Sequence[bytes], sent: Sequence[bytes] = (), lists: Sequence[str] = ()
    ) -> str:
        """Return `OK`, or the complaint of OpenSSL."""
        fetched = [await self.service.get(f"/pki/crl/{issuer_id}") for issuer_id in lists]
        assert all(answer.status_code == 200 for answer in fetched)
        revocations = [
            x509.load_der_x509_crl(answer.content).public_bytes(Encoding.PEM).decode() for answer in fetched
        ]
        texts = {
            "leaf": [pem(leaf)],
            "trusted": map(pem, trusts),
            "sent": map(pem, sent),
            "lists": revocations,
        }
        for name, parts in texts.items():
            (self.folder / name).write_text("".join(parts))
        at = str(int(self.service.clock.now().timestamp()))
        run = ["openssl", "verify", "-x509_strict", "-purpose", "sslclient", "-attime", at]
        run += ["-CAfile", "trusted", "-no-CApath", "-no-CAstore"]
        run += ["-untrusted", "sent"] if sent else []
        run += ["-CRLfile", "lists", "-crl_check_all"] if lists else []
        done = subprocess.run(  # noqa: ASYNC221 -- a program of the test, and nothing else runs
            [*run, "leaf"], cwd=self.folder, capture_output=True, text=True, check=False
        )
        return "OK" if done.returncode == 0 else done.stderr + done.stdout


async def issue(service: Service) -> Issued:
    """Issue a certificate to a machine."""
    assert service.resources.authority is not None
    (issued,) = await service.resources.authority.issue(
        wanted(), at=service.clock.now(), admit=nothing, conclude=no_more
    )
    return issued


async def step(service: Service, name: str, *, force: bool = False) -> None:
    """Take a step of a rotation."""
    answer = await service.operator(
        "POST", "/ca/rotation", {"step": name, "reason": "the year is over", "force": force}
    )
    assert answer.status_code == 200, answer.text


async def issuers(service: Service) -> dict[str, Issuer]:
    """Return every key by id."""
    return {each.issuer_id: each for each in await service.store.read(lambda tx: tx.issuers.all())}


def own(issuer: Issuer) -> bytes:
    """Return the self-signed certificate of a key."""
    assert issuer.certificate is not None
    return issuer.certificate


@pytest.mark.threat("T102")
@pytest.mark.parametrize("algorithm", ["ecdsa-p384", pytest.param("rsa-4096", marks=pytest.mark.slow)])
async def test_old_and_new_verify_throughout(start: Starter, tmp_path: Path, algorithm: str) -> None:  # noqa: F811
    """In every state of a rotation, forward and back, for three relying parties, with the lists of both keys."""
    service = await start(enrollment_ca_unencrypted=True, enrollment_ca_algorithm=algorithm)
    ca = service.resources.authority
    assert ca is not None
    judge = Judge(service, tmp_path)
    leaves = [await issue(service)]
    (old_id,) = await issuers(service)

    async def everybody_verifies(state: str) -> None:
        keys = await issuers(service)
        bundle = await ca.bundle()
        crosses = [der for each in keys.values() for der in each.cross_certificates]
        named = [own(each) for each in keys.values()]
        lists = [each.issuer_id for each in keys.values() if each.state != "retired"]
        for number, leaf in enumerate(leaves):
            for who, trusts in (
                *((f"only {n}", [der]) for n, der in enumerate(named)),
                ("the bundle", bundle),
            ):
                sent = [*leaf.chain, *crosses]
                found = await judge.verify(leaf.certificate, trusts=trusts, sent=sent, lists=lists)
                assert found == "OK", f"{state}: leaf {number} for whoever trusts {who}: {found}"

    await everybody_verifies("before")
    await step(service, "prepare")
    leaves.append(await issue(service))
    await everybody_verifies("prepared")
    await step(service, "activate", force=True)
    new = await issue(service)
    assert new.issuer_id != old_id
    leaves.append(new)
    await everybody_verifies("activated")
    # What the holder of a new certificate sends is enough for whoever never heard of the new key.
    assert (
        await judge.verify(new.certificate, trusts=[own((await issuers(service))[old_id])], sent=new.chain)
        == "OK"
    )
    await step(service, "rollback")
    leaves.append(await issue(service))
    assert leaves[-1].issuer_id == old_id
    await everybody_verifies("rolled back")
    await step(service, "rollback")
    leaves.append(await issue(service))
    await everybody_verifies("forward again")


async def test_whoever_follows_the_bundle_never_notices(start: Starter, tmp_path: Path) -> None:  # noqa: F811
    """Renewals every six hours through a rotation in its own time: each certificate verifies until it ends."""
    service = await start(enrollment_ca_unencrypted=True)
    ca = service.resources.authority
    assert ca is not None
    judge = Judge(service, tmp_path)
    plan = {2: "prepare", 6: "activate", 16: "retire"}
    leaves: list[Issued] = []
    known = await ca.bundle()
    for quarter in range(20):
        if quarter in plan:
            await step(service, plan[quarter])
        leaves.append(await issue(service))
        live = [leaf for leaf in leaves if leaf.not_after > service.clock.now()]
        if quarter % 4 == 3:
            known = await ca.bundle()  # once every twelve hours
        for leaf in live:
            assert await judge.verify(leaf.certificate, trusts=known, sent=leaf.chain) == "OK", quarter
        service.clock.advance(DAY / 4)
    states = [each.state for each in (await issuers(service)).values()]
    assert states == ["retired", "active"]


@pytest.mark.threat("T102")
async def test_a_retired_key_is_reached_through_nobody(start: Starter, tmp_path: Path) -> None:  # noqa: F811
    """Retired by force, because it was stolen: what it signed is refused by whoever knows the new key only."""
    service = await start(enrollment_ca_unencrypted=True)
    judge = Judge(service, tmp_path)
    stolen = await issue(service)
    await step(service, "prepare")
    await step(service, "activate", force=True)
    keys = await issuers(service)
    old, new = (keys[each] for each in (stolen.issuer_id, next(k for k in keys if k != stolen.issuer_id)))
    way = list(old.cross_certificates)
    lists = [old.issuer_id, new.issuer_id]
    assert await judge.verify(stolen.certificate, trusts=[own(new)], sent=way, lists=lists) == "OK"
    await step(service, "retire", force=True)
    assert "revoked" in await judge.verify(stolen.certificate, trusts=[own(new)], sent=way, lists=lists)
    ca = service.resources.authority
    assert ca is not None
    assert await ca.bundle() == (own(new),)
    assert await judge.verify(stolen.certificate, trusts=await ca.bundle()) != "OK"
