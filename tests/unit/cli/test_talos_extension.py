"""What an extension of Talos may be made of, and what is refused: each rule without building one.

That one is built, read by others and started: tests/integration/deploy/test_talos_extension.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from attestation.errors import RequestInvalid
from attestation.talos.lint import lint
from attestation.talos.versions import Generation
from attestation_agent.settings import OPTIONS
from attestation_cli.commands.dev import Open, group
from attestation_cli.main import cli
from attestation_cli.talos_extension import build, documents, elf, image, interpreter, libraries, wheels
from attestation_cli.talos_extension.compiled import compiled
from attestation_cli.talos_extension.interpreter import Interpreter
from attestation_cli.talos_extension.libraries import Origin
from attestation_cli.talos_extension.tree import File, Tree
from attestation_service.delivery.routes import partial_documents
from tests.docs.pages import ROOT

HERE = interpreter.look_at(Path(sys.executable))
PROGRAM = HERE.program.read_bytes()
PYTHON = Interpreter(
    program=Path("/usr/bin/python3.12"),
    version=(3, 12, 1),
    prefix=Path("/usr"),
    library=Path("/usr/lib/python3.12"),
    modules=Path("/usr/lib/python3.12/lib-dynload"),
    libdir="lib",
    multiarch="x86_64-linux-gnu",
    machine="x86_64",
    glibc=(2, 36),
    built="_sysconfigdata__x86_64-linux-gnu",
)


def wheel(folder: Path, file: str, *, needs: str = "", members: Mapping[str, bytes] | None = None) -> Path:
    """Write a wheel."""
    path = folder / file
    info = "-".join(file.split("-")[:2]) + ".dist-info/METADATA"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, f"Metadata-Version: 2.1\n{needs}\n")
        for name, data in (members or {}).items():
            archive.writestr(name, data)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A folder with wheels of ours, and their sums."""
    made = [wheel(tmp_path, f"itl_attestation_{name}-0.1.0-py3-none-any.whl") for name in ("agent", "sdk")]
    (tmp_path / "SHA256SUMS").write_text("".join(f"{sha256(path)}  {path.name}\n" for path in made))
    return tmp_path


@pytest.mark.parametrize(
    ("file", "fits"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1-cp39-abi3-manylinux_2_36_x86_64.whl", True),
        ("a-1-2-cp312-cp312-linux_x86_64.whl", True),
        ("a-1-cp313-abi3-manylinux_2_36_x86_64.whl", False),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp312-cp312t-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp312-cp312-manylinux_2_39_x86_64.whl", False),
        ("a-1-cp312-cp312-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp312-cp312-manylinux_2_17_aarch64.whl", False),
        ("a-1-cp312-cp312-macosx_11_0_x86_64.whl", False),
        ("a-1-py2-none-any.whl", False),
    ],
)
def test_a_wheel_fits_python_the_c_library_and_the_machine(ours: Path, file: str, fits: bool) -> None:
    """One that does not is refused, by the words of what would; it is never taken because none else is there."""
    path = wheel(ours, file)
    lock = f"a==1\n    --hash=sha256:{sha256(path)}\n"
    if fits:
        assert [each.name for each in wheels.gather([ours], lock, PYTHON)] == ["a", *wheels.OURS]
    else:
        with pytest.raises(RequestInvalid, match=r"no wheel of a fits CPython 3.12, glibc 2.36, x86_64: a-1"):
            wheels.gather([ours], lock, PYTHON)


def test_the_closest_wheel_is_taken(ours: Path) -> None:
    """Of several the one that was compiled for this Python, then the one for the newest C library that is not newer."""
    names = (
        "cp39-abi3-manylinux_2_34_x86_64",
        "cp312-cp312-manylinux_2_28_x86_64",
        "cp312-cp312-manylinux2014_x86_64",
    )
    made = [wheel(ours, f"a-1-{name}.whl", members={f"m{n}.py": b""}) for n, name in enumerate(names)]
    lock = "a==1 " + " ".join(f"--hash=sha256:{sha256(path)}" for path in made)
    assert "m1.py" in wheels.gather([ours], lock, PYTHON)[0].members


def test_a_wheel_without_a_known_hash_is_refused(ours: Path) -> None:
    """By the lock for what others wrote, by the sums beside them for ours; a lock without hashes is none."""
    path = wheel(ours, "a-1-py3-none-any.whl")
    with pytest.raises(RequestInvalid, match=r"a-1-py3-none-any\.whl: its SHA-256 is not in the lock"):
        wheels.gather([ours], f"a==1 --hash=sha256:{'0' * 64}", PYTHON)
    with pytest.raises(RequestInvalid, match="no hash for b"):
        wheels.gather([ours], f"a==1 --hash=sha256:{sha256(path)}\nb==2\n", PYTHON)
    wheel(ours, "itl_attestation_agent-0.1.0-py3-none-any.whl", members={"other": b""})
    with pytest.raises(RequestInvalid, match=r"agent.*its SHA-256 is not in SHA256SUMS"):
        wheels.gather([ours], f"a==1 --hash=sha256:{sha256(path)}", PYTHON)


def test_a_list_vouches_for_its_own_folder_alone(
    ours: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Who fills a folder with what others wrote names no wheel of ours beside another list."""
    other = tmp_path_factory.mktemp("other")
    path = wheel(ours, "a-1-py3-none-any.whl")
    swapped = wheel(ours, "itl_attestation_agent-0.1.0-py3-none-any.whl", members={"other": b""})
    (other / "SHA256SUMS").write_text(f"{sha256(swapped)}  {swapped.name}\n", encoding="utf-8")
    with pytest.raises(RequestInvalid, match=r"agent.*its SHA-256 is not in SHA256SUMS"):
        wheels.gather([ours, other], f"a==1 --hash=sha256:{sha256(path)}", PYTHON)


def test_of_ours_there_is_one_version(ours: Path) -> None:
    """0.10.0 stands before 0.9.0 in the order of names: the older one would be taken in silence."""
    path = wheel(ours, "a-1-py3-none-any.whl")
    wheel(ours, "itl_attestation_agent-0.10.0-py3-none-any.whl")
    with pytest.raises(RequestInvalid, match=r"several versions of itl-attestation-agent: .*0\.10\.0"):
        wheels.gather([ours], f"a==1 --hash=sha256:{sha256(path)}", PYTHON)


def test_what_a_wheel_needs_is_there(ours: Path) -> None:
    """A lock of another version would give an agent that does not start."""
    path = wheel(
        ours, "a-1-py3-none-any.whl", needs='Requires-Dist: B.c>=2\nRequires-Dist: d; extra == "talos"'
    )
    lock = f"a==1 --hash=sha256:{sha256(path)}"
    with pytest.raises(RequestInvalid, match="a needs b-c, which the lock does not have"):
        wheels.gather([ours], lock, PYTHON)
    named = wheel(
        ours, "itl_attestation_agent-0.1.0-py3-none-any.whl", needs="Requires-Dist: e>1; extra == 'talos'"
    )
    (ours / "SHA256SUMS").write_text(
        (ours / "SHA256SUMS").read_text() + f"{sha256(named)}  {named.name}\n", encoding="utf-8"
    )
    with pytest.raises(RequestInvalid, match="there is no wheel of b-c"):
        wheels.gather([ours], f"{lock}\nb.c==1 --hash=sha256:{'0' * 64}", PYTHON)
    plain = wheel(ours, "a-1-py3-none-any.whl")
    with pytest.raises(RequestInvalid, match="itl-attestation-agent needs e, which the lock does not have"):
        wheels.gather([ours], f"a==1 --hash=sha256:{sha256(plain)}", PYTHON)


def test_of_a_wheel_only_what_runs_goes_in(ours: Path) -> None:
    """Modules, what they read, and licences; no types, no pages, nothing for a database that is not there."""
    path = wheel(
        ours,
        "a-1-py3-none-any.whl",
        members={"a/m.py": b"1", "a/m.pyi": b"", "a/data.json": b"{}", "a-1.dist-info/RECORD": b"",
           "a-1.dist-info/licenses/LICENSE": b"L", "a-1.data/data/share/x": b"", "a-1.data/purelib/p.py": b"2"},
    )  # fmt: skip
    found, *_ = wheels.gather([ours], f"a==1 --hash=sha256:{sha256(path)}", PYTHON)
    assert set(found.members) == {
        "a/m.py", "a/data.json", "a-1.dist-info/METADATA", "a-1.dist-info/licenses/LICENSE", "p.py"
    }  # fmt: skip


def test_a_file_of_a_wheel_stays_in_the_image() -> None:
    """A place that leads out of it, or that is taken by something else, is refused."""
    tree = Tree()
    for place in ("../x", "/x", "a//b", "a/../b", "./a", ""):
        with pytest.raises(RequestInvalid):
            tree.add(place, File(data=b""))
    tree.add("a", File(data=b"1"))
    with pytest.raises(RequestInvalid, match="two files of the image want to be a"):
        tree.add("a", File(data=b"2"))


@pytest.mark.parametrize(
    ("place", "stays"),
    [
        ("ssl.py", False),
        ("encodings/utf_8.py", False),
        ("encodings/shift_jis.py", True),
        ("tkinter/ttk.py", True),
        ("json/__pycache__/decoder.py", True),
        ("ctypes/test/x.py", True),
        ("_sysconfigdata__x86_64-linux-gnu.py", True),
        ("config-3.11-x86_64-linux-gnu/python-config.py", True),
        ("site-packages/pip/__init__.py", True),
    ],
)
def test_what_of_pythons_library_stays_behind(place: str, stays: bool) -> None:
    """What the agent never imports, other people's packages, and where Python was built."""
    assert PYTHON.is_left_out(Path(place)) is stays


def test_code_says_the_place_in_the_container_and_is_always_the_same() -> None:
    """Sets are in one order, nothing is compared with a source, and no path of this computer stands in it."""
    sources = {
        "usr/lib/m.py": b"def f(x): return x in {'a', 'b', 'c', 'd', 'e'}\n",
        "n.py": "s = 'ä'\n".encode(),
    }
    made = compiled(sources, HERE)
    assert made == compiled(sources, HERE)
    assert set(made) == {"usr/lib/m.pyc", "n.pyc"}
    assert b"/usr/lib/m.py" in made["usr/lib/m.pyc"]
    assert made["n.pyc"][4:8] == b"\x01\0\0\0", "PEP 552: a hash, and nobody compares it"
    with pytest.raises(RequestInvalid, match="could not be compiled"):
        compiled({"x.py": b"def"}, HERE)


def test_the_headers_of_a_program() -> None:
    """Of the Python that runs here: its machine, its loader, its C library."""
    found = elf.parse(PROGRAM, "python")
    assert found.machine == HERE.machine
    assert found.loader is not None
    assert Path(found.loader).exists()
    assert "libc.so.6" in found.needed


@settings(max_examples=60)
@given(st.integers(0, 4096), st.binary(max_size=64))
def test_headers_are_broken_in_one_way_only(at: int, change: bytes) -> None:
    """Whatever stands in them, a caller sees what they say or one error."""
    data = bytearray(PROGRAM[:200_000])
    data[at : at + len(change)] = change
    for cut in (bytes(data), bytes(data[:at]), change):
        with contextlib.suppress(RequestInvalid):
            elf.parse(cut, "x")


def test_a_library_that_is_missing_or_foreign_is_refused() -> None:
    """An extension with a hole starts nowhere; one of two machines neither."""
    binaries = {interpreter.PROGRAM: Origin(file=Path("/x/python3"), data=PROGRAM)}
    with pytest.raises(RequestInvalid, match=r"needs lib\S+, which is not on this computer"):
        libraries.closure(binaries, HERE, ())
    with pytest.raises(RequestInvalid, match=r"is compiled for .*, Python for other"):
        libraries.closure(binaries, replace(HERE, machine="other"), ())
    foreign = bytearray(PROGRAM)
    foreign[18:20] = (40).to_bytes(2, "little")
    with pytest.raises(RequestInvalid, match="compiled for machine 40"):
        libraries.closure({"a": Origin(file=None, data=bytes(foreign))}, HERE, ())


def test_a_library_keeps_its_folder_and_brings_its_own() -> None:
    """All that Python needs is found where the loader of this system looks, here as there."""
    binaries = {interpreter.PROGRAM: Origin(file=HERE.program, data=PROGRAM)}
    found = libraries.closure(binaries, HERE, libraries.standard_folders(HERE))
    names = {Path(place).name for place in found}
    assert {"libc.so.6", "libgcc_s.so.1"} <= names
    loader = elf.parse(PROGRAM, "python").loader
    assert loader is not None
    assert loader.lstrip("/") in found
    needed = {name for origin in found.values() for name in elf.parse(origin.data, "x").needed}
    assert needed <= names


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            '{"implementation": "pypy", "version": [3, 11, 0], "free_threaded": false}',
            "is pypy 3.11.0; CPython",
        ),
        (
            '{"implementation": "cpython", "version": [3, 10, 9], "free_threaded": false}',
            "is cpython 3.10.9; CPython",
        ),
        (
            '{"implementation": "cpython", "version": [3, 13, 0], "free_threaded": true}',
            "without the interpreter lock",
        ),
        (
            '{"implementation": "cpython", "version": [3, 12, 0], "free_threaded": false, "libc": ""}',
            "than glibc",
        ),
        (
            '{"implementation": "cpython", "version": [3, 12, 0], "free_threaded": false, "libc": "glibc 2.31"}',
            "glibc 2.31; from 2.34",
        ),
        ("Python 2", "not a Python that answers"),
    ],
)
def test_a_python_of_another_kind_is_refused(tmp_path: Path, said: str, told: str) -> None:
    """Another implementation, an old one, one without its lock, one on musl, or no Python at all."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat <<'E'\n{said}\nE\n")
    program.chmod(0o755)
    with pytest.raises(RequestInvalid, match=told):
        interpreter.look_at(program)


def test_a_python_without_pip_is_told_with_its_package(tmp_path: Path) -> None:
    """Debian's own Python has none until it is installed."""
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho "$0: No module named pip"; exit 1\n')
    program.chmod(0o755)
    with pytest.raises(RequestInvalid, match=r"has no pip for --fetch: install it \(Debian: python3-pip\)"):
        wheels.fetch([tmp_path / "lock"], tmp_path, replace(PYTHON, program=program))


def test_a_layer_has_no_times_no_owners_and_one_order() -> None:
    """Files that come in another order are the same archive; neither it nor its compression says when."""
    files = {"b/y": File(data=b"1", executable=True), "a": File(data=b"2")}
    first = image.layer(Tree(dict(files), {"e/f"}))
    assert first == image.layer(Tree(dict(reversed(files.items())), {"e/f"}))
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        said = [(each.name, oct(each.mode), each.uid, each.mtime) for each in archive]
    assert said == [
        ("b", "0o755", 0, 0), ("e", "0o755", 0, 0), ("e/f", "0o755", 0, 0), ("a", "0o644", 0, 0), ("b/y", "0o755", 0, 0)
    ]  # fmt: skip
    made = image.image(Tree(files), machine="aarch64", annotations={"org.opencontainers.image.version": "1"})
    zipped = next(data for data in made.blobs.values() if data.startswith(b"\x1f\x8b"))
    assert zipped[3:8] == bytes(5), "RFC 1952: no name, no time"


def test_what_would_be_too_large_is_refused() -> None:
    """With what takes the room: Talos holds it in memory."""
    tree = Tree({"a": File(data=bytes(build.MAX_BYTES + 1))})
    with pytest.raises(RequestInvalid, match=r"60\.0 MB, more than 60: packages 60\.0"):
        build._refuse_size(tree, {"packages": tree.size_bytes})
    build._refuse_size(Tree({"a": File(data=bytes(build.MAX_BYTES))}), {})


def test_a_path_of_this_computer_is_refused(tmp_path: Path) -> None:
    """Of the folders that were named, and of a Python that somebody has in their home."""
    tree = Tree({"x": File(data=b"built in " + str(tmp_path).encode())})
    with pytest.raises(RequestInvalid, match="holds the path"):
        build._refuse_own_places(tree, PYTHON, [tmp_path])
    at_home = replace(PYTHON, prefix=Path.home() / "python")
    tree = Tree({"x": File(data=str(at_home.prefix).encode())})
    with pytest.raises(RequestInvalid, match="installed for all"):
        build._refuse_own_places(tree, at_home, [])
    build._refuse_own_places(Tree({"x": File(data=b"/usr/lib")}), PYTHON, [tmp_path])


def test_only_public_keys_of_the_service_go_in() -> None:
    """An image is read by everybody."""
    private = [b'{"kty": "oct", "k": "AA"}', b'{"kty": "EC", "d": "AA"}', b'{"kty": "AKP", "priv": "AA"}']
    private += [b'{"kty": "RSA", "n": "AA", "p": "AA"}', b'{"kty": "EC", "note": "a password"}']
    for wrong in (b"x", b"[]", b"{}", b'{"keys": []}', *(b'{"keys": [%b]}' % key for key in private)):
        with pytest.raises(RequestInvalid, match="the service's keys"):
            build._public(wrong)
    assert (
        build._public(b'{"machine": 1, "keys": [{"kty": "EC", "x": "AA"}]}')
        == b'{"keys": [{"kty": "EC", "x": "AA"}]}'
    )


def test_the_service_waits_for_what_it_needs() -> None:
    """For a configuration, unless the image says the address; for the socket of machined and the network always."""
    waits = YAML(typ="safe").load(documents.service(server_url=None, pinned=False))
    knows = YAML(typ="safe").load(documents.service(server_url="https://attest.example", pinned=True))
    assert waits["depends"] == [{"configuration": True}, *knows["depends"]]
    assert set(knows["container"]["environment"]) - set(waits["container"]["environment"]) == {
        "ITL_REG_URL=https://attest.example",
        f"ITL_SERVICE_KEYS_FILE=/{documents.KEYS}",
    }
    mounted = {mount["destination"] for mount in waits["container"]["mounts"]}
    # sysfs brings the folder of the last; /var is on a disk that a machine in maintenance does not have.
    assert mounted == {f"/{place}" for place in documents.PLACES} - {"/proc", "/sys", "/tmp"} | {
        "/sys/kernel/security"
    }
    assert not [place for place in mounted if place.startswith("/var")]


@pytest.mark.parametrize(
    "url",
    [
        "attest.example",
        "ftp://a",
        "https://u:p@a",
        "https://a/?token=x",
        "https://a#x",
        "https://",
        "https://a b",
        "https://[a",
    ],
)
def test_an_address_with_something_beside_it_is_refused(url: str) -> None:
    """What stands in an image is read by everybody: no password, no token."""
    with pytest.raises(RequestInvalid, match="the address of the service"):
        documents.service(server_url=url, pinned=False)


@pytest.mark.parametrize(
    ("talos", "good"),
    [
        (">= v1.9.0", True),
        (">= v1.9.0 < v1.15.0-alpha.0", True),
        ("1.9", False),
        ("", False),
        (">= v1.9.0 # x", False),
    ],
)
def test_a_range_of_versions_is_one(talos: str, good: bool) -> None:
    """A Talos that cannot read it boots without the extension."""
    if good:
        assert YAML(typ="safe").load(documents.manifest(version="1", talos=talos))["metadata"][
            "compatibility"
        ] == {"talos": {"version": talos}}
    else:
        with pytest.raises(RequestInvalid, match="no range of versions"):
            documents.manifest(version="1", talos=talos)


EXAMPLE = re.search(
    r"^```yaml\n(.*?)^```",
    (ROOT / "docs/operate/talos-extension.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


@pytest.mark.parametrize("generation", Generation)
def test_the_documented_settings_fit_each_version_of_talos(generation: Generation) -> None:
    """The schema of each takes the page's example, which names this service, as `/config` does."""
    assert EXAMPLE is not None
    assert lint(EXAMPLE[1].encode(), generation) == ()
    example = YAML(typ="safe").load(EXAMPLE[1])
    partial = YAML(typ="safe").load(partial_documents("https://attest.example"))
    assert example["name"] == partial["name"] == documents.NAME
    variables = {line.partition("=")[0] for line in (*example["environment"], *partial["environment"])}
    assert variables <= {option.variable for option in OPTIONS}


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    """Nothing of an earlier build, or of somebody else, is mixed into an image."""
    (tmp_path / "x").write_text("mine")
    words = [
        "dev",
        "talos-extension",
        "--to",
        str(tmp_path),
        "--wheels",
        str(tmp_path),
        "--lock",
        str(tmp_path / "x"),
    ]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert "is not empty" in done.output
    assert not (tmp_path / "index.json").exists()


def test_the_test_kit_stands_beside_what_is_ours() -> None:
    """`dev` is a group of ours; what a plug-in of its name has is added, and replaces nothing."""
    context = click.Context(group)
    assert group.list_commands(context) == ["talos-extension", "ek-zoo", "new-extension"]
    assert group.get_command(context, "ek-zoo") is not None

    class Foreign(Open):
        def _added(self) -> click.Group:
            return click.Group("dev", commands=[click.Command("talos-extension"), click.Command("other")])

    mine = click.Command("talos-extension")
    both = Foreign("dev", commands=[mine])
    assert both.list_commands(context) == ["talos-extension", "other"]
    assert both.get_command(context, "talos-extension") is mine
