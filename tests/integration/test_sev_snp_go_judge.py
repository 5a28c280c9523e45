"""go-sev-guest, of Debian 13, judges the same reports of SEV-SNP; each difference stands here with its reason."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from attestation import tee_bundle
from attestation.endorsements.amd import Endorsements, Lines, Product, parse_vek
from attestation.errors import HardwareEvidenceRejected
from attestation.evidence import sev_snp
from attestation.wire import b64encode, der_of
from attestation_testing.tee import x509
from attestation_testing.tee.amd import Pki, Processor
from tests.fixtures import trixie
from tests.unit.evidence.test_sev_snp_vectors import at as clock_of
from tests.unit.evidence.test_sev_snp_vectors import members
from tests.vectors.confidential import needs_vectors, vectors

AT = datetime(2026, 11, 23, tzinfo=UTC)
DATA = bytes(range(64))
FLIPPED = (0x000, 0x020, 0x050, 0x090, 0x180, 0x1A0, 0x1E8, 0x2A0, 0x2DC, 0x330, 0x49F)
STEPPINGS = {Product.MILAN: "Milan-B0", Product.GENOA: "Genoa-B1", Product.TURIN: "Turin-B0"}
OF_VERSION_5 = ("mbz range [0x1f8:0x2a0]", "report version is: 5. Expected between 2 and 4")
OF_TURIN = ("not an AMD KDS OID: 1.3.6.1.4.1.3704.1.3.9",)
WITHOUT_STEPPING = ('unknown product name (new stepping published?): \\"Genoa\\"',)


class AMDNames(Pki):
    """A PKI whose names are those that go-sev-guest demands, steppings too."""

    def names(self, common_name: str) -> x509.Names:
        """Return a name just as AMD writes it."""
        return (
            (x509.UNIT, "Engineering"),
            (x509.COUNTRY, "US"),
            ("2.5.4.7", "Santa Clara"),
            ("2.5.4.8", "CA"),
            (x509.ORGANIZATION, "Advanced Micro Devices"),
            (x509.COMMON_NAME, common_name),
        )

    def vek_extensions(self, *args: Any, csp_id: str | None, **rest: Any) -> list[bytes]:
        """Return the extensions, of a VCEK with its stepping."""
        found = super().vek_extensions(*args, csp_id=csp_id, **rest)
        if csp_id is None:
            name = x509.text(STEPPINGS[self.product], 0x16)
            found[1] = x509.extension("1.3.6.1.4.1.3704.1.2", name)
        return found


@dataclass(frozen=True, kw_only=True)
class Case:
    """One report, who vouches for it, and why go-sev-guest may see it otherwise."""

    report: bytes
    vek: bytes
    lines: Lines
    at: datetime
    data: bytes
    otherwise: tuple[str, ...] = ()

    def ours(self) -> bool:
        """Say whether we call it authentic."""
        evidence = sev_snp.parse({"report": self.report, "vek": self.vek})
        try:
            sev_snp.verify(
                evidence, endorsements=Endorsements(lines=self.lines), report_data=self.data, at=self.at
            )
        except HardwareEvidenceRejected:
            return False
        return True

    def asked(self) -> str:
        """Return what go-sev-guest is asked."""
        vek = parse_vek(self.vek)
        line = self.lines[vek.product]
        blobs = {
            "Report": self.report,
            "Vek": self.vek,
            "Ark": line.ark.der,
            "Ask": line.ask.der,
            "Asvk": line.asvk.der,
            "Data": self.data,
        }
        product = vek.product.value if vek.is_vlek else STEPPINGS[vek.product]
        said = {"Vlek": vek.is_vlek, "Line": vek.product, "Product": product, "Now": int(self.at.timestamp())}
        return json.dumps({name: b64encode(blob) for name, blob in blobs.items()} | said)

    def flipped(self) -> Iterator[Case]:
        """Give the report itself, and the same with a bit of each part flipped."""
        yield self
        for place in FLIPPED:
            report = bytearray(self.report)
            report[place] ^= 1
            yield Case(
                report=bytes(report),
                vek=self.vek,
                lines=self.lines,
                at=self.at,
                data=self.data,
                otherwise=self.otherwise,
            )


def of_the_kit() -> Iterator[Case]:
    """Give reports of each line and version, by VCEK and VLEK."""
    for product in Product:
        for csp_id in (None, "cc-eu.example"):
            made = Processor(pki=AMDNames(product), csp_id=csp_id)
            for version in range(3 if product is Product.TURIN else 2, 6):
                why = OF_TURIN if product is Product.TURIN else OF_VERSION_5 if version == 5 else ()
                yield Case(
                    report=made.report(DATA, version=version),
                    vek=made.vek,
                    lines=made.endorsements().lines,
                    at=AT,
                    data=DATA,
                    otherwise=why,
                )


def of_processors() -> Iterator[Case]:
    """Give the genuine reports."""
    reasons = {
        "snp-genoa-v5": OF_VERSION_5,
        "snp-turin-v5": OF_VERSION_5,
        "snp-genoa-v3-configfs": WITHOUT_STEPPING,
    }
    for entry in vectors("sev-snp-report"):
        evidence = sev_snp.parse(members(entry))
        assert evidence.vek is not None
        yield Case(
            report=evidence.raw,
            vek=der_of(evidence.vek, "VEK", "CERTIFICATE"),
            lines=tee_bundle.load().amd,
            at=clock_of(entry),
            data=evidence.report.report_data,
            otherwise=reasons.get(entry["id"], ()),
        )


def judge(cases: list[Case]) -> None:
    """Hold both answers together: alike, or ours good and theirs one of the reasons that stand above."""
    try:
        program = trixie.go_sev_guest()
    except trixie.NotThere as e:
        pytest.skip(f"go-sev-guest cannot be built here: {e}")
    every = [each for case in cases for each in case.flipped()]
    asked = "".join(each.asked() + "\n" for each in every)
    said = subprocess.run(
        [program], input=asked, capture_output=True, text=True, check=True, timeout=120
    ).stdout.splitlines()
    assert len(said) == len(every)
    for case, answer in zip(every, said, strict=True):
        if case.ours() is (answer == "good"):
            continue
        assert case.ours(), answer
        assert any(reason in answer for reason in case.otherwise), answer


def of_a_wrong_vcek() -> Iterator[Case]:
    """Give reports whose signature is right and whose VCEK is not: of another TCB, another chip, out of date."""
    made = Processor(pki=AMDNames(Product.GENOA))
    lower = replace(made, tcb=made.tcb | {"snp": 26})
    other = replace(made, seed="other")
    past = replace(made, not_after=AT - timedelta(days=1))
    for wrong in (lower, other, past):
        yield Case(
            report=made.report(DATA),
            vek=wrong.certificate(key=made.key),
            lines=made.endorsements().lines,
            at=AT,
            data=DATA,
        )


def test_a_wrong_vcek() -> None:
    """Both refuse them."""
    cases = list(of_a_wrong_vcek())
    assert not any(case.ours() for case in cases)
    judge(cases)


def test_reports_of_the_kit() -> None:
    """Milan, Genoa and Turin, versions 2 to 5."""
    judge(list(of_the_kit()))


@needs_vectors
def test_reports_of_processors() -> None:
    """Those that processors made, debug and VLEK among them, and two by a wrong VCEK."""
    judge(list(of_processors()))
