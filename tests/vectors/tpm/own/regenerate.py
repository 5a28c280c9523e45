"""Writes every file beside it anew, byte for byte the same. Run: `python -m tests.vectors.tpm.own.regenerate`."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFHMAC, CounterLocation, Mode

from tests.vectors import forge
from tests.vectors.forge import (
    NONCE,
    PCRS,
    SELECTED,
    SHA256,
    SHA384,
    TPM_NAMES,
    bit_string,
    certificate,
    ek_public,
    extension,
    integer,
    oid,
    profile,
    quote,
    rdn,
    san,
    seq,
    spki,
    tlv,
    tpm2b,
    u16,
    u32,
)

HERE = Path(__file__).parent
SEED = 20_261_121
_SMALL_PRIMES = [p for p in range(3, 2000) if all(p % q for q in range(2, int(p**0.5) + 1))]


def prime(bits: int, source: random.Random) -> int:
    """Return a prime with its two top bits set, by Miller-Rabin with 24 rounds."""
    while True:
        n = source.getrandbits(bits) | 3 << (bits - 2) | 1
        if any(n % p == 0 for p in _SMALL_PRIMES) or (n - 1) % 65537 == 0:
            continue
        d, r = n - 1, 0
        while d % 2 == 0:
            d, r = d // 2, r + 1
        for _ in range(24):
            x = pow(source.randrange(2, n - 1), d, n)
            if x in (1, n - 1):
                continue
            for _ in range(r - 1):
                x = x * x % n
                if x == n - 1:
                    break
            else:
                break
        else:
            return n


def keys() -> dict[str, list[str]]:
    """Return label -> [p, q] in hex."""
    made = {}
    for label, bits in {
        "ek-rsa2048": 2048,
        "ak-rsa2048": 2048,
        "ak-rsa1024": 1024,
        "ek-rsa3072": 3072,
        "ek-rsa4096": 4096,
    }.items():
        source = random.Random(f"{SEED} {label}")
        made[label] = [f"{prime(bits // 2, source):x}" for _ in "pq"]
    return made


def quotes() -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for which, ak in forge.AKS.items():
        attest, signature = quote(which)
        files |= {
            f"{which}/ek.tpm2b_public": ek_public(forge.EK_OF[which]),
            f"{which}/ak.tpm2b_public": ak.public,
            f"{which}/quote.msg": attest,
            f"{which}/quote.sig": signature,
        }
    return files


def pair(attest: bytes, signature: bytes) -> bytes:
    """Return both in one file: 2B(TPMS_ATTEST) ‖ 2B(TPMT_SIGNATURE)."""
    return tpm2b(attest) + tpm2b(signature)


def hostile_quotes() -> dict[str, bytes]:
    """Every one signed by the P-256 AK over exactly these bytes, unless the fault is the signature."""
    ak = forge.AKS["p256"]
    good, signature = quote("p256")
    r, s = ak.ecdsa(good)
    head = signature[:4]
    body = forge.selection([(SHA256, SELECTED)])
    digest = tpm2b(forge.pcr_digest(SHA256, [PCRS[i] for i in SELECTED]))
    signer = forge.qualified_name(ek_public("L-2"), ak.public)
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

    def resigned(attest: bytes) -> bytes:
        return pair(attest, ak.sign(attest))

    certify = forge.statement(tpm2b(ak.name) + tpm2b(signer), signer=signer, kind=0x8017)
    creation = forge.statement(tpm2b(ak.name) + tpm2b(bytes(32)), signer=signer, kind=0x801A)
    return {
        "quote-wrong-magic": pair(*quote("p256", magic=0xFF544348)),
        "quote-is-certify": resigned(certify),
        "quote-is-creation": resigned(creation),
        "quote-is-time": pair(*quote("p256", kind=0x8019)),
        "quote-signer-empty": pair(*quote("p256", signer=b"")),
        "quote-signer-bare-name": pair(*quote("p256", signer=ak.name)),
        "quote-nonce-wrong": pair(*quote("p256", nonce=bytes(32))),
        "quote-nonce-empty": pair(*quote("p256", nonce=b"")),
        "quote-nonce-truncated": pair(*quote("p256", nonce=NONCE[:31])),
        "quote-nonce-longer": pair(*quote("p256", nonce=NONCE + b"\0")),
        "quote-safe-is-2": pair(*quote("p256", safe=2)),
        "quote-selection-empty": pair(*quote("p256", banks=[], values=[])),
        "quote-selection-no-pcr": pair(*quote("p256", banks=[(SHA256, ())], values=[])),
        "quote-selection-subset": pair(*quote("p256", banks=[(SHA256, SELECTED[:-1])])),
        "quote-selection-superset": pair(*quote("p256", banks=[(SHA256, (*SELECTED, 12))])),
        "quote-selection-other-bank": pair(*quote("p256", banks=[(SHA384, SELECTED)])),
        "quote-selection-sha1-only": pair(*quote("p256", banks=[(forge.SHA1, SELECTED)])),
        "quote-selection-bank-twice": pair(*quote("p256", banks=[(SHA256, SELECTED), (SHA256, SELECTED)])),
        "quote-selection-five-banks": pair(*quote("p256", banks=[(SHA256, SELECTED)] * 5)),
        "quote-selection-resettable": pair(
            *quote("p256", banks=[(SHA256, (16, 23))], values=[PCRS[0], PCRS[1]])
        ),
        "quote-selection-unknown-bank": pair(*quote("p256", banks=[(0x0027, SELECTED)])),
        "quote-bitmap-2-bytes": resigned(
            forge.statement(u32(1) + u16(SHA256) + b"\x02\xff\x08" + digest, signer=signer)
        ),
        "quote-digest-of-other-values": pair(*quote("p256", values=[PCRS[i] for i in (1, 0, *SELECTED[2:])])),
        "quote-trailing-byte": resigned(good + b"\0"),
        "quote-truncated": resigned(good[:-1]),
        "quote-digest-65-bytes": resigned(forge.statement(body + tpm2b(bytes(65)), signer=signer)),
        "quote-count-huge": resigned(forge.statement(u32(0xFFFFFFFF) + body[4:] + digest, signer=signer)),
        "signature-by-other-ak": pair(good, forge.AKS["p384"].sign(good)),
        "signature-of-other-quote": pair(good, ak.sign(quote("p256", clock=123_457)[0])),
        "signature-r-zero": pair(good, head + tpm2b(bytes(32)) + tpm2b(s)),
        "signature-s-zero": pair(good, head + tpm2b(r) + tpm2b(bytes(32))),
        "signature-r-is-n": pair(good, head + tpm2b(order.to_bytes(32)) + tpm2b(s)),
        "signature-s-is-n": pair(good, head + tpm2b(r) + tpm2b(order.to_bytes(32))),
        "signature-r-plus-n": pair(good, head + tpm2b((int.from_bytes(r) + order).to_bytes(33)) + tpm2b(s)),
        "signature-says-sha384": pair(good, u16(forge.ECDSA) + u16(SHA384) + signature[4:]),
        "signature-says-sm2": pair(good, u16(0x001B) + u16(SHA256) + signature[4:]),
        "signature-truncated": pair(good, signature[:-1]),
        "signature-trailing-byte": pair(good, signature + b"\0"),
    }


def ek_certificates() -> dict[str, bytes]:
    """One good certificate per template, and the quirks of TPM.md §2.2 that stand in a leaf."""
    files = {}
    for template, (label, _) in forge.EK_TEMPLATE_FIELDS.items():
        key = forge.private(label)
        files[f"{template}.der"] = certificate(spki(key), profile(is_rsa=isinstance(key, rsa.RSAPrivateKey)))
    key = forge.rsa_private("ek-rsa2048")
    good = files["L-1.der"]
    rsa_profile = profile(is_rsa=True)
    subject = seq(rdn(("2.5.4.3", "Own EK")))
    return files | {
        "L-1-wrapped.nv": forge.wrapped(good),
        "L-1-wrapped-twice.nv": forge.wrapped(good, inner=True) + bytes(20),
        "L-1-padded-11.nv": good + b"\x11" * 192,
        "L-1-padded-00.nv": good + bytes(300),
        "L-1-padded-ff.nv": good + b"\xff" * 431,
        "L-1-rsaes-oaep.der": certificate(forge.oaep_spki(key), rsa_profile),
        "L-1-rdn-not-sorted.der": certificate(
            spki(key),
            rsa_profile,
            issuer=seq(rdn(("2.5.4.11", "zz"), ("2.5.4.3", "Own EK Issuing CA"), ("2.5.4.6", "NL"))),
        ),
        "L-1-ecdsa-null-parameters.der": certificate(
            spki(key), rsa_profile, algorithm=seq(forge.ECDSA_SHA256, tlv(0x05))
        ),
        "L-1-serial-zero-padded.der": certificate(spki(key), rsa_profile, serial=tlv(0x02, b"\0\0\x12\x34")),
        "L-1-san-one-rdn.der": certificate(
            spki(key),
            rsa_profile | {"san": extension("2.5.29.17", san(TPM_NAMES, one_rdn=True), critical=True)},
        ),
        "L-1-san-not-critical-with-subject.der": certificate(
            spki(key), rsa_profile | {"san": extension("2.5.29.17", san(TPM_NAMES))}, subject=subject
        ),
        "L-1-dn-longer-than-64.der": certificate(
            spki(key), rsa_profile, issuer=seq(rdn(("2.5.4.3", "tpm_ek_v1_cloud_host-signer-0-" + "a" * 80)))
        ),
        "L-1-not-after-9999.der": certificate(
            spki(key), rsa_profile, not_after=forge.generalized_time("99991231235959Z")
        ),
        "L-1-security-assertions.der": certificate(
            spki(key),
            rsa_profile
            | {"sda": extension("2.5.29.9", seq(seq(oid("2.23.133.2.18"), tlv(0x31, tlv(0x30, b"\xff")))))},
        ),
    }


def hostile_certificates() -> dict[str, bytes]:
    """Each breaks one rule of TPM.md §2.3; all are for the RSA-2048 EK but the first."""
    key = forge.rsa_private("ek-rsa2048")
    info, good = spki(key), profile(is_rsa=True)

    def with_san(*names: tuple[tuple[str, str], ...], critical: bool = True) -> bytes:
        return certificate(info, good | {"san": extension("2.5.29.17", san(*names), critical=critical)})

    def without(name: str) -> bytes:
        return certificate(info, {k: v for k, v in good.items() if k != name})

    manufacturer, model, version = TPM_NAMES
    return {
        "n48-other-key": certificate(spki(forge.rsa_private("ak-rsa2048")), good),
        "n50-expired": certificate(info, good, not_after=forge.utc_time("260101000000Z")),
        "n51-not-yet-valid": certificate(info, good, not_before=forge.utc_time("400101000000Z")),
        "n52-ca-true": certificate(
            info, good | {"bc": extension("2.5.29.19", seq(tlv(0x01, b"\xff")), critical=True)}
        ),
        "n52-basic-constraints-not-critical": certificate(info, good | {"bc": extension("2.5.29.19", seq())}),
        "n52-basic-constraints-absent": without("bc"),
        "n53-eku-of-ak": certificate(info, good | {"eku": extension("2.5.29.37", seq(oid("2.23.133.8.3")))}),
        "n53-eku-critical": certificate(
            info, good | {"eku": extension("2.5.29.37", seq(oid("2.23.133.8.1")), critical=True)}
        ),
        "n53-ku-digital-signature": certificate(
            info, good | {"ku": extension("2.5.29.15", bit_string(b"\x80", 7), critical=True)}
        ),
        "n53-ku-of-ecc": certificate(
            info, good | {"ku": extension("2.5.29.15", bit_string(b"\x08", 3), critical=True)}
        ),
        "n53-ku-not-critical": certificate(
            info, good | {"ku": extension("2.5.29.15", bit_string(b"\x20", 5))}
        ),
        "n53-ku-absent": without("ku"),
        "aki-absent": without("aki"),
        "aki-critical": certificate(
            info, good | {"aki": extension("2.5.29.35", seq(tlv(0x80, b"own")), critical=True)}
        ),
        "n54-san-two-directory-names": with_san(TPM_NAMES, TPM_NAMES),
        "n54-san-extra-attribute": with_san((*TPM_NAMES, ("2.5.4.3", "extra"))),
        "n54-san-attribute-twice": with_san((manufacturer, model, model)),
        "n54-san-version-missing": with_san((manufacturer, model)),
        "n54-san-absent": without("san"),
        "n54-san-not-critical-without-subject": with_san(TPM_NAMES, critical=False),
        "n54-manufacturer-not-an-id": with_san((("2.23.133.2.1", "Infineon"), model, version)),
        "n55-manufacturer-unknown": with_san((("2.23.133.2.1", "id:58585858"), model, version)),
        "n55-manufacturer-simulator": with_san((("2.23.133.2.1", "id:00001014"), model, version)),
        "n60-unknown-critical-extension": certificate(
            info, good | {"x": extension("1.3.6.1.4.1.99999.1", seq(), critical=True)}
        ),
        "version-1": certificate(info, {}, version=b""),
        "version-2": certificate(info, good, version=tlv(0xA0, integer(1))),
        "serial-zero": certificate(info, good, serial=integer(0)),
        "serial-negative": certificate(info, good, serial=tlv(0x02, b"\xff")),
        "issuer-empty": certificate(info, good, issuer=seq()),
    }


def known_answers() -> str:
    """KDFa and KDFe by `cryptography` (KBKDF in counter mode, Concat KDF), MakeCredential by the forge."""
    crypto = {SHA256: hashes.SHA256(), SHA384: hashes.SHA384(), forge.SHA512: hashes.SHA512()}
    kdf = []
    for i, (alg, bits) in enumerate((alg, bits) for alg in crypto for bits in (128, 256, 384, 512, 1024)):
        key, u, v = (forge.digest(SHA256, b"own kdf %d %d" % (i, j))[: 8 + i] for j in range(3))
        kdfa = KBKDFHMAC(
            crypto[alg],
            Mode.CounterMode,
            bits // 8,
            4,
            4,
            CounterLocation.BeforeFixed,
            b"STORAGE",
            u + v,
            None,
        ).derive(key)
        kdfe = ConcatKDFHash(crypto[alg], bits // 8, b"IDENTITY\0" + u + v).derive(key)
        kdf.append(
            {"hash": alg, "key": key.hex(), "u": u.hex(), "v": v.hex(), "bits": bits}
            | {"kdfa_storage": kdfa.hex(), "kdfe_identity": kdfe.hex()}
        )
    credentials = []
    for template, (label, fields) in forge.EK_TEMPLATE_FIELDS.items():
        ek_alg = fields["name_alg"]
        assert isinstance(ek_alg, int)
        case = {"template": template, "ek_public": ek_public(template).hex()}
        case["ak_name"] = forge.AKS["p256"].name.hex()
        case["secret"] = forge.digest(SHA256, template.encode()).hex()
        size = len(forge.digest(ek_alg, b""))
        seed = (forge.digest(ek_alg, b"seed " + template.encode()))[:size]
        ek = forge.private(label)
        if isinstance(ek, ec.EllipticCurvePrivateKey):
            curve = {256: 3, 384: 4, 521: 5}[ek.key_size]
            ephemeral = forge.ec_private(f"ephemeral {template}", curve)
            field = (ek.key_size + 7) // 8
            ours, theirs = (k.public_key().public_numbers() for k in (ephemeral, ek))
            x, y = ours.x.to_bytes(field), ours.y.to_bytes(field)
            other = b"IDENTITY\0" + x + theirs.x.to_bytes(field)
            seed = ConcatKDFHash(crypto[ek_alg], size, other).derive(
                ephemeral.exchange(ec.ECDH(), ek.public_key())
            )
            case["ephemeral"] = f"{ephemeral.private_numbers().private_value:x}"
            case["encrypted_secret"] = tpm2b(tpm2b(x) + tpm2b(y)).hex()
        bits = 128 if ek_alg == SHA256 else 256
        case["seed"] = seed.hex()
        case["id_object"] = forge.id_object(
            ek_alg, bits, seed, forge.AKS["p256"].name, bytes.fromhex(case["secret"])
        ).hex()
        credentials.append(case)
    return json.dumps({"kdf": kdf, "make_credential": credentials}, indent=1) + "\n"


def contents() -> dict[str, bytes]:
    """Return every generated file: path below this folder -> bytes. `keys.json` must exist."""
    files = quotes()
    files |= {f"hostile/{name}.bin": data for name, data in hostile_quotes().items()}
    files |= {f"ek/{name}": data for name, data in ek_certificates().items()}
    files |= {f"hostile/ek/{name}.der": data for name, data in hostile_certificates().items()}
    creation = forge.selection([(SHA256, (0, 7))]) + tpm2b(bytes(32)) + b"\x01" + u16(SHA256)
    ek = ek_public("L-2")
    creation += tpm2b(forge.name_of(ek)) + tpm2b(forge.name_of(ek)) + tpm2b(b"own outside info")
    files["creation_data.bin"] = creation
    pcrs = {
        "nonce": NONCE.hex(),
        "selection": {"sha256": list(SELECTED)},
        "pcr_values": {"sha256": {str(i): PCRS[i].hex() for i in SELECTED}},
    }
    files["pcrs.json"] = (json.dumps(pcrs, indent=1) + "\n").encode()
    files["known-answers.json"] = known_answers().encode()
    return files


def main() -> None:
    (HERE / "keys.json").write_text(json.dumps(keys(), indent=1) + "\n")
    for name, data in contents().items():
        path = HERE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    sys.stdout.write(f"written: {len(contents())} files\n")


if __name__ == "__main__":
    main()
