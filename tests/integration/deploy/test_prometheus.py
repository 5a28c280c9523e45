"""A real Prometheus reads a real service, and every expression that we ship means something to it."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import httpx
import pytest
from prometheus_client import CollectorRegistry
from ruamel.yaml import YAML

from attestation_operator.hsm.gauges import Gauges
from attestation_testing import SoftwareNode
from tests.docs.pages import text
from tests.fixtures import prometheus
from tests.fixtures.machine import Machine
from tests.fixtures.prometheus import DEPLOY, ROOT, NotThere, Prometheus
from tests.fixtures.service import ServiceProcess
from tests.integration.replicas.conftest import until
from tools.ports import free_port

pytestmark = pytest.mark.slow

RULES: Final[list[dict[str, Any]]] = YAML(typ="safe", pure=True).load(
    (DEPLOY / "attestation.rules.yml").read_text()
)["groups"][0]["rules"]
ALERTS: Final = [rule for rule in RULES if "alert" in rule]
DASHBOARD: Final[dict[str, Any]] = json.loads((ROOT / "deploy" / "grafana" / "attestation.json").read_text())
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS: Final = [target["expr"] for panel in PANELS for target in panel["targets"]]

EMPTY: Final = {
    "attestation_collateral_seconds_until_expiry": "there is collateral where there is confidential hardware",
    "attestation_hsm_ca_seconds_until_expiry": "there are CA keys in hardware where a cluster has them",
    "attestation_hsm_lists_overdue": "likewise",
    "attestation_hsm_certificates_open": "likewise",
}
"""Metrics that have no series in a service for TPMs alone, and why."""
CONDITION: Final = re.compile(r"\s(?:==|<|>)\s[\d.]+(?=$| and)")
"""What makes an expression an alert: without it, it says how it is."""


def promtool(*arguments: str) -> None:
    """Run Debian's promtool in the folder that we ship."""
    try:
        program = prometheus.program("promtool")
    except NotThere as e:
        pytest.skip(str(e))
    done = subprocess.run(
        [program, *arguments],
        cwd=DEPLOY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "attestation.rules.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "attestation.test.yml"),
        ("check", "rules", "operator-hsm.rules.yml"),
        ("test", "rules", "operator-hsm.test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_finds_nothing(arguments: tuple[str, ...]) -> None:
    """Rules and configuration are ones, and alerts fire where they should."""
    promtool(*arguments)


def test_each_alert_is_tried_both_ways() -> None:
    """It is quiet where nothing is wrong, and fires where something is; each says what to do."""
    quiet, *loud = YAML(typ="safe", pure=True).load((DEPLOY / "attestation.test.yml").read_text())["tests"]
    names = {alert["alert"] for alert in ALERTS}
    assert {each["alertname"] for each in quiet["alert_rule_test"]} == names
    assert set(re.findall(r'alertname="(\w+)"', json.dumps(loud).replace("\\", ""))) == names
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"]["summary"].endswith(".")
        assert alert["annotations"]["description"]


def test_the_page_lists_the_alerts() -> None:
    """All of them, and none that there is not."""
    listed = re.findall(r"^\| `([A-Z]\w+)` \|", text("docs/operate/metrics.md"), flags=re.MULTILINE)
    assert listed == [alert["alert"] for alert in ALERTS]


def test_the_page_lists_the_alerts_of_keys_in_hardware() -> None:
    """Each is tried both ways, too; the metrics are those of the controller."""
    yaml = YAML(typ="safe", pure=True)
    rules = yaml.load((DEPLOY / "operator-hsm.rules.yml").read_text())["groups"][0]["rules"]
    listed = re.findall(r"^\| `(Hsm\w+)` \|", text("docs/kubernetes/hsm.md"), flags=re.MULTILINE)
    assert listed == [rule["alert"] for rule in rules]
    for tried in yaml.load((DEPLOY / "operator-hsm.test.yml").read_text())["tests"]:
        assert [each["alertname"] for each in tried["alert_rule_test"]] == listed
    registry = CollectorRegistry()
    Gauges(registry)
    there = {metric.name for metric in registry.collect()}
    assert {name for rule in rules for name in re.findall(r"itl_operator_\w+", rule["expr"])} == there


def test_the_dashboard_is_whole() -> None:
    """Each panel has a title, words, a unit, and expressions; panels do not lie over each other."""
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        assert all(each["datasource"]["uid"] == "${datasource}" for each in (panel, *panel["targets"]))
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        taken |= cells


def test_only_metrics_that_there_are_and_never_a_sum_over_replicas() -> None:
    """What is read stands on the page; numbers that every replica shows are not added."""
    documented = set(
        re.findall(r"^\| `(attestation_\w+)`", text("docs/operate/metrics.md"), flags=re.MULTILINE)
    )
    for expression in [*EXPRESSIONS, *(rule["expr"] for rule in RULES)]:
        for name in re.findall(r"\battestation_\w+", re.sub(r'"[^"]*"', "", expression)):
            assert name.removesuffix("_bucket") in documented, name
        assert not re.search(
            r"sum(?: by \([^)]*\))? ?\((?!max without \(instance\)|attestation:)", expression
        ), expression


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus beside a service of two workers where two machines attested and one waits."""
    folder = tmp_path_factory.mktemp("prometheus")
    listener = f"127.0.0.1:{free_port()}"
    service = ServiceProcess(
        directory=folder,
        workers=2,
        environment={
            "ITL_EXTENSIONS": "metrics",
            "ITL_METRICS_LISTEN": listener,
            "ITL_EXT_METRICS_FLUSH_SECONDS": "0.2",
            "ITL_MAINTENANCE_SECONDS": "1",
            "ITL_AUDIT_CHECKPOINT_SECONDS": "1",
        },
    )
    with ExitStack() as stack:
        try:
            (folder / "prometheus").mkdir()
            found = stack.enter_context(prometheus.running(folder / "prometheus", listener))
        except NotThere as e:
            pytest.skip(str(e))
        stack.callback(service.kill)
        service.start()
        operator = service.operator()
        stack.callback(operator.http.close)
        client = stack.enter_context(httpx.Client(base_url=service.url, timeout=60, trust_env=False))
        machines = [Machine(SoftwareNode(secrets.randbits(30)), client) for _ in range(2)]
        for machine in machines:
            machine.admitted(operator)
        until(lambda: bool(found.query('up{job="attestation"} == 1')), "a scrape")
        until(lambda: bool(found.query("sum(attestation_machine_attestations_total) >= 2")), "the counts")
        machines[0].attest()
        until(lambda: bool(found.query("sum(attestation_machine_attestations_total) >= 3")), "one more")
        until(lambda: all(rule["health"] != "unknown" for rule in found.rules()), "the rules")
        yield found


def explained(expression: str) -> bool:
    """Return True where it may be empty."""
    return any(name in expression for name in EMPTY)


def test_every_expression_returns_data(scraped: Prometheus) -> None:
    """Those of the dashboard, of recorded series, and of alerts without their condition."""
    asked = [*EXPRESSIONS, *(CONDITION.sub("", rule["expr"]) for rule in RULES)]
    asked += [rule["record"] for rule in RULES if "record" in rule]

    def without() -> list[str]:
        return [each for each in asked if not scraped.query(each) and not explained(each)]

    with contextlib.suppress(
        AssertionError
    ):  # a rate needs two scrapes, and what is recorded of it one more round
        until(lambda: not without(), "all of them", 30)
    assert without() == []


def test_the_rules_are_evaluated(scraped: Prometheus) -> None:
    """Without a fault, and nothing fires but what the test did itself: its operator is break-glass."""
    rules = scraped.rules()
    assert {rule["name"] for rule in rules} == {rule.get("alert") or rule["record"] for rule in RULES}
    assert {rule["health"] for rule in rules} == {"ok"}
    firing = {rule["name"] for rule in rules if rule.get("state") == "firing"}
    assert firing <= {"BreakGlassUsed"}


def test_numbers_are_those_of_the_service(scraped: Prometheus) -> None:
    """Two machines, both verified; three attestations, each with an age."""
    ((sample),) = scraped.query('attestation_machines_by_status{status="attested"}')
    assert sample["value"][1] == "2"
    ((ages),) = scraped.query("attestation_quote_age_seconds_count")
    ((judged),) = scraped.query("sum(attestation_machine_attestations_total)")
    assert ages["value"][1] == judged["value"][1]
