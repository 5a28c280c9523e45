"""What a machine proved, part by part: boot, EK chain, confidential hardware, disk keys; with evidence made for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from attestation.tpm import parse_public
from attestation_testing import SoftwareNode
from attestation_testing.certificates import CAOptions, CertificateAuthority
from attestation_testing.event_logs import BootOptions, boot_log
from attestation_testing.tee.intel import ISSUED
from attestation_web.pages.machines import result
from tests.fixtures.estate import Estate, board, estate
from tests.fixtures.machine import Machine
from tests.fixtures.reading import Reader
from tests.fixtures.vendor import ROOT
from tests.fixtures.web import VIEWER
from tests.integration.agent.test_confidential import GuestRig
from tests.unit.service.test_trust import revoking

NORMAL = boot_log(BootOptions())
OTHER_KERNEL = boot_log(BootOptions(kernel="6.12.0-1"))
REVOKED = 12
PAST = (datetime(2019, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC))
EXPIRED = CertificateAuthority(
    "Infineon Expired Issuer", seed=5, parent=ROOT, options=CAOptions(validity=PAST)
)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """Everything that pages show; the issuer of test vendors revoked one EK certificate."""
    lists = tmp_path_factory.mktemp("lists")
    ek = parse_public(SoftwareNode(REVOKED).identify().ek_public)
    (lists / "issuer.crl").write_bytes(revoking(ek, ISSUED + timedelta(days=1)))
    with estate(tmp_path_factory.mktemp("estate"), tpm_crl_dir=lists) as made:
        yield made


@pytest.fixture(scope="module")
def failed(there: Estate) -> tuple[Machine, str]:
    """A machine that was verified with `NORMAL` and booted another kernel; and the page of that result."""
    values = NORMAL.pcrs()
    policy = {
        "format": "itl-tpm-policy/1",
        "name": "measured",
        "version": 1,
        "bank": "sha256",
        "pcrs": {str(pcr): {"any_of": [values[pcr].hex()]} for pcr in (4, 7)},
        "event_log": "required",
    }
    operator = there.service.operator()
    operator.call("POST", "/policies", json=policy)
    operator.call("PUT", "/policies/assignments/role/worker-infra", json={"policy": "measured@1"})
    machine = there.introduced(1)
    operator.approve(machine.machine_id, "worker-infra", hostname="b-1")
    there.boots(machine, NORMAL)
    there.boots(machine, OTHER_KERNEL)
    newest = operator.call("GET", f"/machines/{machine.machine_id}/results")["items"][0]["result_id"]
    return machine, f"/machines/{machine.machine_id}/results/{newest}"


# Boot


def test_a_register_that_differs_is_explained_in_words(there: Estate, failed: tuple[Machine, str]) -> None:
    """What it is, what it should be, which of its events changed since the last good boot, and where they are."""
    machine, at = failed
    page = there.browser().page(at)
    rows = re.findall(r'<tr class="failed">.*?</tr>', page, re.DOTALL)
    assert len(rows) == 1
    for words in (
        OTHER_KERNEL.pcrs()[4].hex(),
        NORMAL.pcrs()[4].hex(),
        "PCR 4 changed: kernel replaced",
        f"{at}/events?pcr=4",
    ):
        assert words in rows[0]
    text = Reader(page).text
    assert "the last good one before it" in text
    assert re.search(r"- event \d+ EV_EFI_BOOT_SERVICES_APPLICATION .*\n?.*\+ event \d+", text, re.DOTALL)
    assert "Secure Boot" in text
    assert "Third Party UEFI CA" in text
    assert "PCR 4 changed: kernel replaced" in there.browser().page(f"/machines/{machine.machine_id}")


def test_its_event_log_is_browsed(
    there: Estate, failed: tuple[Machine, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By register and by words; what the digest covers looks different from what is only said; page by page."""
    alice, at = there.browser(), f"{failed[1]}/events"
    every = Reader(alice.page(at)).text
    for words in ("SecureBoot = 1", "dbx: 3 entries", "accepted by db: Third Party UEFI CA"):
        assert words in every
    sevens = alice.page(f"{at}?pcr=7")
    assert "SecureBoot = 1" in sevens
    assert "BOOTX64" not in sevens
    assert "only said" not in sevens
    fours = alice.page(f"{at}?pcr=4&q=grub")
    assert re.findall(r"(\d+) in all", fours) == ["1"]
    assert "only said" in fours
    assert "No event fits." in alice.page(f"{at}?q=no-such-word")
    assert "No event fits." in alice.page(f"{at}?pcr=23")
    shown = re.search(r'data-copy="([0-9a-f]{64})"', alice.page(f"{at}?column=digest"))
    assert shown
    assert re.findall(r"(\d+) in all", alice.page(f"{at}?q={shown[1][:20]}")) == ["1"]
    monkeypatch.setattr(result, "EVENT_ROWS", 5)
    first = alice.page(at)
    later = re.search(r'<a href="([^"]+)" rel="next"', first)
    assert later
    assert "SecureBoot = 1" in first
    assert "SecureBoot = 1" not in alice.page(later[1].replace("&amp;", "&"))


def test_where_no_log_is_kept_it_says_what_to_do(there: Estate) -> None:
    """With its commands as commands."""
    machine = there.attested(2, "n-1")
    here = f"/machines/{machine.machine_id}"
    newest = re.search(rf"{here}/results/\d+", there.browser().page(f"{here}?tab=evidence"))
    assert newest
    for path in (newest[0], f"{newest[0]}/events"):
        page = there.browser().page(path)
        assert "<code>event_log: required</code> demands it" in page, path
        assert "`" not in Reader(page).text, path


# Who vouches for it


def _chain(there: Estate, machine: Machine) -> list[str]:
    """Return what the tree of its EK chain says, from the root on: a line for each certificate."""
    page = there.browser().page(f"/machines/{machine.machine_id}?tab=identity")
    tree = re.search(r'<ul class="tree">(.*)</ul>', page, re.DOTALL)
    assert tree, page
    assert tree[1].count("<ul>") == tree[1].count("<li>") - 1, "each stands below the one that vouches for it"
    return [" ".join(Reader(part).text.split()) for part in tree[1].split("<li>")[1:]]


def test_a_chain_that_is_good_is_a_tree_from_its_root(there: Estate) -> None:
    """Each certificate with its verdict, the anchor first."""
    found = _chain(there, there.introduced(11, certificate={}))
    assert [re.sub(r" [0-9a-f]{64}.*", "", line) for line in found] == [
        "good anchor Common Name: Infineon Test Root",
        "good intermediate Common Name: Infineon Test Issuer",
        "good EK certificate (empty subject)",
    ]


@pytest.mark.parametrize(
    ("seed", "certificate", "expected"),
    [
        (
            13,
            {"issuer": CertificateAuthority("Stranger", seed=3), "chain": ()},
            ["^unknown root issuer .*Stranger", "^not good EK certificate .*no issuer is known"],
        ),
        (REVOKED, {}, ["^good anchor", "^good intermediate", "^not good EK certificate .*revoked"]),
        (
            14,
            {"issuer": EXPIRED, "chain": (EXPIRED,)},
            ["^not good intermediate .*valid from 2019-01-01 to 2020-01-01, not now", "^good EK certificate"],
        ),
    ],
    ids=["unknown root", "revoked", "expired"],
)
def test_a_chain_that_is_not_says_of_which_certificate_and_why(
    there: Estate, seed: int, certificate: dict[str, object], expected: list[str]
) -> None:
    """Beside the certificate that it is about; the machine has the level of first use and waits."""
    machine = there.introduced(seed, certificate=certificate)
    found = _chain(there, machine)
    for pattern in expected:
        assert [line for line in found if re.search(pattern, line)], (pattern, found)
    page = there.browser().page(f"/machines/{machine.machine_id}?tab=identity")
    assert '<span class="badge bad">not vouched for</span>' in page
    assert "not proven" in page


# Confidential hardware


@pytest.mark.parametrize(
    ("tee", "name", "wrong"),
    [
        ("sev-snp", "SEV-SNP", {"sev_snp": {"measurement": ["11" * 48]}}),
        ("tdx", "TDX", {"tdx": {"mrtd": ["11" * 48]}}),
    ],
)
def test_findings_on_confidential_hardware_are_told(
    there: Estate, tmp_path: Path, tee: str, name: str, wrong: dict[str, object]
) -> None:
    """What each means and what to do; its processor vouches for it, no EK does; another launch than expected fails."""
    rig = GuestRig(there.service, tmp_path, tee)
    rig.admitted("generic")
    alice, here = there.browser(), f"/machines/{rig.machine_id}"
    overview = Reader(alice.page(here)).text
    assert f"{name}: What was launched in it is not compared" in overview
    identity = Reader(alice.page(f"{here}?tab=identity")).text
    assert "EK fingerprint" not in overview
    assert "EK certificate" not in overview
    assert "none: its processor signs what was launched in it" in overview
    assert "It has no TPM: the maker of its processor vouches" in identity
    assert "It counts (assurance “tee”) once" in identity
    assert "EK fingerprint" not in identity
    assert "EK certificate" not in identity
    operator = there.service.operator()
    policy = {"format": "itl-policy/2", "name": f"launch-{tee}", "version": 1, **wrong}
    operator.call("POST", "/policies", json=policy)
    operator.call(
        "PUT", f"/policies/assignments/machine/{rig.machine_id}", json={"policy": f"launch-{tee}@1"}
    )
    rig.once()
    newest = re.search(rf"{here}/results/\d+", alice.page(f"{here}?tab=evidence"))
    assert newest
    page = alice.page(newest[0])
    text = Reader(page).text
    assert f"{name}: Something else was launched in it than its policy expects" in text
    assert "Ask who builds the image whether it changed" in text
    assert "It has no TPM, so there is no PCR" in text
    assert "tpm0" not in text
    assert "`" not in text
    assert "<strong>" in page
    assert re.search(r'<span class="badge bad"[^>]*>failed</span> <strong>(snp-measurement|tdx-mrtd)', page)
    asked = Reader(alice.page(f"{here}/approve-hardware")).text
    chip = operator.machine(rig.machine_id)["hardware"]["chip"]
    assert chip in asked
    assert {"sev-snp": "AMD SEV-SNP", "tdx": "Intel TDX"}[tee] in asked
    # What was shown is approved, and nothing that it shows by the time that the button is pressed.
    form = alice.form(f"{here}/approve-hardware") | {"reason": "it was moved"}
    other = alice.post(f"{here}/approve-hardware", data=form | {"chip": "ab" * 8})
    assert other.status_code == 422, other.text
    operator.act(rig.machine_id, "lock")
    assert alice.post(f"{here}/approve-hardware", data=form).status_code == 409
    assert alice.act(f"{here}/approve-hardware", reason="it was moved").status_code == 303
    assert "The hardware of " in alice.page(here)


# Disk keys


def test_a_disk_key_is_held_asked_for_released_and_let_go(there: Estate) -> None:
    """Each is told before; who waits stands there with where it asks from; a viewer is offered none of it."""
    machine = there.attested(6, "k-1", hw_uuid=board())
    blob = there.disk_key(machine)
    alice, here = there.browser(), f"/machines/{machine.machine_id}"
    part = f"{here}?tab=disk-keys"
    page = Reader(alice.page(part)).text
    assert "Nothing is held: it gets its disk key by itself." in page
    assert "not retired" in page
    assert there.starts(machine, blob)

    assert alice.act(f"{here}/hold").status_code == 303
    page = alice.page(part)
    assert re.search(r"The disk key of k-1 is held\. <span class=\"entry\">Audit entry", page)
    assert f"{here}/unhold" in page
    assert f"{here}/release" not in page
    assert "it does not wait" in alice.page(f"{here}/release")

    assert not there.starts(machine, blob)
    page = alice.page(part)
    assert "It waits for its disk key" in page
    assert "from 192.0.2.6" in page
    assert f"{here}/release" in page
    vera = there.browser("vera", rights=VIEWER)
    seen = vera.page(part)
    assert "It waits for its disk key" in seen
    for act in ("hold", "unhold", "release"):
        assert f"{here}/{act}" not in seen
        assert vera.get(f"{here}/{act}").status_code == 403

    asked = Reader(alice.page(f"{here}/release")).text
    assert all(words in asked for words in ("192.0.2.6", "Asked last", "2026-11-"))
    assert "then it is held again" in asked
    assert alice.act(f"{here}/release", uses="2").status_code == 303
    page = Reader(alice.page(part)).text
    assert "k-1 may have 2 disk keys." in page
    assert re.search(r"Released by \S+ until .*; 2 left", page, re.DOTALL)
    assert there.starts(machine, blob)
    assert "1 left" in Reader(alice.page(part)).text
    assert there.starts(machine, blob)
    assert not there.starts(machine, blob), "two were released, no more"

    assert alice.act(f"{here}/unhold").status_code == 303
    assert "Nothing is held" in alice.page(part)
    assert there.starts(machine, blob)


def test_a_hold_of_its_cluster_is_shown_and_ended_elsewhere(there: Estate) -> None:
    """It is not this machine's: its page has no button that would end it for all."""
    machine = there.introduced(7, hw_uuid=board())
    there.service.operator().approve(machine.machine_id, "worker-app", cluster_id="edge", hostname="e-1")
    there.service.operator().call("POST", "/kms/holds", json={"scope": "cluster", "subject": "edge"})
    page = there.browser().page(f"/machines/{machine.machine_id}?tab=disk-keys")
    assert "Its cluster edge" in page
    assert "/unhold" not in page
