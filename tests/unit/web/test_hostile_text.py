"""Whatever machines, certificates, boot logs, receivers and people's names say is text: on every page, and in files."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from unittest import mock
from urllib.parse import quote

import pytest

from attestation.api import NodeCSRDecisionDetail
from attestation.client import OperatorClient
from attestation.client.csv_line import FORMULA
from attestation.text import clean
from attestation.wire import pem
from attestation_testing.certificates import CertificateAuthority
from attestation_testing.event_logs import BootOptions, boot_log
from attestation_web.extensions.webhooks import DeliveryDetail, DeliveryResponse
from attestation_web.pages import webhooks
from tests.fixtures import configurations
from tests.fixtures.estate import Estate, estate
from tests.fixtures.reading import Reader, crawl, shape_of
from tests.fixtures.web import EVERYTHING

CORPUS: Final = {
    "script": '"><script>alert(1)</script>',
    "attribute": "' onmouseover='alert(1)' x=\" onfocus=\"alert(1)\" autofocus ",
    "element": "<img src=x onerror=alert(1)><svg onload=alert(1)>",
    "end of what is around it": "</title></textarea></style></script></option><base href=//evil.example>",
    "address": "javascript:alert(1)//https://evil.example",
    "template": "{{7*7}}{%if 1%}${7*7}#{7*7}<%=7*7%>",
    "entities": "&lt;script&gt;&#x3c;<!--]]>",
    "other way round": "safe\u202egpj.exe\u2066\u2067\u200f\u061c",
    "right to left": "שלום مرحبا",
    "emoji": "👩\u200d👩\u200d👧 💥\ufe0f",
    "control": "\x85\x9b31m\u2028\u2029\ufeff\u00ad\ue000",
    "formula": "=cmd|' /C calc'!A0;@SUM(1);+1;-1",
    "long": "A" * 128,
}
DECEIVES: Final = re.compile(
    "[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c\ufeff\u2028\u2029\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
FIELDS: Final = ("hw_serial", "hw_product", "hw_mac", "hw_uuid")


def _furnish(there: Estate) -> None:
    """Put the corpus wherever somebody else than us chooses a text."""
    operator = there.service.operator()
    short = [text for name, text in CORPUS.items() if name != "long"]
    everything = "".join(short)
    # 1. What machines say of themselves: each text of the corpus in each of its fields, and 64 kB in a boot log.
    for number, text in enumerate(CORPUS.values()):
        hints: dict[str, Any] = dict.fromkeys(FIELDS, text[:128])
        there.introduced(20 + number, **hints)
    booted = boot_log(
        BootOptions(
            command_line=everything + "B" * 65_536,
            databases=(CORPUS["script"], CORPUS["template"]),
            authority=CORPUS["script"],
            sbat=everything,
        )
    )
    policy = {
        "format": "itl-tpm-policy/1",
        "name": "measured",
        "version": 1,
        "bank": "sha256",
        "pcrs": {"4": {"any_of": ["11" * 32]}, "7": {"any_of": ["11" * 32]}, "8": {"any_of": ["11" * 32]}},
        "event_log": "required",
    }
    held = there.attested(3, "w-3")
    fails = there.introduced(1, hw_serial=CORPUS["script"], hw_product=CORPUS["template"])
    operator.approve(fails.machine_id, "worker-app")
    operator.call("POST", "/policies", json=policy)
    operator.call("PUT", "/policies/assignments/fleet/*", json={"policy": "measured@1"})
    there.boots(fails, booted)
    # 2. Names in certificates: of an issuer that nobody knows, and of one that is believed.
    stranger = CertificateAuthority(everything[:60], seed=3)
    there.introduced(2, certificate={"issuer": stranger, "chain": ()})
    believed = CertificateAuthority(CORPUS["script"] + CORPUS["other way round"], seed=4)
    alice = there.browser(rights=EVERYTHING)
    sent = alice.post(
        "/trust/add", data=alice.form("/trust/add") | {"pem": pem("CERTIFICATE", believed.certificate)}
    )
    ceremony = sent.headers["Location"].partition("dash.example")[2] or sent.headers["Location"]
    digest = re.search(r"SHA-256 of this certificate</dt><dd>([0-9a-f ]+)<", alice.page(ceremony))
    assert digest
    filled = {"role": "anchor", "vendor": "IFX", "reason": everything[:200], "fingerprint": digest[1]}
    assert alice.act(ceremony, **filled).status_code == 303
    # 3. Names, reasons and descriptions of people; what a receiver is called.
    mallory = there.person('<script>alert("m")</script>')
    lock = mallory.act(f"/machines/{held.machine_id}/lock", reason=everything[:400])
    assert lock.status_code == 303, lock.text
    for text in ("Machines | where hw_serial == '<script>alert(1)</script>'", f"Machines // {everything}"):
        name = f"q{len(text)}"
        kept = alice.act("/query/save", name=name, q=text, description=everything[:200], shared="yes")
        assert kept.status_code == 303, kept.text
    hook = f"https://hooks.example/in?x={quote(CORPUS['script'])}&y='{{{{7*7}}}}"
    added = alice.act("/webhooks/add", url=hook, **{"event:*": "yes"})
    assert added.status_code == 303, added.text
    secret = {"name": "db", "value": "hush", "description": everything[:200]}
    operator.call("POST", f"/secrets/machines/{held.machine_id}/secrets", json=secret)
    operator.call("POST", "/shared-secrets/", json=secret)
    # 4. Notes of configurations, and names in them.
    note = {"note": clean(everything)[:200]}
    place = f"/machines/{held.machine_id}/patches"
    for number in (1, 2):
        named = (
            f'machine: {{nodeLabels: {{"a{number}": {json.dumps(CORPUS["script"] + CORPUS["template"])}}}}}\n'
        )
        configurations.activated(
            operator, configurations.imported(operator, configurations.base("hush"), **note)
        )
        configurations.activated(operator, configurations.imported(operator, named, place, **note), place)


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """Everything that pages show, all of it hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    with estate(folder, config_kek=(configurations.key(folder),)) as made:
        _furnish(made)
        yield made


@pytest.fixture(scope="module")
def pages(there: Estate) -> Mapping[str, str]:
    """Every kind of page that a link leads to, for somebody who may do everything."""
    return crawl(there.browser("eve", rights=EVERYTHING))


@pytest.mark.threat("T274")
def test_it_is_text_on_every_page(pages: Mapping[str, str]) -> None:
    """No element, no handler, no address of it, nothing that turns a line around; no template of it is filled in."""
    shapes = {shape_of(path) for path in pages}
    assert len(shapes) > 80, sorted(shapes)
    for path, page in pages.items():
        assert Reader(page).faults == [], path
        assert DECEIVES.findall(page) == [], path
        assert "49${" not in page, path
        assert "7*749" not in page, path


@pytest.mark.threat("T274")
@pytest.mark.parametrize("name", CORPUS)
def test_it_is_shown_as_it_is(there: Estate, pages: Mapping[str, str], name: str) -> None:
    """In the list, the inbox and the rows of a query stands what was said, with signs for what deceives."""
    said = clean(CORPUS[name][:128])
    shown = [
        Reader(
            there.browser().page(f"/machines?column=machine&column=hardware&q={quote(CORPUS[name][:12])}")
        ).text,
        "".join(Reader(page).text for path, page in pages.items() if path.startswith("/inbox")),
        Reader(
            there.browser().page("/query?q=" + quote("Machines | project hw_serial | sort by hw_serial asc"))
        ).text,
    ]
    squeezed = [" ".join(text.split()) for text in shown]
    assert [" ".join(said.split()) in text for text in squeezed] == [True, True, True]


@pytest.mark.threat("T274")
def test_a_boot_log_of_a_stranger_is_text(there: Estate) -> None:
    """Its command line, its names and its 64 kB: on the result and in the browser of its events."""
    alice = there.browser()
    listed = there.service.operator().call("GET", "/machines?status=registered")["items"]
    (machine,) = [m for m in listed if m["hw_serial"] == CORPUS["script"]]
    (result,) = there.service.operator().call("GET", f"/machines/{machine['machine_id']}/results")["items"]
    at = f"/machines/{machine['machine_id']}/results/{result['result_id']}"
    for path in (at, f"{at}/events", f"{at}/events?pcr=8", f"{at}/events?q=%3Cscript%3E"):
        page = Reader(alice.page(path))
        assert page.faults == [], path
        assert "<script>alert(1)</script>" in page.text, path
    assert 'kernel_cmdline: /vmlinuz "><script>' in Reader(alice.page(f"{at}/events?pcr=8")).text


@pytest.mark.threat("T274")
def test_what_receivers_and_clusters_say_is_text(there: Estate) -> None:
    """What an endpoint answered and what a cluster calls its nodes, as the wire models carry them."""
    everything = "".join(text for name, text in CORPUS.items() if name != "long")
    long = everything + "C" * 65_536
    alice, at = there.browser("eve", rights=EVERYTHING), there.service.clock.now()
    sent = DeliveryDetail(
        delivery=DeliveryResponse(
            delivery_id="d-1",
            webhook_id="w-1",
            event_type="machine.locked",
            status="dead",
            attempts=9,
            next_attempt_at=None,
            response_status=500,
            error=everything,
            created_at=at,
            delivered_at=None,
            duration_ms=5,
        ),
        payload=json.dumps({"hostname": everything}),
        response_body=long,
    )
    decided = NodeCSRDecisionDetail(
        result_id="ab" * 16,
        decision="deny",
        reason="NotAttested",
        message=everything[:1000],
        node_name=everything[:200],
        cluster_id="default",
        csr_name=everything[:200],
        csr_uid="u-1",
        signer_name=everything[:200],
        at=at,
    )
    with mock.patch.object(webhooks, "_client") as client:
        client.return_value.ask.return_value = sent
        pages = [alice.page("/webhooks/w-1/deliveries/d-1")]
    with mock.patch.object(OperatorClient, "one_page", return_value=([decided], None)):
        pages.append(alice.page("/clusters"))
    for page in pages:
        read = Reader(page)
        assert read.faults == []
        assert DECEIVES.findall(page) == []
        assert "<script>alert(1)</script>" in read.text
        assert "{{7*7}}" in read.text


@pytest.mark.threat("T274")
@pytest.mark.parametrize(
    "path",
    [
        "/machines/export.csv",
        "/query/results.csv?q=" + quote("Machines | project hw_serial, hw_product, hw_mac, hw_uuid"),
        "/query/results.csv?q=" + quote("AuditLog | project actor, detail"),
    ],
    ids=["machines", "a query", "the audit log"],
)
def test_no_file_calculates(there: Estate, path: str) -> None:
    """No field of a CSV begins as a formula, in any of its parts; no line of it is one that somebody else made."""
    answer = there.browser("eve", rights=EVERYTHING).get(path)
    assert answer.status_code == 200
    text = answer.text
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == text.count("\r\n"), "each record is one line"
    assert len({len(row) for row in rows}) == 1
    assert len(rows) > 3
    for row in rows:
        for cell in row:
            assert not [part for part in cell.split(";") if part.lstrip().startswith(FORMULA)], cell
            assert not DECEIVES.search(cell), cell
    assert any("alert(1)" in cell or "alert(" in cell for row in rows for cell in row)


def test_what_somebody_fills_in_comes_back_as_it_was(there: Estate) -> None:
    """A field of a form holds each character of it: what is shown is cleaned, what is sent on is not."""
    odd = f"{CORPUS['emoji']}{CORPUS['right to left']}"
    asked = f"Machines | where hw_serial == '{odd}'"
    page = there.browser().page(f"/query?check=yes&q={quote(asked)}")
    (typed,) = re.findall(r"<textarea[^>]*>(.*?)</textarea>", page, re.DOTALL)
    assert html.unescape(typed) == asked
    assert f'value="{html.escape(odd)}"' in there.browser().page(f"/machines?q={quote(odd)}")
