"""The list of PKCS#11 modules, and the lock that the processes of one machine share."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import KeyURIInvalid, ModuleNotListed
from attestation.keys.pkcs11.modules import alone, module_of, parse_modules
from attestation.keys.uri import PKCS11Ref, parse_key_uri


def test_a_list() -> None:
    """Names and absolute paths, which may have an equals sign of their own."""
    found = parse_modules(["softhsm=/usr/lib/softhsm/libsofthsm2.so", "yubi.hsm-2=/opt/a=b.so"])
    assert found == {"softhsm": Path("/usr/lib/softhsm/libsofthsm2.so"), "yubi.hsm-2": Path("/opt/a=b.so")}
    assert parse_modules([]) == {}
    with pytest.raises(TypeError):
        found["more"] = Path("/more")  # type: ignore[index]


@pytest.mark.parametrize(
    "entry",
    ["softhsm", "", "=", "=/x", "softhsm=", "softhsm=relative.so", "a b=/x", "../x=/x", "-a=/x", "a/b=/x"],
)
def test_what_is_no_entry(entry: str) -> None:
    """Another form is an error at the start, never a module that is silently missing."""
    with pytest.raises(KeyURIInvalid, match="ITL_PKCS11_MODULES"):
        parse_modules(["good=/good.so", entry])


def test_a_name_twice() -> None:
    """Which of the two is meant nobody could tell."""
    with pytest.raises(KeyURIInvalid, match="twice"):
        parse_modules(["a=/one.so", "a=/two.so"])


@given(st.lists(st.text(max_size=40), max_size=4))
def test_lists_fail_in_one_way_only(entries: list[str]) -> None:
    """Whatever stands there: absolute paths by name, or KeyURIInvalid."""
    try:
        found = parse_modules(entries)
    except KeyURIInvalid:
        return
    assert len(found) == len(entries)
    assert all(path.is_absolute() for path in found.values())


def ref(query: str = "") -> PKCS11Ref:
    """Return a reference."""
    found = parse_key_uri("pkcs11:token=t;object=o" + query)
    assert isinstance(found, PKCS11Ref)
    return found


def test_the_module_of_a_uri() -> None:
    """The one that it names; the only one where it names none; nothing that is not listed."""
    one, two = {"a": Path("/a.so")}, {"a": Path("/a.so"), "b": Path("/b.so")}
    assert module_of(ref(), one) == ("a", Path("/a.so"))
    assert module_of(ref("?module-name=b"), two) == ("b", Path("/b.so"))
    with pytest.raises(ModuleNotListed, match="not in ITL_PKCS11_MODULES; listed: a"):
        module_of(ref("?module-name=b"), one)
    with pytest.raises(ModuleNotListed, match="needs module-name"):
        module_of(ref(), two)
    with pytest.raises(ModuleNotListed, match="needs module-name=…; modules in ITL_PKCS11_MODULES: none"):
        module_of(ref(), {})


def test_one_at_a_time(tmp_path: Path) -> None:
    """The second waits for the first, and no longer than it wants to."""
    module = tmp_path / "module.so"
    module.write_bytes(b"")
    order: list[str] = []
    with alone(module, wait_seconds=0) as first:
        assert first

        def second() -> None:
            with alone(module, wait_seconds=60) as ours:
                assert ours
                order.append("second")

        thread = threading.Thread(target=second)
        thread.start()
        start = time.monotonic()
        with alone(module, wait_seconds=0.1) as third:
            assert not third
        assert 0.1 <= time.monotonic() - start < 50  # the second would have waited longer
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
