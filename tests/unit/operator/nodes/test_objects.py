"""Reading what a stranger put into a cluster."""

from __future__ import annotations

import base64
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from attestation.endorsements import der
from attestation_operator.nodes.objects import (
    Unreadable,
    decoded,
    first_block,
    has_evidence,
    read_csr,
    requested_node,
)
from attestation_operator.nodes.policy import NodePolicy, OnMissingEvidence, PolicyUnreadable, read_policy
from attestation_operator.objects import clipped
from tests.unit.operator.nodes.world import EVIDENCE, PKCS10, pkcs10, raw_attestation, raw_csr, subject


def pkcs10_named(name: str) -> bytes:
    """Return a PKCS#10 for a common name of any length, not signed: nobody here looks at that."""
    subject_der = der.write(
        der.SEQUENCE,
        der.write(
            0x31,
            der.write(der.SEQUENCE, der.write_oid("2.5.4.3") + der.write(0x0C, name.encode())),
        ),
    )
    info = der.write(der.SEQUENCE, der.write_unsigned(0) + subject_der + der.write(der.SEQUENCE, b""))
    text = base64.encodebytes(der.write(der.SEQUENCE, info))
    return b"-----BEGIN CERTIFICATE REQUEST-----\n" + text + b"-----END CERTIFICATE REQUEST-----\n"


@pytest.mark.parametrize("name", ["a?b", "a#b", "a b", "ä", "?", "", "-", "a" * 254, "..a", "a;b", "a\n"])
def test_a_name_that_is_no_part_of_a_path_is_left_alone(name: str) -> None:
    """An API server takes nearly any name: `x?` is the path of `x`."""
    with pytest.raises(Unreadable):
        read_csr(raw_csr(name=name))


@pytest.mark.parametrize("name", ["node-csr-0123", "csr-x7k2p", "node-csr-Az_-09", "a.b", "a" * 253])
def test_names_of_agents_and_kubelets_are_read(name: str) -> None:
    """Also those that older kubelets make of base64url."""
    assert read_csr(raw_csr(name=name)).target.name == name


def test_the_node_that_is_asked_for_is_read() -> None:
    """From the subject, whatever stands behind."""
    assert requested_node(PKCS10) == "cp-1"
    assert requested_node(PKCS10 + EVIDENCE) == "cp-1"
    assert requested_node(b"text\n" + PKCS10) == "cp-1"
    assert requested_node(pkcs10(subject("a.b-c.d"))) == "a.b-c.d"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b",
        "../x",
        "a?b",
        "A",
        "a_b",
        "a" * 254,
        ".".join(["a" * 60] * 5),
        "-a",
        "a-",
        "a..b",
        "ä",
        "a\n",
    ],
)
def test_a_name_that_no_node_can_have_is_none(name: str) -> None:
    """It would be put into a path."""
    assert requested_node(pkcs10_named("system:node:" + name)) is None


def test_a_name_may_be_longer_than_a_certificate_may_say() -> None:
    """A Node has up to 253 characters, a common name 64: whoever signs says so, reading does not."""
    assert requested_node(pkcs10_named("system:node:" + "a" * 60 + ".b")) == "a" * 60 + ".b"


def test_a_subject_of_nobody_is_none() -> None:
    """Another prefix, no CN, two of them."""
    cn = NameOID.COMMON_NAME
    for name in (
        subject("cp-1", prefix="node:"),
        x509.Name([]),
        x509.Name([x509.NameAttribute(cn, "system:node:a"), x509.NameAttribute(cn, "system:node:b")]),
    ):
        assert requested_node(pkcs10(name)) is None


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"-----BEGIN CERTIFICATE REQUEST-----",
        b"-----BEGIN CERTIFICATE REQUEST-----\n!\n-----END CERTIFICATE REQUEST-----",
        b"-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----",
        b"-----END CERTIFICATE REQUEST-----\n-----BEGIN CERTIFICATE REQUEST-----",
        b"x" * (24 << 10) + PKCS10,
    ],
)
def test_what_is_no_request_asks_for_nobody(request_bytes: bytes) -> None:
    """And raises nothing."""
    assert requested_node(request_bytes) is None


def test_evidence_is_anything_behind_the_request() -> None:
    """White space is not; text is, and will be refused by those who read it."""
    assert not has_evidence(PKCS10)
    assert not has_evidence(PKCS10 + b"\r\n \n")
    assert not has_evidence(b"no request at all")
    assert has_evidence(PKCS10 + EVIDENCE)
    assert has_evidence(PKCS10 + b"x")


def test_what_is_no_base64_is_empty() -> None:
    """No API server stores it."""
    assert decoded("!") == b""
    assert decoded("é") == b""
    assert first_block(b"") is None


def test_clipped_cuts_between_characters() -> None:
    """And is never empty."""
    assert clipped("ä" * 600, 1023) == "ä" * 511
    assert clipped(" ") == "no message"
    assert clipped("\ud800") == "?"


class TestPolicy:
    """NodeAttestation/cluster."""

    def test_absent_and_empty_are_the_defaults(self) -> None:
        """Strict, nothing deleted, nothing tainted; ours denied, a kubelet's left alone."""
        assert read_policy(None) == read_policy(raw_attestation()) == NodePolicy()
        assert NodePolicy().strict

    def test_what_is_said_counts(self) -> None:
        """Each field."""
        spec = {
            "signers": [{"name": "kubernetes.io/kubelet-serving", "onMissingEvidence": "deny"}],
            "inTreeApprover": "warn",
            "bootstrapGroups": ["example:joiners"],
            "deleteStaleNodes": True,
            "nodeLifetimeSeconds": 3600,
            "onTrustLapse": {"taint": True, "cordon": True},
        }
        assert read_policy(raw_attestation(spec)) == NodePolicy(
            signers={"kubernetes.io/kubelet-serving": OnMissingEvidence.DENY},
            strict=False,
            bootstrap_groups=("example:joiners",),
            delete_stale_nodes=True,
            longest=timedelta(hours=1),
            taint=True,
            cordon=True,
        )

    @pytest.mark.parametrize(
        "spec",
        [
            {"signers": [{"name": "a/b", "onMissingEvidence": "approve"}]},
            {"signers": [{}]},
            {"signers": [3]},
            {"inTreeApprover": "off"},
            {"inTreeApprover": []},
        ],
    )
    def test_what_cannot_be_followed_is_not_followed(self, spec: dict[str, object]) -> None:
        """Nothing falls back to a guess."""
        with pytest.raises(PolicyUnreadable):
            read_policy(raw_attestation(spec))
