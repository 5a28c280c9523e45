"""What does not fit a version of Talos is told by its place, never by its value (D§2.2, R37)."""

from __future__ import annotations

import itertools

import pytest

from attestation.errors import RequestInvalid
from attestation.machines import Role
from attestation.talos.completion import Own, complete
from attestation.talos.lint import MAX_FINDINGS, Level, lint, told
from attestation.talos.redaction import HIDDEN, preview
from attestation.talos.versions import Generation, definitions, generation_of, kinds

CANARY = "canary-7c1f0b"

SEED_STYLE = f"""\
version: v1alpha1
machine:
  type: worker
  token: {CANARY}
  install: {{disk: /dev/sda}}
  network: {{hostname: w-1, interfaces: [{{interface: eth0, addresses: [10.0.0.2/24]}}]}}
  nodeLabels: {{a: b}}
  nodeAnnotations: {{a: b}}
  files:
    - {{content: x, permissions: 0o600, path: /var/x, op: create}}
cluster:
  controlPlane: {{endpoint: "https://10.0.0.1:6443"}}
""".encode()


def findings(text: bytes, generation: Generation, role: Role | None = None) -> dict[str, str]:
    """Return the level of each finding, by its path."""
    found = lint(text, generation, role)
    assert CANARY not in " ".join(told(each) for each in found)
    return {each.path: each.level.value for each in found}


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("version", "generation"),
    [
        ("v1.9.5", Generation.CLASSIC),
        ("v1.9.99", Generation.CLASSIC),
        ("v1.10.0", Generation.CLASSIC_WITH_MORE),
        ("1.11", Generation.CLASSIC_WITH_MORE),
        ("v1.12.0", Generation.NETWORK_DOCUMENTS),
        ("v1.13.9", Generation.NETWORK_DOCUMENTS),
        ("v1.14.0-beta.1", Generation.ALL_DOCUMENTS),
        ("v1.99.0", Generation.ALL_DOCUMENTS),
    ],
)
def test_a_version_belongs_to_a_generation(version: str, generation: Generation) -> None:
    """By its minor number; newer than all is of the last."""
    assert generation_of(version) is generation


@pytest.mark.parametrize(
    "version", ["", "v2.0.0", "v1.8.4", "1", "v1.9.5 ", "v1.9.5\n", "v1.9999.0", "latest"]
)
def test_what_is_no_version_that_is_known_is_refused(version: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(RequestInvalid):
        generation_of(version)


@pytest.mark.parametrize(("generation", "count"), list(zip(Generation, [11, 11, 44, 89], strict=True)))
def test_the_schemas_are_whole(generation: Generation, count: int) -> None:
    """So many documents each version has, v1alpha1 among them, all of them defined."""
    assert len(kinds(generation)) == count
    assert set(kinds(generation).values()) <= set(definitions(generation))


# ---------------------------------------------------------------- by schema


def test_overrides_of_the_seed_fit_the_version_that_they_are_for() -> None:
    """Nothing is said of them for 1.9.5."""
    assert findings(SEED_STYLE, Generation.CLASSIC) == {}


def test_what_a_later_version_dropped_is_deprecated() -> None:
    """Each key by its name; the loader takes it still."""
    assert findings(SEED_STYLE, Generation.NETWORK_DOCUMENTS) == {"machine.network": "deprecated"}
    assert findings(SEED_STYLE, Generation.ALL_DOCUMENTS) == dict.fromkeys(
        [
            "cluster.controlPlane",
            "machine.files",
            "machine.install",
            "machine.network",
            "machine.nodeAnnotations",
            "machine.nodeLabels",
        ],
        "deprecated",
    )


def test_what_is_deprecated_is_judged_as_it_was() -> None:
    """A fault below a key of before is an error, by the schema that knew the key."""
    base = SEED_STYLE.replace(b"permissions: 0o600", b"permissions: '0o600'").replace(
        b"hostname:", b"hostnam:"
    )
    assert findings(base, Generation.ALL_DOCUMENTS) | {"machine.network": "deprecated"} == {
        "cluster.controlPlane": "deprecated",
        "machine.files": "deprecated",
        "machine.files[0].permissions": "error",
        "machine.install": "deprecated",
        "machine.network": "deprecated",
        "machine.network.hostnam": "error",
        "machine.nodeAnnotations": "deprecated",
        "machine.nodeLabels": "deprecated",
    }


def test_what_was_dropped_step_by_step_is_deprecated() -> None:
    """A key that 1.12 dropped, below one that 1.14 dropped: each schema is asked for what the next one knew no more."""
    text = b"version: v1alpha1\ncluster: {apiServer: {disablePodSecurityPolicy: true, bogus: 1}}\n"
    assert findings(text, Generation.NETWORK_DOCUMENTS) == {
        "cluster.apiServer.disablePodSecurityPolicy": "deprecated",
        "cluster.apiServer.bogus": "error",
    }
    assert findings(text, Generation.ALL_DOCUMENTS) == {
        "cluster.apiServer": "deprecated",
        "cluster.apiServer.disablePodSecurityPolicy": "deprecated",
        "cluster.apiServer.bogus": "error",
    }


@pytest.mark.parametrize("generation", Generation)
def test_what_talosctl_writes_and_no_schema_knows_is_no_error(generation: Generation) -> None:
    """`persist` stands in every configuration that `talosctl gen config` made; elsewhere it is an unknown key."""
    assert findings(b"version: v1alpha1\npersist: true\nmachine: {}\n", generation) == {
        "persist": "deprecated"
    }
    assert findings(b"machine: {persist: true}\n", generation) == {"machine.persist": "error"}


def test_every_key_that_no_version_knows_is_named() -> None:
    """Each of them, with the document it stands in."""
    base = SEED_STYLE + f"bogus: {CANARY}\nother: {{x: {CANARY}}}\n".encode()
    found = lint(base, Generation.CLASSIC)
    assert [told(each) for each in found] == [
        "document 1 (v1alpha1): bogus: unknown key",
        "document 1 (v1alpha1): other: unknown key",
    ]
    assert {each.level for each in found} == {Level.ERROR}


@pytest.mark.parametrize(
    ("document", "path", "words"),
    [
        ("kind: Bogus\napiVersion: v1alpha1\n", "", "no kind of document that this version of Talos knows"),
        ("kind: VolumeConfig\nname: x\n", "", "lacks apiVersion"),
        (f"kind: VolumeConfig\napiVersion: {CANARY}\nname: x\n", "apiVersion", "is none of v1alpha1"),
        ("kind: VolumeConfig\napiVersion: v1alpha1\nname: 3\n", "name", "is not of type string"),
    ],
)
def test_a_fault_is_told_without_its_value(document: str, path: str, words: str) -> None:
    """What would have fitted is told instead."""
    (found,) = lint(document.encode(), Generation.CLASSIC)
    assert (found.path, found.words) == (path, words)


def test_an_address_without_its_prefix_is_told() -> None:
    """By the form that it should have."""
    document = b"apiVersion: v1alpha1\nkind: LinkConfig\nname: e\naddresses: [{address: 10.0.0.1}]\n"
    (found,) = lint(document, Generation.NETWORK_DOCUMENTS)
    assert (found.path, found.words[:24]) == ("addresses[0].address", "does not have the form ^")


def test_no_kind_of_document_was_dropped_yet() -> None:
    """What an older version knows, later ones do; so an unknown kind is never a deprecated one."""
    for older, later in itertools.pairwise(Generation):
        assert set(kinds(older)) <= set(kinds(later))


def test_what_came_between_two_schemas_is_no_error() -> None:
    """1.11 encrypts by VolumeConfig and has UserVolumeConfig, of which the schema of 1.9 knows nothing."""
    volume = (
        b"apiVersion: v1alpha1\nkind: VolumeConfig\nname: STATE\nencryption: {provider: luks2, keys: []}\n"
    )
    user = b"---\napiVersion: v1alpha1\nkind: UserVolumeConfig\nname: data\nprovisioning: {minSize: 10GB}\n"
    between = generation_of("v1.11.3")
    assert [(each.document, each.path, each.level) for each in lint(volume + user, between)] == [
        (1, "encryption", Level.UNPROVEN),
        (2, "", Level.UNPROVEN),
    ]
    assert HIDDEN not in preview(user, between)
    # What no schema knows is refused there as elsewhere, and so is a document of a still later one; 1.9 knows neither.
    assert findings(volume.replace(b"keys", b"keyz") + user, between)["encryption.keyz"] == "error"
    assert findings(user.replace(b"minSize", b"minSiez"), between)["provisioning.minSiez"] == "error"
    assert findings(b"machine: {bogus: 1}\n", between) == {"machine.bogus": "error"}
    assert findings(b"apiVersion: v1alpha1\nkind: EtcFileConfig\nname: a\n", between) == {"": "error"}
    assert {each.level for each in lint(volume + user, Generation.CLASSIC)} == {Level.ERROR}
    # What 1.12 dropped fits still.
    assert findings(SEED_STYLE, between) == {}


def test_so_many_findings_and_no_more() -> None:
    """A hostile document does not make a long answer."""
    many = "".join(f"k{n}: 1\n" for n in range(3 * MAX_FINDINGS))
    assert len(lint(many.encode(), Generation.CLASSIC)) == MAX_FINDINGS


# ---------------------------------------------------------------- beyond the schema

CA_KEYS = [
    "machine: {ca: {crt: x, key: K}}",
    "cluster: {ca: {crt: x, key: K}}",
    "cluster: {aggregatorCA: {crt: x, key: K}}",
    "cluster: {serviceAccount: {key: K}}",
    "cluster: {etcd: {ca: {crt: x, key: K}}}",
    "apiVersion: v1alpha1\nkind: KubeAPIServerCAConfig\nissuingCA: {cert: x, key: K}",
    "apiVersion: v1alpha1\nkind: KubeAggregatorCAConfig\nissuingCA: {cert: x, key: K}",
    "apiVersion: v1alpha1\nkind: KubeServiceAccountConfig\nissuer: {privateKey: K}",
]


@pytest.mark.parametrize("document", CA_KEYS)
def test_the_key_of_a_ca_is_for_control_planes(document: str) -> None:
    """Wherever a version keeps it."""
    words = "the key of a CA, which only control planes may have"
    text = document.encode() + b"\n"
    generation = Generation.ALL_DOCUMENTS if "kind" in document else Generation.CLASSIC
    assert words in [each.words for each in lint(text, generation, Role.WORKER_APP)]
    assert words not in [each.words for each in lint(text, generation, Role.CONTROLPLANE)]
    # What a configuration says it is counts where nobody says what the machine is.
    assert words in [each.words for each in lint(text, generation)]


def test_a_configuration_says_what_it_is() -> None:
    """Its type lets it have the keys where no role is given, and must be that of the role where one is."""
    text = b"machine: {type: controlplane, ca: {crt: x, key: K}}\n"
    assert lint(text, Generation.CLASSIC) == ()
    assert findings(text, Generation.CLASSIC, Role.WORKER_INFRA) == {
        "machine.ca.key": "error",
        "machine.type": "error",
    }
    assert findings(b"machine: {type: worker}\n", Generation.CLASSIC, Role.CONTROLPLANE) == {
        "machine.type": "error"
    }


def test_documents_have_names_of_their_own() -> None:
    """Two of a kind with one name, or without: which of them counts, only Talos knows."""
    one = b"---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: STATE\n"
    other = one.replace(b"STATE", b"EPHEMERAL")
    assert findings(one + other, Generation.CLASSIC) == {}
    assert [each.document for each in lint(one + other + one, Generation.CLASSIC)] == [1, 3]
    nameless = b"---\napiVersion: v1alpha1\nkind: KmsgLogConfig\nname: a\nurl: udp://10.0.0.1:1\n"
    assert findings(b"machine: {}\n---\nmachine: {}\n", Generation.CLASSIC) == {"": "error"}
    assert findings(nameless, Generation.CLASSIC) == {}


def test_a_hostname_goes_with_auto_off() -> None:
    """Talos refuses both."""
    document = b'apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\nauto: "stable"\n'
    assert findings(document, Generation.NETWORK_DOCUMENTS) == {"auto": "error"}
    assert findings(document.replace(b"stable", b"off"), Generation.NETWORK_DOCUMENTS) == {}
    assert findings(document.replace(b'auto: "stable"\n', b""), Generation.NETWORK_DOCUMENTS) == {}


@pytest.mark.parametrize(
    ("document", "member"),
    [
        ("kind: HostnameConfig\nhostname: a", "machine: {network: {hostname: a}}"),
        ("kind: HostnameConfig\nhostname: a", "machine: {features: {stableHostname: true}}"),
        ("kind: KubeNodeConfig", "machine: {nodeLabels: {}}"),
        ("kind: KubeNodeConfig", "machine: {nodeAnnotations: {a: b}}"),
        ("kind: KubeNodeConfig", "cluster: {allowSchedulingOnControlPlanes: false}"),
        (
            "kind: UnattendedInstallConfig\nprovisioning: {diskSelector: {match: 'true'}}",
            "machine: {install: {disk: /dev/sda}}",
        ),
    ],
)
def test_a_document_beside_what_it_took_the_place_of_is_refused(document: str, member: str) -> None:
    """As Talos does, which says so when the machine is there already; each alone is good."""
    text = f"apiVersion: v1alpha1\n{document}\n"
    both = findings(f"{member}\n---\n{text}".encode(), Generation.ALL_DOCUMENTS)
    assert both[""] == "error"
    assert findings(
        f"machine: {{features: {{stableHostname: false}}}}\n---\n{text}".encode(), Generation.ALL_DOCUMENTS
    ) == {"machine.features.stableHostname": "deprecated"}


def test_an_installation_says_which_disk_is_erased() -> None:
    """And is called as Talos calls it, where the schema has another word."""
    text = b"apiVersion: v1alpha1\nkind: UnattendedInstallConfig\ninstaller: {image: a}\n"
    assert findings(text, Generation.ALL_DOCUMENTS) == {"provisioning.diskSelector.match": "error"}
    text += b"provisioning: {diskSelector: {match: 'true'}, wype: true}\n"
    assert findings(text, Generation.ALL_DOCUMENTS) == {"provisioning.wype": "error"}
    assert findings(text.replace(b"InstallConfig", b"Install"), Generation.ALL_DOCUMENTS) == {"": "error"}


# ---------------------------------------------------------------- what is delivered


BASES = {
    Generation.CLASSIC: b"version: v1alpha1\nmachine:\n  install: {disk: /dev/sda}\n",
    Generation.CLASSIC_WITH_MORE: b"version: v1alpha1\nmachine:\n  install: {disk: /dev/sda}\n",
    Generation.NETWORK_DOCUMENTS: (
        b"version: v1alpha1\nmachine:\n  install: {disk: /dev/sda}\n"
        b"---\napiVersion: v1alpha1\nkind: LinkConfig\nname: eno1\n"
    ),
    Generation.ALL_DOCUMENTS: (
        b"version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: LinkConfig\nname: eno1\n"
    ),
}


@pytest.mark.parametrize("role", [Role.CONTROLPLANE, Role.WORKER_INFRA, Role.WORKER_APP])
@pytest.mark.parametrize("generation", Generation)
def test_what_is_completed_fits_the_schema_of_its_version(generation: Generation, role: Role) -> None:
    """For every role and each generation: nothing to say, not even of something deprecated."""
    own = Own(
        machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
        ek_fingerprint="1234567890123456" * 6,
        hostname="cp-1",
        assigned_ip="2001:db8::11/64",
        installer_image="registry.example/installer:v1",
    )
    assert lint(complete(BASES[generation], own, generation), generation, role) == ()
