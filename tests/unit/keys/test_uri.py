"""Keys named by URI: one reading for each, and a refusal, without its secret, for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attestation.errors import KeyURIInvalid, PINInURI
from attestation.keys.uri import FileRef, KeyRef, PKCS11Ref, TPM2Ref, parse_key_uri

TOKEN = "pkcs11:token=t;object=o"

READ: list[tuple[str, KeyRef]] = [
    ("file:/a/key.pem", FileRef(path=Path("/a/key.pem"))),
    ("file:/a b/50%25 key;x=1&y.pem", FileRef(path=Path("/a b/50%25 key;x=1&y.pem"))),
    ("file:/k?passphrase-source=file:/p", FileRef(path=Path("/k"), passphrase_source="file:/p")),
    ("file:/k?passphrase-source=file%3a/p%20q", FileRef(path=Path("/k"), passphrase_source="file:/p q")),
    ("file:/k?passphrase-source=fd:3", FileRef(path=Path("/k"), passphrase_source="fd:3")),
    ("pkcs11:token=t;object=o;type=private", PKCS11Ref(token="t", object="o")),
    ("pkcs11:serial=01ab;id=%01%02", PKCS11Ref(serial="01ab", id=b"\x01\x02")),
    ("pkcs11:token=t;id=%61b%00%FF", PKCS11Ref(token="t", id=b"ab\x00\xff")),
    (
        "pkcs11:id=%ff;serial=s;object=CA%20key;token=itl%20%e2%82%ac?pin-source=file:/run/pin&module-name=softhsm2",
        PKCS11Ref(
            token="itl €",
            serial="s",
            object="CA key",
            id=b"\xff",
            module_name="softhsm2",
            pin_source="file:/run/pin",
        ),
    ),
    (f"pkcs11:token={'t' * 32};object={'o' * 255}", PKCS11Ref(token="t" * 32, object="o" * 255)),
    ("tpm2:handle=0x81010001", TPM2Ref(handle=0x81010001)),
    ("tpm2:handle=0x81FFFFFF", TPM2Ref(handle=0x81FFFFFF)),
    ("tpm2:nv=0x01800010", TPM2Ref(nv=0x01800010)),
    ("tpm2:nv=0x01bfffff?owner-auth-source=file:/o", TPM2Ref(nv=0x01BFFFFF, owner_auth_source="file:/o")),
    ("tpm2:path=/k%20a.tss2", TPM2Ref(path=Path("/k a.tss2"))),
    (
        "tpm2:path=/k?tcti=device:/dev/tpmrm0&auth-source=fd:0",
        TPM2Ref(path=Path("/k"), tcti="device:/dev/tpmrm0", auth_source="fd:0"),
    ),
]


@pytest.mark.parametrize(("uri", "ref"), READ)
def test_what_is_read(uri: str, ref: KeyRef) -> None:
    """Each form means one key, and written again it means the same."""
    assert parse_key_uri(uri) == ref
    assert parse_key_uri(str(ref)) == ref
    assert "?" not in ref.shown
    assert parse_key_uri(ref.shown) is not None


REFUSED = [
    *("", "file", "key.pem", "/key.pem", "https://h/k", "FILE:/k", "pkcs12:token=t", ":", "tpm:handle=0x81000000"),
    *("file:", "file:k", "file:./k", "file://h/k", "file:///k", "file:/a\x00b", "file:/a\nb"),
    *("file:/k?", "file:/k?x=1", "file:/k?passphrase-source", "file:/k?passphrase-source="),
    *("file:/k?passphrase-source=/p", "file:/k?passphrase-source=file:p", "file:/k?passphrase-source=fd:-1"),
    *("file:/k?passphrase-source=fd:03", "file:/k?passphrase-source=fd:", "file:/k?passphrase-source=env:X"),
    "file:/k?passphrase-source=fd:1&passphrase-source=fd:2",
    # a program, as RFC 7512 §2.4 would allow
    *(f"{TOKEN}?pin-source=|/usr/lib/pinomatic", f"{TOKEN}?pin-source=%7c/usr/lib/pinomatic"),
    f"{TOKEN}?pin-source=https://h/pin",
    # a library
    *(f"{TOKEN}?module-path=/usr/lib/evil.so", f"{TOKEN}?module-name=/usr/lib/evil.so"),
    *(f"{TOKEN}?module-name=..", f"{TOKEN}?module-name=a%2fb", f"{TOKEN}?module-name={'m' * 65}"),
    # unknown, repeated, misplaced, empty
    *("pkcs11:", "pkcs11:token=t", "pkcs11:object=o", "pkcs11:token=t;object=o;", "pkcs11:;token=t;object=o"),
    *(f"{TOKEN};model=m", f"{TOKEN};manufacturer=m", f"{TOKEN};slot-id=1", f"{TOKEN};x-vendor=1", f"{TOKEN};Token=t"),
    *(f"{TOKEN};token=t", f"{TOKEN};object=p", f"{TOKEN};id=%01;id=%02", f"{TOKEN};object", f"{TOKEN};id="),
    *(f"{TOKEN};pin-source=file:/p", f"{TOKEN}?object=o", f"{TOKEN}?", f"{TOKEN}?&", f"{TOKEN}?pin-source=fd:1&"),
    *(f"{TOKEN}?pin-source=fd:1;module-name=m", f"{TOKEN}?pin-source=fd:1?"),
    *(f"{TOKEN};type=public", f"{TOKEN};type=cert"),
    # values
    *("pkcs11:token=a b;object=o", "pkcs11:token=é;object=o", "pkcs11:token=%;object=o", "pkcs11:token=%4;object=o"),
    *("pkcs11:token=%zz;object=o", "pkcs11:token=%0a;object=o", "pkcs11:token=%00;object=o"),
    "pkcs11:token=%ff;object=o",
    *("pkcs11:token=t%20;object=o", "pkcs11:serial=s%20;object=o", f"pkcs11:token={'t' * 33};object=o"),
    *(f"pkcs11:serial={'s' * 17};object=o", f"pkcs11:token=t;object={'o' * 256}", f"pkcs11:token=t;id={'%00' * 256}"),
    *("pkcs11:token=t#u;object=o", 'pkcs11:token="t";object=o', "pkcs11:token=t;object=o?pin-source=file:/a b"),
    *("tpm2:", "tpm2:handle=", "tpm2:handle=0x81010001;path=/k", "tpm2:path=k", "tpm2:path=%00", "tpm2:x=1"),
    *("tpm2:handle=81010001", "tpm2:handle=0x8101001", "tpm2:handle=0x081010001", "tpm2:handle=2164326401"),
    *("tpm2:nv=0x017fffff", "tpm2:nv=0x01c00002", "tpm2:nv=01800010", "tpm2:nv=0x01800010;path=/k", "tpm2:nv="),
    *("tpm2:handle=0x80ffffff", "tpm2:handle=0x82000000", "tpm2:handle=0x01C00002", "tpm2:handle=0X81010001"),
    *("tpm2:handle=0x81010001;handle=0x81010001", "tpm2:path=/k?auth-source=|x", "tpm2:path=/k?tcti=%0a"),
    *("tpm2:path=/k?tcti=device:/dev/tpm0&tcti=unix:/s", "tpm2:path=/k?pin-source=fd:1"),
    "file:/" + "x" * 4096,
]  # fmt: skip


@pytest.mark.threat("T85", "T90")
@pytest.mark.parametrize("uri", REFUSED)
def test_what_is_refused(uri: str) -> None:
    """Nothing is guessed, dropped or looked past."""
    with pytest.raises(KeyURIInvalid):
        parse_key_uri(uri)


@pytest.mark.threat("T85")
@pytest.mark.parametrize(
    "uri",
    [
        f"{TOKEN}?pin-value=hunter2",
        f"{TOKEN}?pin-source=fd:1&pin-value=hunter2",
        f"{TOKEN};pin-value=hunter2",
        "file:/k?passphrase=hunter2",
        "file:/k?password=hunter2",
        "tpm2:path=/k?auth=hunter2",
        "tpm2:handle=0x81010001?auth-value=hunter2",
        "tpm2:auth-value=hunter2",
    ],
)
def test_a_secret_in_the_uri(uri: str) -> None:
    """Refused by a code of its own, so that who reads it knows what to do; and it is not repeated."""
    with pytest.raises(PINInURI) as refusal:
        parse_key_uri(uri)
    assert refusal.value.code == "key-uri-inline-pin"
    assert "hunter2" not in str(refusal.value)


@pytest.mark.threat("T85")
@pytest.mark.parametrize(
    "uri",
    [
        f"{TOKEN}?hunter2",
        f"{TOKEN};hunter2",
        f"{TOKEN}?PIN-VALUE=hunter2",
        f"{TOKEN}?pin-source=hunter2",
        "pkcs11:hunter2:token=t;object=o",
        "hunter2:x",
        "hunter2",
        "tpm2:handle=hunter2",
        "tpm2:path=/k?tcti=a&hunter2",
    ],
)
def test_messages_repeat_no_value(uri: str) -> None:
    """Whoever put a secret in the wrong place does not find it in a log as well."""
    with pytest.raises(KeyURIInvalid) as refusal:
        parse_key_uri(uri)
    assert "hunter2" not in str(refusal.value)


def test_what_people_see_has_no_query() -> None:
    """Where a secret lies is nobody's business either."""
    for uri in (f"{TOKEN}?pin-source=file:/run/pin", "file:/k?passphrase-source=file:/run/pin"):
        assert "/run/pin" in str(parse_key_uri(uri))
        assert "/run/pin" not in parse_key_uri(uri).shown


@pytest.mark.parametrize(
    ("uri", "child"),
    [
        ("file:/a/ca.pem?passphrase-source=fd:3", "file:/a/ca-2f.pem?passphrase-source=fd:3"),
        ("file:/a/ca", "file:/a/ca-2f"),
        ("pkcs11:token=t;object=ca;id=%01?pin-source=fd:3", "pkcs11:token=t;object=ca-2f?pin-source=fd:3"),
        ("pkcs11:token=t;id=%01", "pkcs11:token=t;object=2f"),
        ("tpm2:path=/a/ca.tss2?tcti=unix:/s", "tpm2:path=/a/ca-2f.tss2?tcti=unix:/s"),
    ],
)
def test_a_key_beside_another(uri: str, child: str) -> None:
    """Same place, same secret, another name."""
    assert parse_key_uri(uri).child("2f") == parse_key_uri(child)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".x", "a b", "a;b", "x" * 65, "-x", "é"])
@pytest.mark.parametrize("uri", ["file:/a/ca.pem", TOKEN, "tpm2:path=/a/ca.tss2"])
def test_names_of_children_are_plain_words(uri: str, name: str) -> None:
    """No name leads out of the directory or into another attribute."""
    with pytest.raises(KeyURIInvalid):
        parse_key_uri(uri).child(name)


def test_what_has_no_children() -> None:
    """A handle has no neighbours that anybody could name, and a label has an end."""
    with pytest.raises(KeyURIInvalid, match="path"):
        TPM2Ref(handle=0x81010001).child("x")
    with pytest.raises(KeyURIInvalid, match="object"):
        PKCS11Ref(token="t", object="o" * 255).child("x")


def test_another_object_of_the_token() -> None:
    """By label, id, or both; never by neither."""
    ref = PKCS11Ref(token="t", object="o", pin_source="fd:3")
    assert ref.with_object("p", b"\x01") == PKCS11Ref(token="t", object="p", id=b"\x01", pin_source="fd:3")
    with pytest.raises(KeyURIInvalid):
        ref.with_object(None, None)
    with pytest.raises(KeyURIInvalid):
        ref.with_object("p", b"")


@given(st.text(max_size=200) | st.from_regex(r"(file|pkcs11|tpm2):[ -~]{0,100}", fullmatch=True))
@example("pkcs11:token=%25;object=%3b%3d")
def test_whatever_is_written(text: str) -> None:
    """A key or a refusal; and a key written again is the same key."""
    try:
        ref = parse_key_uri(text)
    except KeyURIInvalid:
        return
    assert parse_key_uri(str(ref)) == ref


LABELS = st.text(st.characters(min_codepoint=0x20, exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


@given(LABELS, LABELS, st.binary(min_size=1, max_size=32))
def test_any_name_can_be_written(token: str, label: str, key_id: bytes) -> None:
    """Percent-encoding carries every label and every id through."""
    if token.endswith(" "):
        return
    ref = PKCS11Ref(token=token, object=label, id=key_id)
    assert parse_key_uri(str(ref)) == ref
