"""No secret of a configuration reaches a preview, a difference or a finding (D§2.4)."""

from __future__ import annotations

import pytest

from attestation.errors import BaseConfigInvalid
from attestation.talos.lint import lint, told
from attestation.talos.redaction import HIDDEN, differences, preview
from attestation.talos.versions import Generation

CANARY = "canary-7c1f0b"

CLASSIC = [
    "machine: {token: C}",
    "machine: {ca: {crt: public, key: C}}",
    "cluster: {token: C}",
    "cluster: {etcd: {ca: {crt: public, key: C}}}",
    "cluster: {secret: C}",
    "cluster: {network: {cni: {name: flannel, flannel: {extraArgs: [C]}}}}",
    "cluster: {ca: {crt: public, key: C}}",
    "cluster: {aggregatorCA: {crt: public, key: C}}",
    "cluster: {serviceAccount: {key: C}}",
    "cluster: {aescbcEncryptionSecret: C}",
    "cluster: {secretboxEncryptionSecret: C}",
    "cluster: {inlineManifests: [{name: shown, contents: C}]}",
    "cluster: {extraManifestHeaders: {Authorization: C}}",
    "cluster: {apiServer: {env: {PASSWORD: C}, extraArgs: {some-token: C}}}",
    "machine: {env: {https_proxy: 'http://u:C@proxy:3128'}}",
    "machine: {files: [{content: C, permissions: 384, path: /var/shown, op: create}]}",
    "machine: {pods: [{spec: {containers: [{env: [{name: X, value: C}]}]}}]}",
    "machine: {registries: {config: {r.example: {auth: {username: C, password: C, auth: C, identityToken: C}}}}}",
    "machine: {systemDiskEncryption: {state: {keys: [{slot: 0, static: {passphrase: C}}]}}}",
    "machine: {network: {interfaces: [{interface: wg0, wireguard: {privateKey: C, peers: [{presharedKey: C}]}}]}}",
    "machine: {network: {interfaces: [{interface: e, vip: {ip: 10.0.0.1, hcloud: {apiToken: C}}}]}}",
    "apiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: shown\nenvironment: [X=C]",
    "apiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: a\nconfigFiles: [{content: C, mountPath: /shown}]",
    "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: 'https://C:C@shown.example/?jointoken=C#C'",
    "apiVersion: v1alpha1\nkind: VolumeConfig\nname: STATE\nencryption: {keys: [{slot: 0, static: {passphrase: C}}]}",
]
DOCUMENTS = [
    "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: https://shown.example\nuniqueToken: C",
    "apiVersion: v1alpha1\nkind: HCloudVIPConfig\nname: 10.0.0.1\nlink: e\napiToken: C",
    "apiVersion: v1alpha1\nkind: WireguardConfig\nname: wg0\nprivateKey: C\npeers: [{publicKey: x, presharedKey: C}]",
    "apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: r\nusername: u\npassword: C\nauth: C\nidentityToken: C",
    "apiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {X: C}",
    "apiVersion: v1alpha1\nkind: VolumeConfig\nname: STATE\nencryption: {keys: [{slot: 0, static: {passphrase: C}}]}",
]
LATE = [
    "apiVersion: v1alpha1\nkind: ContainerConfig\nname: c\nargs: [C]",
    "apiVersion: v1alpha1\nkind: DiscoveryIdentityConfig\nclusterSecret: C",
    "apiVersion: v1alpha1\nkind: KubeAPIServerCAConfig\nissuingCA: {cert: public, key: C}",
    "apiVersion: v1alpha1\nkind: KubeAggregatorCAConfig\nissuingCA: {cert: public, key: C}",
    "apiVersion: v1alpha1\nkind: KubeServiceAccountConfig\nissuer: {privateKey: C}",
    "apiVersion: v1alpha1\nkind: KubeEtcdEncryptionConfig\nconfig: {providers: [{aescbc: {keys: [{secret: C}]}}]}",
    "apiVersion: v1alpha1\nkind: KubeInlineManifestConfig\nname: shown\nmanifest: C",
    "apiVersion: v1alpha1\nkind: KubeExternalManifestConfig\nname: a\nurl: https://shown\nheaders: {Authorization: C}",
    "apiVersion: v1alpha1\nkind: KubeAPIServerConfig\nenv: {X: C}",
    "apiVersion: v1alpha1\nkind: KubeStaticPodConfig\nname: a\npod: {spec: {containers: [{env: [{value: C}]}]}}",
    "apiVersion: v1alpha1\nkind: EtcFileConfig\nname: shown\ncontents: C",
    "apiVersion: v1alpha1\nkind: CRICustomizationConfig\nname: a\ncontent: C",
    "apiVersion: v1alpha1\nkind: ContainerConfig\nname: a\nenvironment: [X=C]",
]
ANYWHERE = [
    "apiVersion: v1alpha1\nkind: OfALaterVersion\nname: C\nspec: {x: C}",
    "machine: {ofALaterVersion: C}",
    "machine: {ofALaterVersion: {x: [C, {y: C}]}}",
    "machine: {type: worker} # C",
    "# C\nmachine: {type: worker}",
]

CASES = [
    *((Generation.CLASSIC, each) for each in CLASSIC + ANYWHERE),
    *((Generation.NETWORK_DOCUMENTS, each) for each in CLASSIC + DOCUMENTS + ANYWHERE),
    *((Generation.ALL_DOCUMENTS, each) for each in CLASSIC + DOCUMENTS + LATE + ANYWHERE),
]


@pytest.mark.parametrize(("generation", "document"), CASES, ids=lambda value: str(value)[:60])
def test_a_secret_is_never_shown(generation: Generation, document: str) -> None:
    """In each member that holds one, of its version or an older one; in comments, and in what nobody knows."""
    text = "".join(_in_place(document))
    changed = text.replace(CANARY, f"{CANARY}-other").encode()
    assert CANARY in text
    shown = preview(text.encode(), generation)
    assert CANARY not in shown
    told_of = differences(text.encode(), changed, generation)
    assert CANARY not in repr(told_of)
    assert CANARY not in " ".join(told(each) for each in lint(text.encode(), generation))
    if "# " not in document:
        assert HIDDEN in shown
        # That it changes is told, though not how.
        assert told_of


def _in_place(document: str) -> list[str]:
    """Put the canary where a lone C stands."""
    out = []
    for index, character in enumerate(document):
        around = document[max(0, index - 1) : index] + document[index + 1 : index + 2]
        out.append(CANARY if character == "C" and not any(each.isalpha() for each in around) else character)
    return out


def test_what_is_no_secret_is_shown() -> None:
    """Keys, types, addresses, labels: a preview is there to be read."""
    text = b"""\
version: v1alpha1
machine:
  type: worker
  certSANs: [10.0.0.1]
  install: {disk: /dev/sda, image: 'r.example/installer:v1'}
  nodeLabels: {a: b}
  sysctls: {net.core.somaxconn: '65535'}
  ca: {crt: public, key: x}
cluster:
  clusterName: prod
  controlPlane: {endpoint: 'https://10.0.0.1:6443'}
"""
    assert preview(text, Generation.CLASSIC) == (
        """\
version: v1alpha1
machine:
  type: worker
  certSANs:
  - 10.0.0.1
  install:
    disk: /dev/sda
    image: r.example/installer:v1
  nodeLabels:
    a: b
  sysctls:
    net.core.somaxconn: '65535'
  ca:
    crt: public
    key: <redacted>
cluster:
  clusterName: prod
  controlPlane:
    endpoint: https://10.0.0.1:6443
"""
    )


def test_an_address_shows_where_it_leads_and_no_more() -> None:
    """Neither who is let in, nor what is asked."""
    text = b"apiVersion: v1alpha1\nkind: KmsgLogConfig\nname: a\nurl: 'tcp://u:p@10.0.0.1:514/x?y=z#w'\n"
    assert "url: tcp://10.0.0.1:514/x?<redacted>\n" in preview(text, Generation.CLASSIC)


def test_a_difference_tells_what_came_went_and_changed() -> None:
    """By document and path."""
    before = (
        b"machine: {type: worker, token: a}\n---\napiVersion: v1alpha1\nkind: VolumeConfig\nname: STATE\n"
    )
    after = b"machine: {type: controlplane, token: b, install: {disk: /dev/sda}}\n"
    told_of = [
        (e.document, e.path, e.before, e.after) for e in differences(before, after, Generation.CLASSIC)
    ]
    assert told_of == [
        ("VolumeConfig STATE", "apiVersion", "v1alpha1", None),
        ("VolumeConfig STATE", "kind", "VolumeConfig", None),
        ("VolumeConfig STATE", "name", "STATE", None),
        ("v1alpha1", "machine.install.disk", None, "/dev/sda"),
        ("v1alpha1", "machine.token", HIDDEN, HIDDEN),
        ("v1alpha1", "machine.type", "worker", "controlplane"),
    ]


def test_the_same_differs_in_nothing() -> None:
    """Comments, quotes and the order of documents are not what a machine is told."""
    one, other = b"machine: {type: worker} # a\n", b"# b\nmachine:\n  type: 'worker'\n"
    assert differences(one, other, Generation.CLASSIC) == ()


@pytest.mark.parametrize("value", ["0x" + "f" * 6000, "18446744073709551616", '"\\ud800"', '{"\\ud800": 1}'])
def test_what_cannot_be_said_again_is_refused(value: str) -> None:
    """A number that Python does not write, or others cut off; a text that is none in UTF-8: told before it is shown."""
    text = f"machine: {{type: {value}}}\n".encode()
    for look in (preview, lint):
        with pytest.raises(BaseConfigInvalid):
            look(text, Generation.CLASSIC)
    with pytest.raises(BaseConfigInvalid):
        differences(b"machine: {}\n", text, Generation.CLASSIC)


def test_an_anchor_changes_no_value() -> None:
    """What is true stays true, for who sees it and who judges it."""
    text = b"machine: {install: {wipe: &x true}}\n"
    assert "wipe: true" in preview(text, Generation.CLASSIC)
    assert lint(text, Generation.CLASSIC) == ()
