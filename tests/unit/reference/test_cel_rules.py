"""Expressions of CEL in policies: what is refused, what holds, what time it takes at most (docs/protocol/policy.md)."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
from cel_expr_python import cel as judge
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import PolicyInvalid
from attestation.reference.cel_rules import MAX_EXPRESSION, MAX_RULES, NAMES, broken, compiled
from attestation.reference.confidential import CelRule

SHOWN: dict[str, Any] = {
    "machine": {"role": "worker-app", "cluster": "c1", "assurance": "tee"},
    "sev_snp": {
        "product": "Milan",
        "measurement": "aa" * 48,
        "debug": False,
        "vmpl": 0,
        "csp_id": None,
        "tcb": {"reported": {"snp": 20, "microcode": 209}},
    },
    "tdx": {"advisories": ["INTEL-SA-00837", "INTEL-SA-00960"], "tcb_date": "2024-03-13T00:00:00Z"},
}
HOLDS: list[tuple[str, bool | None]] = [
    # Expression, and its value; None where it has none.
    ("true", True),
    ("false", False),
    ("1", None),
    ("'true'", None),
    ("tdx", None),
    ("!sev_snp.debug", True),
    ("sev_snp.debug == false && sev_snp.vmpl == 0", True),
    ("sev_snp.vmpl in [1, 2]", False),
    ("sev_snp.product in ['Milan', 'Genoa']", True),
    ("sev_snp.tcb.reported.snp >= 20", True),
    ("sev_snp.tcb.reported['microcode'] > 300", False),
    ("sev_snp.measurement.startsWith('aaaa') && size(sev_snp.measurement) == 96", True),
    ("sev_snp.csp_id == null", True),
    ("sev_snp.absent", None),
    ("sev_snp.absent == 1 || true", True),
    ("sev_snp.absent == 1 && false", False),
    ("sev_snp.absent == 1 || false", None),
    ("has(sev_snp.absent)", False),
    ("has(sev_snp.debug)", True),
    ("sgx.mrenclave == ''", None),
    ("!has(sgx.mrenclave)", True),
    ("size(sgx) == 0", True),
    ("'INTEL-SA-00837' in tdx.advisories", True),
    ("tdx.advisories.all(a, a.startsWith('INTEL-'))", True),
    ("tdx.advisories.exists(a, a == 'INTEL-SA-00001')", False),
    ("tdx.advisories.exists_one(a, a == 'INTEL-SA-00960')", True),
    ("size(tdx.advisories.filter(a, a.endsWith('960'))) == 1", True),
    ("tdx.advisories.map(a, size(a)) == [14, 14]", True),
    ("tdx.advisories[7] == ''", None),
    ("timestamp(tdx.tcb_date) >= timestamp('2024-01-01T00:00:00Z')", True),
    ("timestamp('never') > timestamp('2024-01-01T00:00:00Z')", None),
    ("machine.role == 'controlplane' ? sev_snp.vmpl == 0 : true", True),
    ("machine.assurance == 'tee'", True),
    ("1 / 0 == 1", None),
    ("-9223372036854775807 - 2 < 0", None),
    ("int('7') == 7 && double(1) == 1.0 && uint(3) == 3u", True),
    ("type(sev_snp.vmpl) == int", True),
    ("sev_snp.vmpl == 'zero'", False),
    ("sev_snp.vmpl < 'zero'", None),
    ("b'abc' == bytes('abc')", True),
    ("{'a': 1}.a == 1", True),
]


def of(expression: str) -> CelRule:
    return CelRule(name="rule", expression=expression, message="", report=False)


@pytest.mark.parametrize(("expression", "value"), HOLDS, ids=[e for e, _ in HOLDS])
def test_only_what_is_true_holds(expression: str, value: bool | None) -> None:
    """Not what is false, no truth value, or cannot be told; the reason is told."""
    why = broken(of(expression), SHOWN)
    if value is True:
        assert why is None
    elif value is False:
        assert why == "false"
    else:
        assert why not in (None, "false")


def test_the_reason_is_the_same_each_time() -> None:
    """Also where the value is a map, which the library tells in another order each time: results are compared."""
    assert {broken(of("tdx"), SHOWN) for _ in range(50)} == {"no truth value: dict"}


@pytest.mark.parametrize(("expression", "value"), HOLDS, ids=[e for e, _ in HOLDS])
def test_as_another_library_tells_it(expression: str, value: bool | None) -> None:
    """Google's own; what has no value there has none here."""
    env = judge.NewEnv(variables=dict.fromkeys(NAMES, judge.Type.DYN))
    try:
        found = env.compile(expression).eval(data={**{name: {} for name in NAMES}, **SHOWN})
    except Exception:
        told = None
    else:
        told = found.value() if isinstance(found.value(), bool) else None
    assert told == value


@pytest.mark.threat("T199")
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "1 to 512 printable"),
        ("t" * 513, "1 to 512 printable"),
        ("true\n", "printable"),
        ("sev_snp.debug ==", "is no CEL: ERROR"),
        ("(" * 200 + "true" + ")" * 200, "is no CEL"),
        ("1 + 1 == 2", "has no +"),
        ("tdx.advisories.all(a, true) && [1].all(b, true) && [1].all(c, true)", "2 times at most"),
        ("sev_snp.product.matches('(a*)*')", "no function matches"),
        ("foo(1)", "no function foo"),
        ("snp.debug", "nothing is named snp; expressions read machine, tpm, sev_snp"),
        ("[1].all(x, y == x)", "nothing is named y"),
    ],
    ids=str,
)
def test_what_is_refused_when_it_is_written(expression: str, message: str) -> None:
    """What does not compile, what could take long, and what nobody would ever show."""
    with pytest.raises(PolicyInvalid) as caught:
        compiled(expression)
    assert message in str(caught.value)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in an extra: whoever writes a rule without it is told which."""
    monkeypatch.setitem(sys.modules, "cel", None)
    with pytest.raises(PolicyInvalid, match=r"itl-attestation-sdk\[tee\]"):
        compiled("machine.role == 'without the library'")


@pytest.mark.threat("T199")
def test_the_worst_that_is_accepted_is_quick() -> None:
    """Two lists inside each other, texts and deep expressions: all rules of a policy in seconds, with none past it."""
    ones = ",".join("1" * 120)
    half = MAX_EXPRESSION // 2
    worst = [
        f"[{ones}].all(x, [{ones}].all(y, x == y))",
        f"[{ones}].map(x, [{ones}].map(y, x)) == []",
        f"[{ones}].map(x, [{ones}]).all(y, y == [1])",
        f"[{ones}].all(x, tdx.advisories.all(y, y.contains('{'a' * 200}') || true))",
        "!" * (MAX_EXPRESSION - 4) + "true",
        "-" * (MAX_EXPRESSION - 6) + "1 == 1",
        "(" * 30 + "true" + ")" * 30,
        "tpm" + ".a" * (half - 4) + "==1",
        "tpm" + "[0]" * (half // 2),
        "true" + "||true" * (MAX_EXPRESSION // 6 - 1),
        "0" + "-1" * (half - 3) + "<0",
    ]
    lists = {"tpm": {"a": {"a": list(range(64))}}, "tdx": {"advisories": ["INTEL-SA-00001"] * 64}}
    for expression in worst:
        compiled(expression)
        started = time.process_time()
        broken(of(expression), lists)
        assert time.process_time() - started < 8 / MAX_RULES, expression[:60]


@given(st.text(alphabet="tpmx01.()[]{}!&|?:,'\"=<>-*/% allmapin", max_size=80) | st.text(max_size=40))
def test_fails_in_one_way_only(expression: str) -> None:
    """Whatever is written is refused, or holds or not."""
    try:
        compiled(expression)
    except PolicyInvalid:
        return
    assert broken(of(expression), SHOWN) is None or broken(of(expression), SHOWN)
