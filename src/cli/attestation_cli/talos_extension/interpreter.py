"""The Python that goes into the extension: what it is, and those of its files that the agent needs."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attestation.errors import RequestInvalid
from attestation_cli.talos_extension.tree import File, Tree

OLDEST: Final = (3, 11)
OLDEST_GLIBC: Final = (2, 34)
"""Older ones read hosts and ask for names by libraries that no file names: nothing here would find them."""

SECONDS: Final = 60

PROGRAM: Final = "usr/bin/python3"
"""Where it stands in the container; from there it finds its library."""

_ASK: Final = """
import json, os, platform, sys, sysconfig
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (AttributeError, OSError, ValueError):
    libc = ""
print(json.dumps({
    "program": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
    "implementation": sys.implementation.name,
    "version": list(sys.version_info[:3]),
    "prefix": sys.base_prefix,
    "library": sysconfig.get_path("stdlib"),
    "modules": sysconfig.get_config_var("DESTSHARED") or "",
    "libdir": sys.platlibdir,
    "multiarch": sysconfig.get_config_var("MULTIARCH") or "",
    "machine": platform.machine(),
    "libc": libc,
    "built": sysconfig._get_sysconfigdata_name(),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
}))
"""

# What the agent never imports. Each is a large part of the library, or wants a shared library of its own.
LEFT_OUT: Final = frozenset(
    {
        # other people's packages, and what installs them
        "site-packages",
        "dist-packages",
        "ensurepip",
        "venv",
        "distutils",
        "lib2to3",
        # tests, documentation, examples, tools for who writes programs
        "test",
        "tests",
        "idlelib",
        "pydoc_data",
        "pydoc.py",
        "doctest.py",
        "unittest",
        "turtledemo",
        "turtle.py",
        "pdb.py",
        "bdb.py",
        "cProfile.py",
        "profile.py",
        "pstats.py",
        "trace.py",
        "tabnanny.py",
        "antigravity.py",
        "this.py",
        "__phello__",
        "__phello__.foo.py",
        # windows, terminals, sounds, databases
        "tkinter",
        "curses",
        "sqlite3",
        "dbm",
        "imghdr.py",
        "sndhdr.py",
        "aifc.py",
        "sunau.py",
        "wave.py",
        "chunk.py",
        # protocols that nothing here speaks
        "wsgiref",
        "xmlrpc",
        "cgi.py",
        "cgitb.py",
        "ftplib.py",
        "imaplib.py",
        "mailbox.py",
        "mailcap.py",
        "nntplib.py",
        "poplib.py",
        "smtpd.py",
        "smtplib.py",
        "telnetlib.py",
        "webbrowser.py",
        "msilib",
        # written in Python what is compiled in
        "_pydecimal.py",
        "_pyio.py",
        "__pycache__",
    }
)
_MODULES_LEFT_OUT: Final = (
    "_bz2",
    "_codecs_",
    "_crypt",
    "_ctypes_test",
    "_curses",
    "_dbm",
    "_gdbm",
    "_interp",
    "_lsprof",
    "_lzma",
    "_multibytecodec",
    "_remote_debugging",
    "_sqlite3",
    "_test",
    "_tkinter",
    "_xx",
    "_zstd",
    "audioop",
    "nis",
    "ossaudiodev",
    "readline",
    "spwd",
    "xxlimited",
    "xxsubtype",
)
"""Compiled modules whose names begin so: for what is left out above, or for alphabets that no protocol of ours has."""

_PLACE_OF_ITS_BUILD: Final = ("_sysconfigdata", "_sysconfig_vars", "config-", "lib-dynload", "LICENSE")
"""Paths and options of where Python was built, which only who compiles needs; and what has a place of its own here."""

_BUILT: Final = b"build_time_vars = {'TZPATH': '/usr/share/zoneinfo'}\n"
"""Instead of all that: what zoneinfo asks when it is imported."""

ENCODINGS: Final = frozenset(
    {
        "__init__",
        "aliases",
        "ascii",
        "charmap",
        "cp437",
        "cp1252",
        "hex_codec",
        "base64_codec",
        "idna",
        "latin_1",
    }
    | {"iso8859_1", "iso8859_15", "punycode", "raw_unicode_escape", "unicode_escape", "undefined"}
    | {"utf_8", "utf_8_sig", "utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A CPython of this computer.

    Args:
        program: The program itself, behind links and environments.
        version: Three numbers.
        prefix: What it was built to be installed in.
        library: Where its modules are.
        modules: Where its compiled modules are.
        libdir: `lib` or `lib64`: where below a prefix it looks for both.
        multiarch: `x86_64-linux-gnu` where Debian made it, or empty.
        machine: As `uname -m` says it.
        glibc: Two numbers.
        built: Name of the module that says how it was built.
    """

    program: Path
    version: tuple[int, int, int]
    prefix: Path
    library: Path
    modules: Path
    libdir: str
    multiarch: str
    machine: str
    glibc: tuple[int, int]
    built: str

    @property
    def home(self) -> str:
        """Where its library stands in the container."""
        return f"usr/{self.libdir}/python{self.version[0]}.{self.version[1]}"

    def is_left_out(self, path: Path) -> bool:
        """Whether a file of its library stays behind; *path* is relative to it."""
        top = path.parts[0]
        if LEFT_OUT.intersection(path.parts) or top.startswith(_PLACE_OF_ITS_BUILD):
            return True
        return top == "encodings" and path.stem not in ENCODINGS

    def sources(self) -> dict[str, bytes]:
        """Return the modules that go in, as text, by their places in the container."""
        found = {f"{self.home}/{self.built}.py": _BUILT}
        for path in sorted(self.library.rglob("*.py")):
            relative = path.relative_to(self.library)
            if not self.is_left_out(relative):
                found[f"{self.home}/{relative.as_posix()}"] = path.read_bytes()
        return found

    def binaries(self) -> dict[str, Path]:
        """Return the program and the compiled modules that go in, by their places in the container."""
        found = {PROGRAM: self.program}
        for path in sorted(self.modules.glob("*.so")):
            if not path.name.startswith(_MODULES_LEFT_OUT):
                found[f"{self.home}/lib-dynload/{path.name}"] = path
        return found

    def add_licence(self, tree: Tree) -> None:
        """Put its licence in, where it has it with it."""
        for path in (
            self.library / "LICENSE.txt",
            Path(f"/usr/share/doc/python{self.version[0]}.{self.version[1]}/copyright"),
        ):
            if path.is_file():
                tree.add("usr/share/doc/python/copyright", File(data=path.read_bytes()))
                return


def look_at(program: Path) -> Interpreter:
    """Ask a Python what it is.

    Raises:
        RequestInvalid: It does not answer, or is none that an extension can be made of.
    """
    try:
        done = subprocess.run(  # noqa: S603 -- a list, no shell: the Python that the caller named
            [program, "-I", "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=True,
        )
        said = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as e:
        raise RequestInvalid(f"{program}: not a Python that answers: {e}") from e
    version = tuple(said["version"])
    if said["implementation"] != "cpython" or version[:2] < OLDEST or said["free_threaded"]:
        built = " without the interpreter lock" if said["free_threaded"] else ""
        told = f"{said['implementation']} {'.'.join(map(str, version))}{built}"
        raise RequestInvalid(
            f"{program} is {told}; CPython from {OLDEST[0]}.{OLDEST[1]} is needed, with its lock"
        )
    name, _, number = said["libc"].partition(" ")
    if name != "glibc":
        raise RequestInvalid(
            f"{program} stands on another C library than glibc: name a Python that stands on glibc"
        )
    glibc = tuple(int(part) for part in number.split(".")[:2])
    if glibc < OLDEST_GLIBC:
        needed = ".".join(map(str, OLDEST_GLIBC))
        raise RequestInvalid(
            f"{program} stands on glibc {number}; from {needed} on it looks up names by itself"
        )
    return Interpreter(
        program=Path(said["program"]),
        version=(version[0], version[1], version[2]),
        prefix=Path(said["prefix"]),
        library=Path(said["library"]),
        modules=Path(said["modules"] or Path(said["library"]) / "lib-dynload"),
        libdir=said["libdir"],
        multiarch=said["multiarch"],
        machine=said["machine"],
        glibc=(glibc[0], glibc[1]),
        built=said["built"],
    )
