"""The controller of HsmCertificates: it gathers what is known, asks token and cluster, and has the result applied.

Keys of leaves are open only while something is done with them: who uses one opens it for itself, and a token's test
signatures are of CA keys alone.
"""

# Algorithms for: key-identifier
from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from attestation.errors import AttestationError, KeyNotFound
from attestation.keys.care import destroy_key, look
from attestation.keys.open import Algorithm, KeyOptions, OpenKey, create_key, open_key
from attestation.keys.uri import TPM2Ref, parse_key_uri
from attestation_operator.controller import Around, Round
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec
from attestation_operator.errors import ClusterForbidden
from attestation_operator.hsm import leaves
from attestation_operator.hsm.authority import spki_of
from attestation_operator.hsm.controllers import MAX_TURNS, Standing, Threads
from attestation_operator.hsm.leaf_objects import (
    Answer,
    Ask,
    Case,
    Leaf,
    Looked,
    Seen,
    keys_to_destroy,
    keys_to_retire,
    read_leaf,
)
from attestation_operator.hsm.leaf_request import made_request, wanted_of
from attestation_operator.hsm.objects import AGAIN_SECONDS, Absent, Module, read_module
from attestation_operator.hsm.tokens import KeyName, Tokens
from attestation_operator.objects import CERTIFICATE_REQUEST, HSM_CERTIFICATE, Key, Kind, Raw

ID_BYTES: Final = 20
"""Of SHA-256 of a SubjectPublicKeyInfo: the CKA_ID that keys are given where the token lets us."""


class Leaves:
    """Has keys made on tokens, and certificates asked for them.

    Args:
        around: What a controller is given.
        tokens: The tokens.
        standing: What is known together.
        threads: Where tokens are asked.
    """

    name = "leaves"

    def __init__(self, around: Around, tokens: Tokens, standing: Standing, threads: Threads) -> None:
        self._around = around
        self._tokens = tokens
        self._standing = standing
        self._threads = threads
        self._locks: dict[Key, asyncio.Lock] = {}

    @property
    def watches(self) -> Sequence[Kind]:
        """HsmCertificates, and the requests that are made for them."""
        return (HSM_CERTIFICATE, CERTIFICATE_REQUEST)

    @property
    def rounds(self) -> Sequence[Round]:
        """None: each says when it is looked at again."""
        return ()

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Look at one HsmCertificate; or at that whose request this is."""
        if key.kind is HSM_CERTIFICATE:
            return await self._one(key)
        raw = seen if seen is not None else await self._around.cluster.read(key)
        for ref in () if raw is None else raw["metadata"].get("ownerReferences") or ():
            # An object has one controller; of other owners its maker may name thousands.
            if (ref.get("apiVersion"), ref.get("kind"), ref.get("controller")) == (
                HSM_CERTIFICATE.api_version,
                HSM_CERTIFICATE.kind,
                True,
            ):
                await self._one(Key(kind=HSM_CERTIFICATE, name=str(ref["name"]), namespace=key.namespace))
        return None

    async def _one(self, key: Key) -> float | None:
        """Look at one; one look at a time, also where its request wants it."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            after = await self._looked(key)
        if after is None and not lock.locked():
            self._locks.pop(key, None)
        return after

    async def _looked(self, key: Key) -> float | None:
        for _ in range(MAX_TURNS):
            # What is made of it rests on what it is now: a watch may be late.
            raw = await self._around.cluster.read(key)
            if raw is None:
                return None
            case, looked = await self._look(read_leaf(raw))
            try:
                await self._around.executor.apply(looked.actions)
            except ClusterForbidden as e:
                looked = leaves.forbidden(case, e)
                await self._around.executor.apply(looked.actions)
            if not looked.again:
                return looked.after
        self._around.log.error("leaf.goes_round", name=str(key))
        return AGAIN_SECONDS

    async def _look(self, leaf: Leaf) -> tuple[Case, Looked]:
        module = await self._module(leaf)
        answers: dict[Ask, Answer] = {}
        while True:
            case = Case(leaf=leaf, module=module, at=self._around.clock.now(), answers=answers)
            looked = leaves.reconcile(case)
            if looked.ask is None:
                return case, looked
            answers[looked.ask] = await self._answer(looked.ask, leaf, module)

    async def _module(self, leaf: Leaf) -> Module | None:
        if leaf.spec is None:
            return None
        raw = self._standing.modules.get(leaf.hsm)
        if raw is None:
            raw = await self._around.cluster.read(leaf.hsm)
        return None if raw is None else read_module(raw)

    async def _answer(self, ask: Ask, leaf: Leaf, module: Module | None) -> Answer:
        match ask:
            case Ask.TLS:
                return await self._read(leaf.secret)
            case Ask.REQUEST:
                return await self._read(leaf.request(leaf.number))
            case Ask.OLD_REQUEST:
                return await self._read(leaf.request(leaf.number - 1))
            case Ask.KEY | Ask.MAKE | Ask.RETIRE | Ask.DESTROY:
                pass
        assert module is not None
        token = module.spec
        assert token is not None
        try:
            return await self._threads(lambda: of_token(self._tokens, ask, leaf, token))
        except AttestationError as e:
            return e

    async def _read(self, key: Key) -> Answer:
        try:
            raw = await self._around.cluster.read(key)
        except ClusterForbidden as e:
            return e
        return Absent() if raw is None else raw


def of_token(tokens: Tokens, ask: Ask, leaf: Leaf, token: HardwareSecurityModuleSpec) -> Answer:
    """Return what a token answers. Blocks.

    Raises:
        AttestationError: There is no such key, several are, or the token does not answer.
    """
    assert leaf.spec is not None
    if ask in (Ask.RETIRE, Ask.DESTROY):
        for each in keys_to_retire(leaf) if ask is Ask.RETIRE else keys_to_destroy(leaf):
            destroy_key(*tokens.named(token, leaf.label(each)))
        return True
    label = leaf.label(leaf.count("keyRevision"))
    uri, options = tokens.named(token, label)
    key = open_key(uri, options) if ask is Ask.KEY else _made(uri, leaf.spec.key_type, options)
    try:
        request = b"" if ask is Ask.KEY else made_request(wanted_of(leaf.spec), key.private_key)
        spki = spki_of(key)
        name = KeyName(label=label, id=hashlib.sha256(spki).digest()[:ID_BYTES].hex())
        shown = _shown(tokens.uri(token, name), options) or key.uri
        return Seen(spki=spki, algorithm=key.algorithm, uri=shown, request=request)
    finally:
        key.close()


def _shown(uri: str, options: KeyOptions) -> str | None:
    """Return a URI without the places of module and PIN; None where it names no key: a token may number its objects."""
    try:
        look(uri, options)
    except KeyNotFound:
        return None
    return parse_key_uri(uri).shown


def _made(uri: str, algorithm: Algorithm, options: KeyOptions) -> OpenKey:
    """Make a key, or open that of the label."""
    ref = parse_key_uri(uri)
    if isinstance(ref, TPM2Ref) and ref.path is not None:
        ref.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return create_key(uri, algorithm, options)
