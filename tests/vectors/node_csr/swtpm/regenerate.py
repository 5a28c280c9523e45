"""Makes the fixtures of HSM-AND-KUBERNETES §24 with a software TPM.

Run: `python -m tests.vectors.node_csr.swtpm.regenerate`. What Python chooses follows from a seed; the keys
of the TPM and its signatures are its own, so the files differ each time, and the same must be said of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, cast

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import load_der_x509_csr

from attestation.device import KeyType, NodeTPM, TPMKey
from attestation.device.keys import external_key
from attestation.evidence.key_certification import csr_binding
from attestation.evidence.node_csr import Layout, UnverifiedContainer, VMIdentity, parse
from attestation.evidence.node_csr.blocks import write_block
from attestation.node_csr import Challenge, attest_key
from attestation.tpm import Alg, Attr, Hierarchy, Scheme, commands, parse_public, parse_signature
from attestation.tpm.commands import CC, Command, Signed, permanent
from attestation.tpm.sessions import Password
from attestation.wire import sized, u16
from attestation_testing import SoftwareAK, SoftwareNode, SoftwareTPM, ak_template
from attestation_testing.node_csr import node_request
from attestation_testing.software_keys import software_key, with_key
from tests.unit.appraisal.node_csr_kit import HOSTNAME, MACHINE_ID, NONCE, NONCE_ID, SELECTION

HERE = Path(__file__).parent
SEED = b"HSM-AND-KUBERNETES 24"
CHALLENGE: Final = Challenge(nonce=NONCE, nonce_id=NONCE_ID, selection=SELECTION)
AK: Final = int(
    Attr.FIXED_TPM | Attr.FIXED_PARENT | Attr.SENSITIVE_DATA_ORIGIN | Attr.USER_WITH_AUTH | Attr.NO_DA
) | int(Attr.RESTRICTED | Attr.SIGN_ENCRYPT)
SIGNERS: Final = {
    "unrestricted": AK & ~int(Attr.RESTRICTED),
    "movable": AK & ~int(Attr.FIXED_TPM | Attr.FIXED_PARENT),
}
"""Attributes of keys of the TPM that are no attestation keys, and sign what looks like a statement, or make one."""
OTHER: Final = ak_template(unique=b"another").tpmt
VM: Final = VMIdentity(
    zone="europe-west1-b", id=1234567890123456789, name=HOSTNAME, project_id=42, project_name="edge"
)


class Statement(IntEnum):
    """Commands that nothing of ours sends."""

    CERTIFY_CREATION = 0x14A
    GET_TIME = 0x14C

    @property
    def title(self) -> str:
        """Its name."""
        return self.name


Facts = dict[str, Any]


def scalar(label: str) -> int:
    """Return a private key of P-256 that follows from the seed."""
    order = ec.SECP256R1().group_order
    return int.from_bytes(hashlib.sha512(SEED + label.encode()).digest()) % (order - 1) + 1


def private(label: str) -> ec.EllipticCurvePrivateKey:
    """Return that key."""
    return ec.derive_private_key(scalar(label), ec.SECP256R1())


def with_leading_zero(axis: str) -> ec.EllipticCurvePrivateKey:
    """Return the first key of the seed whose point has a leading zero byte in that coordinate."""
    for count in range(100_000):
        key = private(f"{axis} {count}")
        if getattr(key.public_key().public_numbers(), axis) < 1 << 248:
            return key
    raise AssertionError("there is one in 256")


def execute(node: NodeTPM, command: Command[Any], *authorisations: Password) -> Any:
    """Send one command to the TPM of *node*."""
    return node._tpm.execute(command, *authorisations)


def good(node: NodeTPM | SoftwareNode, key: TPMKey | None = None, *, hostname: str = HOSTNAME) -> bytes:
    """Return what an honest machine sends."""
    return attest_key(
        node,
        key or node.create_signing_key(KeyType.ECC_P256),
        hostname=hostname,
        machine_id=MACHINE_ID,
        challenge=CHALLENGE,
    )


def changed(data: bytes, **fields: Any) -> bytes:
    """Return a container with other fields, whether it can be read or not."""
    return replace(parse(data), **fields).serialise()


def binding_of(data: bytes) -> bytes:
    """Return the qualifyingData that belongs to the request of a container."""
    return csr_binding(NONCE, load_der_x509_csr(parse(data).csr_der).tbs_certrequest_bytes)


# ---------------------------------------------------------------- a to e: freshness, statements, form


def stale(node: NodeTPM) -> Iterator[tuple[str, bytes, Facts]]:
    """A."""
    key = node.create_signing_key(KeyType.ECC_P256)
    data = good(node, key)
    empty = node.certify_key(key, b"")
    yield (
        "a-empty-extra-data",
        changed(data, attest=empty.certify_info, signature=empty.signature),
        {"reason": "EvidenceStale"},
    )
    yield "a-again", data, {"reason": "EvidenceStale", "case": {"spent": True}}
    other = replace(CHALLENGE, nonce=hashlib.sha256(SEED + b"of another machine").digest())
    yield (
        "a-nonce-of-another",
        attest_key(node, key, hostname=HOSTNAME, machine_id=MACHINE_ID, challenge=other),
        {"reason": "EvidenceStale"},
    )


def other_statements(node: NodeTPM) -> Iterator[tuple[str, bytes, Facts]]:
    """b: genuine signatures of the AK over statements of other types."""
    data = good(node)
    binding = binding_of(data)
    quote = node.quote(binding, SELECTION)
    yield (
        "b-quote",
        changed(data, attest=quote.attest, signature=quote.signature),
        {"reason": "EvidenceMalformed"},
    )
    ak = node._load_ak()
    with node._tpm.scope():
        made = execute(
            node,
            commands.create_primary(Hierarchy.ENDORSEMENT, ak_template(unique=b"subject").tpmt),
            Password(),
        )
        creation = execute(
            node,
            signed_command(
                Statement.CERTIFY_CREATION,
                (ak.entity, made.entity),
                1,
                sized(binding) + sized(made.creation_hash) + u16(Alg.NULL) + made.creation_ticket,
            ),
            Password(),
        )
    time = execute(
        node,
        signed_command(
            Statement.GET_TIME,
            (permanent(Hierarchy.ENDORSEMENT), ak.entity),
            2,
            sized(binding) + u16(Alg.NULL),
        ),
        Password(),
        Password(),
    )
    for name, said in (("creation", creation), ("time", time)):
        yield (
            f"b-{name}",
            changed(data, attest=said.attest, signature=said.signature),
            {"reason": "EvidenceMalformed"},
        )


def signed_command(
    code: Statement, entities: tuple[Any, ...], authorised: int, parameters: bytes
) -> Command[Signed]:
    """Return a command that answers with a statement and a signature."""
    return Command(
        code=cast("CC", code),
        entities=entities,
        authorised=authorised,
        parameters=parameters,
        read=lambda reader, _: Signed(attest=reader.sized(2048), signature=reader.rest()),
    )


def look_alikes(node: NodeTPM) -> Iterator[tuple[str, bytes, Facts]]:
    """C."""
    data = good(node)
    attest = parse(data).attest
    yield (
        "c-other-magic",
        changed(data, attest=b"\xff\x54\x43\x48" + attest[4:]),
        {"reason": "EvidenceMalformed"},
    )
    with node._tpm.scope():
        template = ak_template(attributes=SIGNERS["unrestricted"]).tpmt
        made = execute(node, commands.create_primary(Hierarchy.ENDORSEMENT, template), Password())
        forged = execute(node, commands.sign(made.entity, hashlib.sha256(attest).digest()), Password())
    yield "c-look-alike", changed(data, signature=forged), {"reason": "SignatureInvalid"}


def ill_formed(node: NodeTPM) -> Iterator[tuple[str, bytes, Facts]]:
    """D and e."""
    data = good(node)
    container = parse(data)
    assert container.public is not None
    malformed: Facts = {"reason": "EvidenceMalformed"}
    yield "d-byte-after-attest", changed(data, attest=container.attest + b"\0"), malformed
    yield "d-byte-after-signature", changed(data, signature=container.signature + b"\0"), malformed
    yield "d-byte-after-public", changed(data, public=container.public + b"\0"), malformed
    yield "d-byte-after-last-block", data + b"x", malformed
    yield "e-type-twice", data + write_block("TPM ATTEST", container.attest), malformed
    second = write_block("CERTIFICATE REQUEST", node_request(private("second"), HOSTNAME))
    yield "e-second-request", data + second, malformed


# ---------------------------------------------------------------- f to h: keys


def signers(tpm: SoftwareTPM, keys: dict[str, bytes]) -> Iterator[tuple[str, bytes, Facts]]:
    """f: each signed by a key that is no attestation key, or not the one that was activated."""
    for name, attributes in SIGNERS.items():
        with tpm.node(ak=ak_template(attributes=attributes).tpmt) as node:
            keys[name] = node.ak_public()
            yield f"f-{name}", good(node), {"reason": "SignatureInvalid", "case": {"ak": name}}
    with tpm.node(ak=OTHER) as node:
        yield "f-not-the-activated-one", good(node), {"reason": "SignatureInvalid"}
    # A TPM makes no statement whose signer stands outside of it: software that passed for an AK once would.
    # Nor does it have keys that sign by a scheme of their own and decrypt.
    outside, decrypting = SoftwareNode(24), SoftwareNode(26)
    outside.ak.qualified_name = outside.ak.public.name
    decrypting.ak = SoftwareAK(ak_template(attributes=AK | int(Attr.DECRYPT)), key=private("decrypting"))
    for name, node_ in (("wrong-qualified-signer", outside), ("decrypting", decrypting)):
        keys |= {name: node_.ak.public.tpm2b(), f"{name}-ek": node_.ek.public.tpm2b()}
        area = parse_public(node_.create_signing_key().public)
        yield (
            f"f-{name}",
            good(node_, software_key(area, key=private("outside"))),
            {"reason": "SignatureInvalid", "case": {"ak": name, "ek": f"{name}-ek"}},
        )


def external(node: NodeTPM, key: ec.EllipticCurvePrivateKey, *, stripped: bool = False) -> bytes:
    """Return the container of a software key, loaded with padded or with stripped coordinates."""
    data = attest_key(node, key, hostname=HOSTNAME, machine_id=MACHINE_ID, challenge=CHALLENGE)
    if not stripped:
        return data
    public, sensitive = external_key(key)
    area = parse_public(public)
    area = replace(area, x=area.x.lstrip(b"\0"), y=area.y.lstrip(b"\0"))
    public = sized(area.serialise())
    certified = load_and_certify(node, public, sensitive, binding_of(data))
    return changed(data, public=public, attest=certified.attest, signature=certified.signature)


def load_and_certify(node: NodeTPM, public: bytes, sensitive: bytes, qualifying_data: bytes) -> Signed:
    """Load a software key by these bytes, and have the AK certify it."""
    ak = node._load_ak()
    with node._tpm.scope():
        loaded = execute(node, commands.load_external(public, sensitive=sensitive))
        signed: Signed = execute(
            node, commands.certify(loaded, ak.entity, qualifying_data), Password(), Password()
        )
        return signed


def software_keys(node: NodeTPM, keys: dict[str, bytes]) -> Iterator[tuple[str, bytes, Facts]]:
    """G and h."""
    yield "g-software-key", external(node, private("software")), {"reason": "KeyNotResident"}
    allowed = {"reason": "TpmAttested", "case": {"mode": "certified-external"}}
    for axis in "xy":
        key = with_leading_zero(axis)
        yield f"h-external-{axis}-padded", external(node, key), allowed
        yield f"h-external-{axis}-stripped", external(node, key, stripped=True), allowed
    for axis in "xy":
        yield f"h-resident-{axis}-padded", good(node, resident(node, axis)), {"reason": "TpmAttested"}
        # This TPM pads; others strip. What they would say, software says here.
        other = SoftwareNode(25)
        area = parse_public(other.create_signing_key().public)
        area = with_key(area, with_leading_zero(axis))
        area = replace(area, x=area.x.lstrip(b"\0"), y=area.y.lstrip(b"\0"))
        stripped = TPMKey(
            public=sized(area.serialise()), private=software_key(area, key=with_leading_zero(axis)).private
        )
        keys |= {"stripping": other.ak.public.tpm2b(), "stripping-ek": other.ek.public.tpm2b()}
        yield (
            f"h-resident-{axis}-stripped",
            good(other, stripped),
            {"reason": "TpmAttested", "case": {"ak": "stripping", "ek": "stripping-ek"}},
        )


def resident(node: NodeTPM, axis: str) -> TPMKey:
    """Return a key of the TPM with a leading zero byte in that coordinate."""
    for _ in range(20_000):
        key = node.create_signing_key(KeyType.ECC_P256)
        area = parse_public(key.public)
        if not getattr(area, axis)[0] or len(getattr(area, axis)) < 32:
            return key
    raise AssertionError("there is one in 256")


# ---------------------------------------------------------------- j, l, and the layout of the seed


def records(node: NodeTPM) -> Iterator[tuple[str, bytes, Facts]]:
    """l, and the good one."""
    data = good(node)
    yield "good", data, {"reason": "TpmAttested"}
    yield "l-name-of-another", good(node, hostname="worker-2"), {"reason": "SubjectInvalid"}
    for status in ("locked", "revoked", "pending_approval"):
        facts: Facts = {"reason": "MachineNotAdmitted", "case": {"status": status}, "file": "good.pem"}
        yield f"l-{status}", b"", facts
    owned = {"node_machine": "00000000-0000-4000-8000-000000000002"}
    yield "l-node-of-another", b"", {"reason": "SubjectInvalid", "case": owned, "file": "good.pem"}


def boots(tpm: SoftwareTPM) -> Iterator[tuple[str, bytes, Facts]]:
    """j: nothing after this is as the policy expects."""
    with tpm.node() as node:
        bare = replace(CHALLENGE, selection=None)
        key = node.create_signing_key(KeyType.ECC_P256)
        data = attest_key(node, key, hostname=HOSTNAME, machine_id=MACHINE_ID, challenge=bare)
        yield "j-no-quote", data, {"reason": "PolicyFailed"}
    tpm.measure(7, b"another boot")
    with tpm.node() as node:
        yield "j-wrong-pcr", good(node), {"reason": "PolicyFailed"}


def gke(tpm: SoftwareTPM, keys: dict[str, bytes]) -> Iterator[tuple[str, bytes, Facts]]:
    """What the published implementation of the seed did: software key, LoadExternal, Certify without a nonce, AIK."""
    aik = ak_template(rsa_bits=2048, scheme=Scheme(alg=Alg.RSASSA, hash_alg=Alg.SHA256)).tpmt
    allowed = {"layout": "gke-v1", "mode": "certified-external", "quote_required": False}
    with tpm.node(ak=aik) as node:
        area = parse_public(node.ak_public())
        keys["aik"] = node.ak_public()
        keys["aik-spki"] = area.spki_der()
        key = with_leading_zero("x")
        public, sensitive = external_key(key)
        signed = load_and_certify(node, public, sensitive, b"")
        stripped = replace(parse_public(public), x=parse_public(public).x.lstrip(b"\0"))
        signed_stripped = load_and_certify(node, sized(stripped.serialise()), sensitive, b"")
        with_nonce = load_and_certify(node, public, sensitive, NONCE)
    # The AIK certificate is told by the CA of a cloud; here a case says that it was good.
    certificate = b"\x30\x03\x02\x01\x01"
    base = UnverifiedContainer(
        layout=Layout.GKE_V1,
        csr_der=node_request(key, HOSTNAME),
        attest=signed.attest,
        signature=parse_signature(signed.signature).signature,
        vm_identity=VM,
        ak_certificate=certificate,
    )
    good_case: Facts = {"reason": "TpmAttested", "case": {**allowed, "ak": "aik"}}
    yield "gke-activated", base.serialise(), good_case
    certified = {**allowed, "ak": None, "certified_ak": "aik-spki", "never_attested": True}
    yield "gke-certified", b"", {"reason": "TpmAttested", "case": certified, "file": "gke-activated.pem"}
    other = replace(
        base, attest=signed_stripped.attest, signature=parse_signature(signed_stripped.signature).signature
    )
    yield "gke-stripped", other.serialise(), good_case
    nonce = replace(base, attest=with_nonce.attest, signature=parse_signature(with_nonce.signature).signature)
    yield "gke-with-a-nonce", nonce.serialise(), {"reason": "EvidenceStale", "case": {**allowed, "ak": "aik"}}
    yield (
        "gke-not-listed",
        b"",
        {"reason": "EvidenceMalformed", "case": {"ak": "aik"}, "file": "gke-activated.pem"},
    )
    another = replace(base, csr_der=node_request(private("another"), HOSTNAME))
    yield "gke-another-key", another.serialise(), {"reason": "KeyMismatch", "case": {**allowed, "ak": "aik"}}
    yield (
        "gke-other-signer",
        b"",
        {"reason": "SignatureInvalid", "case": allowed, "file": "gke-activated.pem"},
    )
    quoted = {**allowed, "ak": "aik", "quote_required": True}
    yield "gke-quote-required", b"", {"reason": "PolicyFailed", "case": quoted, "file": "gke-activated.pem"}


def contents(folder: Path) -> dict[str, bytes]:
    """Return name -> bytes of every file, made with a TPM whose state is in *folder*."""
    keys: dict[str, bytes] = {}
    files: dict[str, bytes] = {}
    fixtures: dict[str, Facts] = {}

    def take(found: Iterator[tuple[str, bytes, Facts]]) -> None:
        for name, data, facts in found:
            fixtures[name] = facts
            if data:
                files[f"{name}.pem"] = data

    with SoftwareTPM(folder) as tpm:
        with tpm.node() as node:
            keys |= {"ek": node.identify().ek_public, "ak": node.ak_public()}
            take(stale(node))
            take(other_statements(node))
            take(look_alikes(node))
            take(ill_formed(node))
            take(software_keys(node, keys))
            take(records(node))
        take(signers(tpm, keys))
        take(gke(tpm, keys))
        take(boots(tpm))
    index = {
        "nonce": NONCE.hex(),
        "keys": {name: base64.b64encode(key).decode("ascii") for name, key in keys.items()},
        "fixtures": dict(sorted(fixtures.items())),
    }
    files["index.json"] = (json.dumps(index, indent=1, sort_keys=True) + "\n").encode()
    return files


def main() -> None:
    """Write every file anew."""
    with tempfile.TemporaryDirectory(prefix="tpm-") as folder:
        made = contents(Path(folder))
    for path in HERE.glob("*.pem"):
        path.unlink()
    for name, data in made.items():
        (HERE / name).write_bytes(data)


if __name__ == "__main__":
    main()
