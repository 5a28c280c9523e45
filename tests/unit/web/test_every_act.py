"""What each act of the dashboard demands: a right, a login of lately, something that is typed; one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urljoin, urlsplit

import pytest

from attestation.store import Tx
from attestation.wire import pem
from attestation_service.auth import Duty
from attestation_web.border.forms import FIELD, signature
from attestation_web.page.acting import TYPED_FIELD
from tests.contract.test_store_console_codes import a_code
from tests.fixtures import configurations
from tests.fixtures.estate import Estate, estate
from tests.fixtures.reading import Reader, crawl, shape_of
from tests.fixtures.vendor import ROOT
from tests.fixtures.web import AUDITOR, VIEWER, Browser
from tests.unit.service.test_trust import sha256

LONG_AGO: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What an act demands.

    Args:
        path: Its address; `{machine}` and so on stand for what there is in the estate.
        fresh: Who does it has logged in lately.
        typed: What is typed, likewise; nothing where it can be undone.
        right: Who may do it.
    """

    path: str
    fresh: bool = False
    typed: str | None = None
    right: str = "act"


ACTS: Final[Mapping[str, Demand]] = {
    "approvals.agree": Demand(path="/approvals/{proposal}/agree", fresh=True),
    "approvals.object_": Demand(path="/approvals/{proposal}/object"),
    "approvals.withdraw": Demand(path="/approvals/{proposal}/withdraw"),
    "certificates.refuse": Demand(path="/certificates/refuse", fresh=True, typed="refuse"),
    "certificates.revoke": Demand(path="/certificates/{serial}/revoke", fresh=True, typed="{subject}"),
    "certificates.revoke_of_person": Demand(
        path="/certificates/people/{serial}/revoke", fresh=True, typed="{subject}"
    ),
    "certificates.rotate": Demand(path="/certificates/ca/machine/retire", fresh=True, typed="machine"),
    "configurations.activate": Demand(
        path="/configurations/default/worker-app/1/activate", fresh=True, typed="default/worker-app"
    ),
    "consoles.approve": Demand(path="/consoles/{console}/approve", fresh=True, typed="{console}"),
    "consoles.deny": Demand(path="/consoles/{console}/deny"),
    "extensions.retry": Demand(path="/extensions/webhooks/retry"),
    "extensions.retry_one": Demand(path="/extensions/webhooks/dead-letters/x/retry"),
    "inbox.approve": Demand(path="/inbox/{waits}/approve", fresh=True),
    "inbox.approve_several": Demand(path="/inbox/approve-several?machine={waits}", fresh=True),
    "inbox.reject": Demand(path="/inbox/{waits}/reject"),
    "machines.activate_patch": Demand(path="/machines/{machine}/patches/1/activate", fresh=True),
    "machines.ak_reset": Demand(path="/machines/{machine}/ak-reset", fresh=True, typed="w-1"),
    "machines.approve_hardware": Demand(path="/machines/{machine}/approve-hardware", fresh=True),
    "machines.delete": Demand(path="/machines/{machine}/delete", fresh=True, typed="w-1"),
    "machines.delete_view": Demand(path="/machines/views/mine/delete", right="query"),
    "machines.hold": Demand(path="/machines/{machine}/hold"),
    "machines.labels": Demand(path="/machines/{machine}/labels"),
    "machines.lock": Demand(path="/machines/{machine}/lock"),
    "machines.lock_several": Demand(path="/machines/lock?machine={machine}"),
    "machines.redeliver": Demand(path="/machines/{machine}/redeliver", fresh=True),
    "machines.release": Demand(path="/machines/{machine}/release", fresh=True),
    "machines.replace": Demand(path="/machines/{machine}/replace", fresh=True, typed="w-1"),
    "machines.revoke": Demand(path="/machines/{machine}/revoke", fresh=True, typed="w-1"),
    "machines.role": Demand(path="/machines/{machine}/role", fresh=True),
    "machines.save_view": Demand(path="/machines/views/save", right="query"),
    "machines.unhold": Demand(path="/machines/{machine}/unhold", fresh=True),
    "machines.unlock": Demand(path="/machines/{machine}/unlock", fresh=True),
    "policies.activate": Demand(path="/policies/at/fleet/*/activate?policy=a@1", fresh=True),
    "policies.create": Demand(path="/policies/create?draft={draft}", fresh=True),
    "policies.end": Demand(path="/policies/at/role/worker-app/end", fresh=True, typed="role worker-app"),
    "policies.roll_back": Demand(path="/policies/at/role/worker-app/roll-back", fresh=True),
    "query.delete": Demand(path="/query/saved/mine/delete", right="query"),
    "query.delete_shared": Demand(path="/query/shared/{saved}/delete"),
    "query.save": Demand(path="/query/save?q=Machines", right="query"),
    "query.take_over": Demand(path="/query/shared/{saved}/take-over"),
    "trust.believe": Demand(path="{ceremony}", fresh=True),
    "trust.distrust": Demand(path="/trust/certificates/{ca}/distrust", fresh=True, typed="{ca:.8}"),
    "trust.refresh": Demand(path="/trust/collateral/refresh"),
    "trust.restore": Demand(path="/trust/certificates/{ca}/restore", fresh=True),
    "webhooks.add": Demand(path="/webhooks/add"),
    "webhooks.change": Demand(path="/webhooks/{hook}/change"),
    "webhooks.delete": Demand(path="/webhooks/{hook}/delete", typed="hooks.example"),
    "webhooks.disable": Demand(path="/webhooks/{hook}/disable"),
    "webhooks.enable": Demand(path="/webhooks/{hook}/enable"),
    "webhooks.replay": Demand(path="/webhooks/{hook}/deliveries/x/replay"),
    "webhooks.replay_dead": Demand(path="/webhooks/{hook}/replay"),
    "webhooks.rotate": Demand(path="/webhooks/{hook}/rotate"),
    "webhooks.test": Demand(path="/webhooks/{hook}/test"),
}
"""By endpoint. The ceremony's fingerprint, and that of who agrees, are fields: their own tests are with their pages."""

DOCUMENT: Final = {
    "format": "itl-tpm-policy/1",
    "name": "a",
    "version": 1,
    "bank": "sha256",
    "pcrs": {"7": {"any_of": ["ab" * 32]}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A service under dual control with one of everything, and alice, who asked for a control plane."""

    there: Estate
    alice: Browser
    names: Mapping[str, str]

    def path(self, demand: Demand) -> str:
        """Return the address of an act in it."""
        return demand.path.format(**self.names)

    def typed(self, demand: Demand) -> str | None:
        """Return what is typed before it."""
        return None if demand.typed is None else demand.typed.format(**self.names)


def _place(address: str) -> str:
    return address.partition("dash.example")[2] or address


def _ask(tx: Tx) -> None:
    """Let a machine show a code on its console, for years."""
    ends = datetime.now(UTC) + timedelta(days=10_000)
    tx.console_codes.add(a_code(user_code="BBBB-CCCC", expires_at=ends, kept_until=ends))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One of everything that an act is about."""
    folder = tmp_path_factory.mktemp("acts")
    with estate(folder, dual_control_roles="controlplane", config_kek=(configurations.key(folder),)) as there:
        alice = there.person("alice")
        made = there.attested(1, "w-1")
        made.certificate(made.keys.create_signing_key())
        waits = there.introduced(2)
        asked = {"role": "controlplane", "cluster_id": "default", "hostname": "cp-1", "accept_ek": "yes"}
        assert alice.act(f"/inbox/{waits.machine_id}/approve", **asked).status_code == 303
        there.service.run(there.service.app.state.resources.store.write(_ask))
        operator = there.service.operator()
        configurations.activated(operator, configurations.imported(operator, configurations.base("hush")))
        configurations.imported(operator, "debug: true\n", f"/machines/{made.machine_id}/patches")
        proposal = re.search(r"/approvals/([0-9a-f]{64})", alice.page("/inbox"))
        serial = re.search(r'href="/certificates/([0-9a-f]{40})"', alice.page("/certificates"))
        added = alice.act("/webhooks/add", url="https://hooks.example/in", **{"event:*": "yes"})
        assert added.status_code == 303, added.text
        hook = re.search(r'href="/webhooks/([0-9a-f-]{36})"', alice.page("/webhooks"))
        brought = {"pem": pem("CERTIFICATE", ROOT.certificate)}
        ceremony = alice.post("/trust/add", data=alice.form("/trust/add") | brought).headers["Location"]
        written = {"document": json.dumps(DOCUMENT), "to": "create"}
        draft = alice.post("/policies/edit", data=alice.form("/policies/edit") | written).headers["Location"]
        kept = {"name": "shared", "q": "Machines", "shared": "yes"}
        bob = there.person("bob")
        assert bob.act("/query/save", **kept).status_code == 303
        assert bob.act("/machines/views/save?status=attested", name="view", shared="yes").status_code == 303
        there.service.operator().call("POST", "/policies", json={**DOCUMENT, "name": "other"})
        place = {"json": {"policy": "other@1"}}
        there.service.operator().call("PUT", "/policies/assignments/role/worker-app", **place)
        saved = re.search(r"/query/shared/(\d+)/", alice.page("/query"))
        assert proposal
        assert serial
        assert hook
        subject = re.search(r"Type <code>([^<]+)</code>", alice.page(f"/certificates/{serial[1]}/revoke"))
        assert subject
        yield Scene(
            there=there,
            alice=alice,
            names={
                "machine": made.machine_id,
                "console": "BBBB-CCCC",
                "waits": waits.machine_id,
                "proposal": proposal[1],
                "serial": serial[1],
                "subject": subject[1],
                "hook": hook[1],
                "ca": sha256(ROOT),
                "ceremony": _place(ceremony),
                "draft": draft.partition("draft=")[2],
                "saved": saved[1] if saved else "1",
            },
        )


def test_each_act_is_looked_at(scene: Scene) -> None:
    """Whoever adds one says here what it demands."""
    acts = {
        rule.endpoint
        for rule in scene.there.app.url_map.iter_rules()
        if {"GET", "POST"} <= (rule.methods or set())
    }
    assert acts == set(ACTS)


@pytest.mark.threat("T275")
def test_each_act_demands_what_it_demands(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its page says so beforehand: to log in again, what is typed, and what it will do."""
    alice = scene.alice
    monkeypatch.setattr(alice.session, "authenticated_at", alice.session.authenticated_at - LONG_AGO)
    for endpoint, demand in ACTS.items():
        page = alice.page(scene.path(demand))
        assert ("asked to log in again" in page) is demand.fresh, endpoint
        typed = re.findall(r"Type <code>([^<]*)</code> to confirm", page)
        assert typed == ([] if demand.typed is None else [scene.typed(demand)]), endpoint
        will = re.search(r'<ul class="will">(.*?)</ul>', page, re.DOTALL)
        assert will, endpoint
        assert "<li>" in will[1], endpoint


def test_what_an_act_is_about_can_be_copied(scene: Scene) -> None:
    """Ids and digests whole; but not where somebody types what they read at the machine, or its vendor publishes."""
    machine, locked = scene.names["machine"], scene.alice.page(scene.path(ACTS["machines.lock"]))
    assert f'data-copy="{machine}"' in locked
    assert re.search(r'EK fingerprint</dt><dd>\s*<span class="ident">.*? data-copy="[0-9a-f]{96}"', locked)
    assert f'data-copy="{scene.names["proposal"]}"' in scene.alice.page(scene.path(ACTS["approvals.object_"]))
    for endpoint in ("inbox.approve", "approvals.agree", "trust.believe"):
        assert "data-copy=" not in scene.alice.page(scene.path(ACTS[endpoint])), endpoint
    said = scene.alice.page(f"/machines/{machine}")
    assert re.search(r'<dt>Serial</dt><dd>\s*<span class="(ident|none)">', said)


@pytest.mark.threat("T275")
def test_what_is_typed_wrongly_does_nothing(scene: Scene) -> None:
    """At each act that asks for it; a part of it, and the machine's own words, are not it."""
    looked_at = 0
    for endpoint, demand in ACTS.items():
        if demand.typed is None:
            continue
        path = scene.path(demand)
        form = scene.alice.form(path) | {"reason": "x", "note": "x", "new": "x", "spki_sha256": "ab" * 32}
        for wrong in ("", (scene.typed(demand) or "")[:-1], "unknown"):
            answer = scene.alice.post(path.partition("?")[0], data=form | {TYPED_FIELD: wrong})
            assert answer.status_code == 422, (endpoint, wrong)
            assert "to confirm." in answer.text, endpoint
        looked_at += 1
    assert looked_at > 8


@pytest.mark.threat("T276")
@pytest.mark.parametrize("rights", [VIEWER, AUDITOR], ids=["viewer", "auditor"])
def test_who_may_not_is_refused_each(scene: Scene, rights: tuple[str, ...]) -> None:
    """Its page and its form, also with a form that is theirs; what everybody may who asks queries is not among them."""
    vera = scene.there.browser("vera", rights=rights)
    for endpoint, demand in ACTS.items():
        path = scene.path(demand)
        bare = path.partition("?")[0]
        if demand.right in rights:
            # The list of machines takes the right to read beside.
            continue
        assert vera.get(path).status_code == 403, endpoint
        genuine = {FIELD: signature(vera.session.key, bare), TYPED_FIELD: scene.typed(demand) or ""}
        assert vera.post(bare, data=genuine).status_code == 403, endpoint


@pytest.mark.threat("T276")
def test_a_page_that_only_prepares_an_act_takes_the_right_to_act(scene: Scene) -> None:
    """The editor, the dry run, learning, the ceremony's first step, an archive: who may not act prepares nothing."""
    forms = tuple(f"/policies/{name}" for name in ("edit", "learn", "try"))
    forms += tuple(f"/trust/{name}" for name in ("add", "verify", "collateral/import"))
    posts = {
        rule.rule
        for rule in scene.there.app.url_map.iter_rules()
        if "POST" in (rule.methods or ())
        and rule.endpoint not in ACTS
        and not rule.endpoint.startswith("login.")
    }
    assert posts == {*forms, "/account/theme", "/audit/compare"}
    for rights in (VIEWER, AUDITOR):
        vera = scene.there.browser("vera", rights=rights)
        for path in (*forms, "/policies/activate", "/policies/try/x"):
            assert vera.get(path).status_code == 403, path
        reads_the_log = () if "audit" in rights else ("/audit/compare",)
        for path in (*forms, *reads_the_log):
            assert vera.post(path, data={FIELD: signature(vera.session.key, path)}).status_code == 403, path


@pytest.mark.threat("T270")
def test_no_form_is_taken_that_was_given_for_another_act(scene: Scene) -> None:
    """Each act knows its own: by the MAC of its address; without one it does nothing."""
    other = scene.alice.form("/account", "/account/theme")
    for endpoint, demand in ACTS.items():
        path = scene.path(demand).partition("?")[0]
        for sent in ({}, other):
            answer = scene.alice.post(path, data=sent)
            assert answer.status_code == 400, endpoint
            assert "Nothing was done." in answer.text, endpoint


@pytest.mark.threat("T276")
@pytest.mark.parametrize("rights", [VIEWER, AUDITOR], ids=["viewer", "auditor"])
def test_who_may_not_is_offered_nothing(scene: Scene, rights: tuple[str, ...]) -> None:
    """No link, button or form of any kind of page leads them to an act, nor to what prepares one."""
    addresses = scene.there.app.url_map.bind("dash.example")
    # Also of somebody who voted while they might; of a proposal that is over; of an entry about a machine.
    told = scene.there.service.operator().call("GET", "/audit", params={"machine_id": scene.names["machine"]})
    entry = told["items"][0]
    also = f"/approvals/{'0' * 64}" if rights is VIEWER else f"/audit/{entry['id']}"
    pages = crawl(scene.there.browser("alice", rights=rights), also)
    assert also in pages
    assert len({shape_of(path) for path in pages}) > (40 if rights is VIEWER else 10)
    prepares = (
        "/policies/edit",
        "/policies/learn",
        "/policies/try",
        "/policies/activate",
        "/trust/add",
        "/trust/verify",
        "/trust/collateral/import",
    )
    for path, page in pages.items():
        read = Reader(page)
        assert not re.search(r'<input type="checkbox"[^>]* name="machine"', page), path
        for link in read.links | read.sends - {"/account/theme", "/auth/logout"}:
            assert "audit" in rights or not link.startswith("/audit"), (path, link)
            assert "read" in rights or not link.startswith(("/machines", "/certificates")), (path, link)
            there = urlsplit(urljoin(path, link)).path
            assert not there.startswith(prepares), (path, link)
            endpoint, _ = addresses.match(there, return_rule=False)
            assert endpoint not in ACTS or ACTS[endpoint].right in rights, (path, link)


@pytest.mark.threat("T276")
def test_an_auditor_reads_no_secret_of_a_machine(scene: Scene) -> None:
    """Neither names, nor disk keys, nor the machine: the log names it, and leads nowhere that they may not go."""
    carol = scene.there.browser("carol", rights=AUDITOR)
    machine = scene.names["machine"]
    for tab in ("overview", "identity", "configuration", "certificates", "secrets", "disk-keys"):
        assert carol.get(f"/machines/{machine}?tab={tab}").status_code == 403, tab
    for path in (
        "/machines",
        "/machines/export.csv",
        "/inbox",
        "/secrets",
        f"/secrets?machine={machine}",
        "/webhooks",
    ):
        assert carol.get(path).status_code == 403, path
    # An entry about it: which of them the newest page of the log shows depends on what else was done.
    told = scene.there.service.operator().call("GET", "/audit", params={"machine_id": machine})
    also = f"/audit/{told['items'][0]['id']}"
    pages = crawl(carol, also)
    assert machine in pages[also], "the log names it"
    for path, page in pages.items():
        assert scene.there.service.canary not in page, path
        assert not [link for link in Reader(page).links if link.startswith("/machines")], path


@pytest.mark.threat("T276")
def test_the_entry_of_an_act_is_a_link_for_who_may_read_the_log(scene: Scene) -> None:
    """Its number is told to each who acts."""
    path = f"/machines/{scene.names['machine']}"
    both = (Duty.OPERATOR, Duty.AUDITOR)
    for duties, link in ((both, r'<a href="/audit/\d+">\d+</a>'), ((Duty.OPERATOR,), r"\d+")):
        olga = scene.there.person("olga", *duties)
        assert olga.act(f"{path}/labels", labels=f"rack={len(duties)}").status_code == 303
        told = re.search(r"<span class=\"entry\">(.*?)</span>", olga.page(path), re.DOTALL)
        assert told
        assert re.fullmatch(rf"Audit entry {link}\.", told[1]), told[1]
