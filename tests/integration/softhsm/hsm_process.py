"""What the controller of HSM issuers does with a key, as a process of its own: a test looks into its memory.

Made, proven, certified; certificates, a list, test signatures, all by the controller's code; then it waits. Lines of
JSON in (`hold`: bytes that it is to keep in memory) and out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.api.hsm import HSMIssuerPut, HSMList
from attestation.pki.leaf import LeafAsked, judge_leaf
from attestation.wire import b64encode
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec, IssuerSpec
from attestation_operator.hsm import lists
from attestation_operator.hsm.authority import authority_of, pem_of, proven_ca, self_signed
from attestation_operator.hsm.issuance import Issuance, Order
from attestation_operator.hsm.tokens import Tokens
from tests.fixtures.hsm_log import Log

CERTIFICATES = 20


def main(module: str, pin_file: str) -> None:
    """Work with a key, tell its certificate, and wait."""
    pin, at = Path(pin_file), datetime.now(UTC)
    token = HardwareSecurityModuleSpec.model_validate(
        {"module": "token", "tokenLabel": "hsm", "pinSecretRef": {"name": pin.parent.name, "key": pin.name}}
    )
    spec = IssuerSpec.model_validate(
        {"hsmRef": {"name": "hsm"}, "mode": "SelfSigned", "subject": {"commonName": "Cluster CA"}}
    )
    tokens = Tokens(
        modules={"token": Path(module)}, tpms={}, pin_dir=pin.parent.parent, tpm_keys_dir=pin.parent / "none"
    )
    key = tokens.make(token, "uid", "ecdsa-p384")
    made, log = self_signed(spec, key, at=at), Log()
    ca = proven_ca(pem_of(made), key, at=at, by_itself=True)
    assert ca is not None
    put = HSMIssuerPut(
        kind="HsmClusterIssuer",
        name="payments",
        certificate=b64encode(made),
        key_origin="generated",
        module="token",
        token_label="hsm",
    )
    authority = authority_of(spec, key=key, ca=ca, known=asyncio.run(log.register("uid", put)))
    tokens.test(token)

    async def issue() -> None:
        issuance = Issuance(log, asyncio.to_thread)
        for number in range(CERTIFICATES):
            name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"leaf-{number}")])
            request = (
                x509.CertificateSigningRequestBuilder()
                .subject_name(name)
                .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
                .public_bytes(Encoding.DER)
            )
            asked = LeafAsked(request=request, usages=(), is_ca=False, duration=timedelta(hours=1))
            await issuance.issue(
                authority,
                Order(
                    uid=str(number),
                    kind="CertificateRequest",
                    namespace="default",
                    name="cr",
                    requester="somebody",
                    content=judge_leaf(asked, authority.policy, ca=ca, at=at),
                ),
            )

    asyncio.run(issue())
    due = HSMList(
        due=True, number=1, revision=0, entries=[], this_update=at, next_update=at + timedelta(days=1)
    )
    lists.signed_list(authority, due, newest=0, at=at)
    held: list[bytes] = []
    print(json.dumps({"certificate": b64encode(made), "issued": len(log.issued)}), flush=True)
    for line in sys.stdin:
        held.append(bytes.fromhex(json.loads(line)["hold"]))
        print(json.dumps({"held": len(held)}), flush=True)
    tokens.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
