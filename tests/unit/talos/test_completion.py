"""Base configuration + one machine = its configuration; what we do not know survives (ITL-REFERENCE §17, D§2.1)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from attestation.errors import BaseConfigInvalid
from attestation.talos.completion import Own, OwnFile, complete
from attestation.talos.documents import MAX_BYTES, MAX_OPEN_BRACKETS
from attestation.talos.lint import Level, lint
from attestation.talos.versions import Generation

GOLDEN = Path(__file__).parent / "golden"

FULL = Own(
    machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
    ek_fingerprint="1234567890123456" * 6,
    hostname="cp-1",
    assigned_ip="10.0.0.11/24",
    installer_image="registry.example/itl-talos-installer:v1",
)
BARE = Own(
    machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
    ek_fingerprint="ab" * 48,
    hostname=None,
    assigned_ip=None,
    installer_image="other:1",
)


def classic(base: bytes, own: Own) -> bytes:
    """Complete *base* as versions up to 1.11 want it."""
    return complete(base, own, Generation.CLASSIC)


@pytest.mark.parametrize("name", ["minimal", "complete", "stream"])
def test_golden(name: str) -> None:
    """The merged text is exactly the stored one: comments, order, quotes and further documents stay."""
    base = (GOLDEN / f"{name}.base.yaml").read_bytes()
    assert classic(base, FULL).decode() == (GOLDEN / f"{name}.merged.yaml").read_text()


@pytest.mark.parametrize("name", ["minimal", "complete", "stream"])
def test_merging_twice_changes_nothing_more(name: str) -> None:
    """The same machine again: no second address, no second label."""
    once = classic((GOLDEN / f"{name}.base.yaml").read_bytes(), FULL)
    assert classic(once, FULL) == once


def test_values_that_look_like_numbers_stay_text() -> None:
    """Sixteen decimal digits of a fingerprint are a label, not a number, for readers of YAML 1.1 too."""
    found = YAML(typ="safe").load(classic(b"machine: {}\n", FULL))["machine"]
    assert found["nodeLabels"]["itl.io/tpm-ek"] == "1234567890123456"
    assert found["nodeAnnotations"]["itl.io/tpm-ek-full"] == FULL.ek_fingerprint


def test_the_image_is_only_a_default() -> None:
    """An image that the base names stays."""
    assert b"mine:2" in classic(b"machine: {install: {image: mine:2}}\n", FULL)
    assert b"other:1" in classic(b"machine: {install: {image: ''}}\n", BARE)


def test_nothing_is_invented() -> None:
    """Without host name and address no network section appears; without an image no install section."""
    assert b"network" not in classic(b"machine: {}\n", BARE)
    assert b"install" not in classic(b"machine: {}\n", dataclasses.replace(BARE, installer_image=""))


@pytest.mark.parametrize(
    "base",
    [
        b"",
        b"- 1\n",
        b"text\n",
        b"\xff\xfe",
        b"machine: [\n",
        b"machine: {a: 1, a: 2}\n",
        b"machine: {}\nmachine: {}\n",
        b"machine: &m {x: *m}\n",
        b"machine: 3\n",
        b"machine: {install: 3}\n",
        b"machine: {network: []}\n",
        b"machine: {network: {interfaces: eth0}}\n",
        b"machine: {network: {interfaces: [eth0]}}\n",
        b"machine: {network: {interfaces: [{addresses: x}]}}\n",
        b"machine: {nodeLabels: []}\n",
        b"machine: {}\n---\nmachine: {}\n",
        b"kind: HostnameConfig\n",
        b"machine: !!python/object/apply:os.system ['true']\nkind: x\n",
        b"[" * 5000,
    ],
    ids=lambda b: b[:40].decode("latin-1"),
)
def test_bases_that_two_readers_could_understand_differently(base: bytes) -> None:
    """Refused, with a message that quotes nothing of the file."""
    with pytest.raises(BaseConfigInvalid) as caught:
        classic(base, FULL)
    assert "true" not in str(caught.value)


def test_aliases_are_bounded() -> None:
    """A few are fine, a bomb is not."""
    assert b"*a" in classic(b"machine: {}\nx: &a {y: 1}\nz: *a\n", FULL)
    bomb = b"machine: {}\na: &a [1,1,1,1,1,1,1,1,1,1]\n"
    for this, below in zip("bcdef", "abcde", strict=True):
        bomb += f"{this}: &{this} [{','.join([f'*{below}'] * 10)}]\n".encode()
    with pytest.raises(BaseConfigInvalid, match="tenfold"):
        classic(bomb, FULL)


def test_open_brackets_are_bounded() -> None:
    """One that is open costs as much as all others; those that are closed, in texts too, cost nothing more."""
    text = "[]" * 1000 + "{" * (MAX_OPEN_BRACKETS - 1)
    assert text.encode() in classic(f"machine: {{}}\nx: '{text}'\n".encode(), FULL)
    with pytest.raises(BaseConfigInvalid, match="brackets"):
        classic(b"machine: {}\nx: " + b"[{" * (MAX_OPEN_BRACKETS // 2) + b"[", FULL)


def test_secrets_are_not_in_errors() -> None:
    """A syntax error near a secret does not print it."""
    with pytest.raises(BaseConfigInvalid) as caught:
        classic(b"machine:\n  token: canary-secret\n bad: [\n", FULL)
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u2029"], ids=ascii)
def test_what_ends_a_line_for_some_readers_is_refused(character: str) -> None:
    """A comment for one is a member for Talos; as an escape within quotes it is text for everybody, and stays so."""
    for text in (f"machine: {{}}\n# x{character}cluster: {{}}\n", f"machine: {{}}\nx: 'a{character}b'\n"):
        with pytest.raises(BaseConfigInvalid, match=rf"line 2 has U\+{ord(character):04X}"):
            classic(text.encode(), FULL)
    found = classic(f'machine: {{}}\nx: "a\\u{ord(character):04X}b"\n'.encode(), FULL)
    assert YAML(typ="safe").load(found)["x"] == f"a{character}b"
    assert character.encode() not in found


def test_what_grows_beyond_the_limit_is_refused() -> None:
    """The merged configuration has the same limit as the base."""
    base = b"machine: {}\n#" + b"x" * (MAX_BYTES - 20) + b"\n"
    with pytest.raises(BaseConfigInvalid, match="completed"):
        classic(base, FULL)


# ---------------------------------------------------------------- documents of later versions

LINK = b"apiVersion: v1alpha1\nkind: LinkConfig\nname: eno1 # the left one\n"
V1ALPHA1 = b"version: v1alpha1\nmachine:\n  type: worker\n"


def documents(text: bytes) -> dict[str, dict[str, object]]:
    """Return the documents by kind, the empty word for v1alpha1."""
    return {each.get("kind", ""): each for each in YAML(typ="safe").load_all(text)}


def test_hostname_and_address_are_documents_from_1_12_on() -> None:
    """HostnameConfig with `auto` off, an address in LinkConfig; labels and image stay where they were."""
    found = documents(complete(V1ALPHA1 + b"---\n" + LINK, FULL, Generation.NETWORK_DOCUMENTS))
    assert found["HostnameConfig"] == {
        "apiVersion": "v1alpha1",
        "kind": "HostnameConfig",
        "auto": "off",
        "hostname": "cp-1",
    }
    assert found["LinkConfig"]["addresses"] == [{"address": "10.0.0.11/24"}]
    machine = found[""]["machine"]
    assert isinstance(machine, dict)
    assert sorted(machine) == ["install", "nodeAnnotations", "nodeLabels", "type"]


INSTALL = (
    b"apiVersion: v1alpha1\nkind: UnattendedInstallConfig\n"
    b"provisioning: {diskSelector: {match: disk.transport == 'nvme'}}\n"
)


def test_labels_and_image_are_documents_from_1_14_on() -> None:
    """Nothing of ours is left in the v1alpha1 document, which there need not even be; no disk is erased unasked."""
    found = documents(complete(V1ALPHA1 + b"---\n" + LINK, FULL, Generation.ALL_DOCUMENTS))
    assert found[""] == {"version": "v1alpha1", "machine": {"type": "worker"}}
    assert found["KubeNodeConfig"]["labels"] == FULL.labels
    assert found["KubeNodeConfig"]["annotations"] == FULL.annotations
    assert "UnattendedInstallConfig" not in found
    found = documents(complete(INSTALL + b"---\n" + LINK, FULL, Generation.ALL_DOCUMENTS))
    assert found["UnattendedInstallConfig"]["installer"] == {"image": FULL.installer_image}
    assert "" not in documents(complete(LINK, FULL, Generation.ALL_DOCUMENTS))


def test_an_off_that_yaml_1_1_would_take_for_false_is_quoted() -> None:
    """`auto` is a word to every reader."""
    assert b'auto: "off"' in complete(V1ALPHA1 + b"---\n" + LINK, FULL, Generation.NETWORK_DOCUMENTS)


def test_an_image_of_the_document_stays() -> None:
    """The service's is only a default, in the later versions too."""
    mine = INSTALL + b"installer: {image: mine:2}\n---\n" + LINK
    found = documents(complete(mine, FULL, Generation.ALL_DOCUMENTS))
    assert found["UnattendedInstallConfig"]["installer"] == {"image": "mine:2"}


def test_what_a_base_has_in_its_old_place_stays_there() -> None:
    """Talos refuses a document beside the member that it took the place of, which later versions still take."""
    old = b"version: v1alpha1\nmachine:\n  type: controlplane\n"
    old += b"  install: {disk: /dev/sda}\n  features: {stableHostname: true}\n"
    old += b"  nodeLabels: {node.kubernetes.io/exclude-from-external-load-balancers: ''}\n---\n" + LINK
    for generation in (Generation.NETWORK_DOCUMENTS, Generation.ALL_DOCUMENTS):
        made = complete(old, FULL, generation)
        found = documents(made)
        assert sorted(found) == ["", "LinkConfig"]
        machine = found[""]["machine"]
        assert isinstance(machine, dict)
        assert machine["network"] == {"hostname": "cp-1"}
        assert machine["install"] == {"disk": "/dev/sda", "image": FULL.installer_image}
        assert machine["nodeLabels"].items() > FULL.labels.items()
        assert machine["nodeAnnotations"] == FULL.annotations
        assert {each.level for each in lint(made, generation)} == {Level.DEPRECATED}
        assert complete(made, FULL, generation) == made


def test_the_address_goes_to_an_alias_where_no_link_is_named() -> None:
    """LinkConfig is made for the first alias, and nothing is guessed without one."""
    alias = b"apiVersion: v1alpha1\nkind: LinkAliasConfig\nname: uplink\nselector: {match: 'true'}\n"
    found = documents(complete(V1ALPHA1 + b"---\n" + alias, FULL, Generation.NETWORK_DOCUMENTS))
    assert (found["LinkConfig"]["name"], found["LinkConfig"]["addresses"]) == (
        "uplink",
        [{"address": "10.0.0.11/24"}],
    )
    with pytest.raises(BaseConfigInvalid, match="no LinkConfig"):
        complete(V1ALPHA1, FULL, Generation.NETWORK_DOCUMENTS)
    with pytest.raises(BaseConfigInvalid, match="no LinkConfig"):
        complete(V1ALPHA1 + b"---\nkind: LinkAliasConfig\n", FULL, Generation.NETWORK_DOCUMENTS)


@pytest.mark.parametrize("generation", Generation)
def test_a_file_is_written_once_where_the_version_can_have_it(generation: Generation) -> None:
    """Below /var up to 1.13, below /etc from 1.14 on; again, with other content, it takes the place of the first."""
    late = generation is Generation.ALL_DOCUMENTS
    path = "/etc/itl/enrollment.crt" if late else "/var/lib/itl-tpm/enrollment.crt"
    base = V1ALPHA1 + b"---\n" + LINK
    own = dataclasses.replace(FULL, files=(OwnFile(path=path, content="one\n", mode=0o444),))
    once = complete(base, own, generation)
    again = dataclasses.replace(FULL, files=(OwnFile(path=path, content="two\n", mode=0o400),))
    found = documents(complete(once, again, generation))
    if late:
        file = found["EtcFileConfig"]
        assert (file["name"], file["contents"], file["mode"]) == ("itl/enrollment.crt", "two\n", 0o400)
    else:
        machine = found[""]["machine"]
        assert isinstance(machine, dict)
        assert machine["files"] == [{"content": "two\n", "permissions": 0o400, "path": path, "op": "create"}]
    elsewhere = dataclasses.replace(FULL, files=(OwnFile(path="/usr/x", content="", mode=0o444),))
    with pytest.raises(BaseConfigInvalid, match="/usr/x"):
        complete(base, elsewhere, generation)


@pytest.mark.parametrize("kind", ["HostnameConfig", "KubeNodeConfig", "UnattendedInstallConfig"])
def test_a_document_of_ours_that_is_there_twice_is_refused(kind: str) -> None:
    """Which of them counts, only Talos knows."""
    twice = LINK + f"---\napiVersion: v1alpha1\nkind: {kind}\n".encode() * 2
    with pytest.raises(BaseConfigInvalid, match=f"2 documents of kind {kind}"):
        complete(twice, FULL, Generation.ALL_DOCUMENTS)


@pytest.mark.parametrize("generation", Generation)
def test_completing_twice_changes_nothing_more(generation: Generation) -> None:
    """Byte for byte, in each generation."""
    once = complete(V1ALPHA1 + b"---\n" + LINK, FULL, generation)
    assert complete(once, FULL, generation) == once
    assert b"# the left one" in once


def test_a_kind_that_is_no_word_is_refused() -> None:
    """A document must say what it is."""
    for kind in (b"3", b"''", b"[x]", b"null"):
        with pytest.raises(BaseConfigInvalid, match="kind is not a word"):
            complete(V1ALPHA1 + b"---\nkind: " + kind + b"\n", BARE, Generation.CLASSIC)


def test_what_is_the_machines_own_stands_in_one_place() -> None:
    """Talos refuses a host name that is said twice, and of two labels nobody knows which counts."""
    base = (
        b"machine: {network: {hostname: other, nameservers: [192.0.2.53]}, nodeLabels: {itl.io/machine-id: x, a: b}}\n"
        b"---\napiVersion: v1alpha1\nkind: LinkConfig\nname: e0\n"
    )
    found = documents(complete(base, FULL, Generation.ALL_DOCUMENTS))
    machine = found[""]["machine"]
    assert isinstance(machine, dict)
    # Other labels stand there, so ours do: Talos takes no KubeNodeConfig beside them.
    assert machine["network"] == {"nameservers": ["192.0.2.53"]}
    assert machine["nodeLabels"] == {"a": "b"} | FULL.labels
    assert sorted(found) == ["", "HostnameConfig", "LinkConfig"]
    both = base + b"---\napiVersion: v1alpha1\nkind: KubeNodeConfig\n"
    found = documents(complete(both, FULL, Generation.ALL_DOCUMENTS))
    assert (found[""]["machine"], found["KubeNodeConfig"]["labels"]) == (
        {"network": {"nameservers": ["192.0.2.53"]}, "nodeLabels": {"a": "b"}},
        FULL.labels,
    )
    assert b"hostname: other" not in complete(base, FULL, Generation.NETWORK_DOCUMENTS)
    # Of a machine without a name the base says it.
    unnamed = dataclasses.replace(FULL, hostname=None)
    assert b"hostname: other" in complete(base, unnamed, Generation.NETWORK_DOCUMENTS)
    merged = b"x: &x {hostname: a}\nmachine: {network: {<<: *x}}\n"
    with pytest.raises(BaseConfigInvalid, match="by a merge"):
        complete(merged, FULL, Generation.NETWORK_DOCUMENTS)
