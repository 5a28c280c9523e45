"""A schematic's id is the one that the factory gives it, and none holds a secret or names a machine (D§6, R40)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from attestation.errors import RequestInvalid, SchematicInvalid
from attestation.talos.images import image_url, installer_image
from attestation.talos.schematic import (
    CONFIG_QUERY,
    MetaValue,
    Overlay,
    Schematic,
    config_argument,
    parse,
)

GOLDEN = Path(__file__).parent / "golden" / "schematic.yaml"
EMPTY = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"
CANARY = "Zm9vYmFyMTIzNDU2Nzg5MGFiY2RlZg"

OF_THE_FACTORY = {
    EMPTY: "customization: {}",
    "9cba8e32753f91a16c1837ab8abf356af021706ef284aef07380780177d9a06c": (
        '{"customization": {"extraKernelArgs": ["noapic", "nolapic"], "systemExtensions": {}}}'
    ),
    "d308a2a5ee2277bed5fbaa104fcbc8d59122abfa737df987a95b4ca763459a7f": (
        '{"customization": {"meta": [{"key": 10, "value": "foo"}], "extraKernelArgs": []}}'
    ),
    "fa8e05f142a851d3ee568eb0a8e5841eaf6b0ebc8df9a63df16ac5ed2c04f3e6": (
        '{"customization":{"secureboot": {"includeWellKnownCertificates": true}}}'
    ),
    "ee21ef4a5ef808a9b7484cc0dda0f25075021691c8c09a276591eedb638ea1f9": (
        '{"overlay": {"name": "rpi_generic", "image": "siderolabs/sbc-raspberrypi"}}'
    ),
}
"""Schematics and their ids, from the factory's own tests (siderolabs/image-factory, pkg/schematic, TestUnmarshalID)."""


@pytest.mark.parametrize("text", OF_THE_FACTORY.values(), ids=lambda text: text[:40])
def test_the_ids_are_those_of_the_factory(text: str) -> None:
    """Byte for byte the text that the factory hashes: else ours would name another image."""
    assert OF_THE_FACTORY[parse(text.encode()).id] == text


def whole() -> Schematic:
    """Return a schematic with every member."""
    return Schematic(
        embedded_machine_configuration="apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: any\n",
        extra_kernel_args=(
            config_argument("https://attest.example"),
            "console=ttyS0,115200n8",
            "yes",
            "{a: 1}",
        ),
        meta=(MetaValue(key=12, value="tag #4"), MetaValue(key=13, value="12")),
        official_extensions=("siderolabs/gvisor", "siderolabs/intel-ucode"),
        bootloader="sd-boot",
        enroll_keys="off",
        include_well_known_certificates=True,
        sector_size=4096,
        overlay=Overlay(
            image="siderolabs/sbc", name="rpi", options={"configTxt": "a\nb\n", "b": True, "a": 3}
        ),
    )


def test_every_member_stands_in_its_place() -> None:
    """The whole text, as reviewed: another order or style would be another id."""
    assert whole().canonical().decode() == GOLDEN.read_text()


def test_what_is_written_is_read_alike() -> None:
    """By our reader and by a YAML reader that knows nothing of schematics."""
    assert parse(whole().canonical()) == whole()
    read = YAML(typ="safe").load(whole().canonical())
    assert (
        read["customization"]["extraKernelArgs"][0]
        == f"talos.config=https://attest.example/api/v1/config?{CONFIG_QUERY}"
    )
    assert read["customization"]["extraKernelArgs"][2:] == ["yes", "{a: 1}"]
    assert read["customization"]["secureboot"]["enrollKeys"] == "off"


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=18))
def test_no_argument_breaks_out_of_its_line(argument: str) -> None:
    """Whatever it says, it is read as this one text; or it is refused."""
    try:
        text = Schematic(extra_kernel_args=(argument,)).canonical()
    except SchematicInvalid:
        return
    assert YAML(typ="safe").load(text) == {"customization": {"extraKernelArgs": [argument]}}


HOST = "talos.config=https://attest.example/api/v1/config"
REFUSED = {
    "token-url": {"extra_kernel_args": (f"{HOST}/{CANARY}",)},
    "token-in-query": {"extra_kernel_args": (f"{HOST}?{CONFIG_QUERY}&token={CANARY}",)},
    "a-mac": {"extra_kernel_args": (f"{HOST}?mac=52:54:00:12:34:56",)},
    "no-query": {"extra_kernel_args": (HOST,)},
    "userinfo": {
        "extra_kernel_args": (f"talos.config=https://u:p@attest.example/api/v1/config?{CONFIG_QUERY}",)
    },
    "early": {"extra_kernel_args": ("talos.config.early=KLUv",)},
    "inline": {"extra_kernel_args": ("talos.config.inline=KLUv",)},
    "client-secret": {"extra_kernel_args": ("talos.config.oauth.client_secret=abc",)},
    "random": {"extra_kernel_args": (f"itl.x={CANARY}",)},
    "uuid": {"extra_kernel_args": ("itl.machine=7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",)},
    "hex": {"extra_kernel_args": ("itl.x=" + "0123456789abcdef" * 4,)},
    "proxy": {"extra_kernel_args": ("talos.environment=https_proxy=http://u:p@proxy:3128",)},
    "password": {"extra_kernel_args": ("itl.wifi_password=a",)},
    "two-lines": {"extra_kernel_args": ("a\nb: c",)},
    "behind-a-blank": {"extra_kernel_args": ("console=tty0 itl.wifi_password=a",)},
    "url-behind-a-blank": {"extra_kernel_args": (f"panic=0 {HOST}?mac=52:54:00:12:34:56",)},
    "join-token": {"extra_kernel_args": ("siderolink.api=grpc://omni.example:8090?jointoken=a",)},
    "bare": {"extra_kernel_args": (CANARY,)},
    "machine-token": {"meta": (MetaValue(key=0x10, value="a"),)},
    "console-code": {"meta": (MetaValue(key=0xB, value="a"),)},
    "uuid-override": {"meta": (MetaValue(key=0xF, value="a"),)},
    "state-encryption": {"meta": (MetaValue(key=0x9, value="a"),)},
    "wireguard": {"meta": (MetaValue(key=0xA, value="links: [{wireguard: {privateKey: a}}]\n"),)},
    "meta-list": {"meta": (MetaValue(key=0xA, value="- password: a\n"),)},
    "meta-environment": {"meta": (MetaValue(key=0xC, value="A=b token=a"),)},
    "meta-random": {"meta": (MetaValue(key=0xC, value=CANARY),)},
    "meta-key": {"meta": (MetaValue(key=256, value="a"),)},
    "embedded-token": {
        "embedded_machine_configuration": f"version: v1alpha1\nmachine: {{token: {CANARY}}}\n"
    },
    "embedded-environment": {
        "embedded_machine_configuration": (
            f"apiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: a\nenvironment: [A={CANARY}]\n"
        )
    },
    "embedded-unknown": {"embedded_machine_configuration": f"kind: Later\nvalue: {CANARY}\n"},
    "embedded-broken": {"embedded_machine_configuration": f"a: [{CANARY}\n"},
    "extension": {"official_extensions": ("gvisor",)},
    "options": {"overlay": Overlay(image="a", name="b", options={"wifiPassword": CANARY})},
    "option-name": {"overlay": Overlay(image="a", name="b", options={"a: b": "c"})},
    "sector": {"sector_size": 1 << 20},
    "many": {"extra_kernel_args": ("quiet",) * 65},
}


@pytest.mark.threat("T340")
@pytest.mark.parametrize("members", REFUSED.values(), ids=REFUSED)
def test_what_is_secret_or_of_one_machine_is_in_no_schematic(members: dict[str, object]) -> None:
    """There is none to send, and the refusal does not repeat the secret."""
    with pytest.raises(SchematicInvalid) as refused:
        Schematic(**members)  # type: ignore[arg-type]  # one member each
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "customisation: {}",
        "customization: {kernelArgs: [a]}",
        "customization: {meta: [{key: '10', value: a}]}",
        "customization: {meta: [{key: 10}]}",
        "customization: {meta: [a]}",
        "customization: {extraKernelArgs: a}",
        "customization: {extraKernelArgs: [1]}",
        "customization: {bootloader: lilo}",
        "customization: {diskImage: {sectorSize: true}}",
        "overlay: {options: {a: [b]}}",
        "- a",
        "a: [",
        "customization: {}\ncustomization: {}",
        "x" * (65 << 10),
    ],
)
def test_what_is_no_schematic_is_refused(text: str) -> None:
    """An unknown member would not be in the image, although somebody asked for it."""
    with pytest.raises(SchematicInvalid):
        parse(text.encode())


@pytest.mark.parametrize("text", ["a\nb", " a\nb\n", "a \nb\n", "a\nb\n\n", "\na\n"])
def test_a_text_whose_style_is_not_known_has_no_id(text: str) -> None:
    """Better no id than one that no factory gives."""
    with pytest.raises(SchematicInvalid, match="value"):
        _ = Schematic(meta=(MetaValue(key=12, value=text),)).id


def test_images_are_where_the_factory_has_them() -> None:
    """Golden addresses of its documentation."""
    factory = "https://factory.example"
    found = [
        image_url(factory, EMPTY, "v1.13.9"),
        image_url(factory, EMPTY, "v1.13.9", "raw", "arm64", secureboot=True),
        image_url(factory, EMPTY, "v1.13.9", "uki"),
        image_url(factory, EMPTY, "v1.13.9", "pxe"),
        installer_image(factory, EMPTY, "v1.13.9", secureboot=True),
    ]
    assert found == [
        f"{factory}/image/{EMPTY}/v1.13.9/metal-amd64.iso",
        f"{factory}/image/{EMPTY}/v1.13.9/metal-arm64-secureboot.raw.xz",
        f"{factory}/image/{EMPTY}/v1.13.9/metal-amd64-secureboot-uki.efi",
        f"{factory}/pxe/{EMPTY}/v1.13.9/metal-amd64",
        f"factory.example/metal-installer-secureboot/{EMPTY}:v1.13.9",
    ]


@pytest.mark.parametrize("version", ["v1.13", "1.13.9", "v1.13.9/../x", "latest"])
def test_an_image_is_of_one_release(version: str) -> None:
    """And a version is no way to another path."""
    with pytest.raises(RequestInvalid):
        image_url("https://factory.example", EMPTY, version)
    with pytest.raises(RequestInvalid):
        image_url("https://factory.example", EMPTY, "v1.13.9", "kernel", secureboot=True)
