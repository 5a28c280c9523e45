"""Modules as code objects: what the agent starts with at once, in half the room of text beside code.

A code object says where it came from by its place in the container, and is never compared with a source: it names no
path of this computer, and no time.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Final

from attestation.errors import RequestInvalid
from attestation_cli.talos_extension.interpreter import Interpreter

SECONDS: Final = 240

# By the Python that will run them: each version has its own code. Standard input: the length of a list, the list as
# JSON (place and size of each), then the sources; standard output the same with code objects.
_COMPILE: Final = """
import json, sys, warnings, _imp
from importlib._bootstrap_external import _RAW_MAGIC_NUMBER, _code_to_hash_pyc
warnings.simplefilter("ignore")
read, write = sys.stdin.buffer, sys.stdout.buffer
listed = json.loads(read.read(int(read.readline())))
made = []
for place, size in listed:
    source = read.read(size)
    code = compile(source, "/" + place, "exec", dont_inherit=True, optimize=0)
    made.append(bytes(_code_to_hash_pyc(code, _imp.source_hash(_RAW_MAGIC_NUMBER, source), False)))
head = json.dumps([len(each) for each in made]).encode()
write.write(b"%d\\n" % len(head) + head)
for each in made:
    write.write(each)
"""


def compiled(sources: Mapping[str, bytes], python: Interpreter) -> dict[str, bytes]:
    """Return the code of each module by its place, which ends in .pyc.

    Raises:
        RequestInvalid: A source is not Python, for this one.
    """
    places = sorted(sources)
    head = json.dumps([[place, len(sources[place])] for place in places]).encode()
    try:
        done = subprocess.run(  # noqa: S603 -- a list, no shell: the Python that the caller named
            [python.program, "-s", "-S", "-c", _COMPILE],
            input=b"%d\n%b" % (len(head), head) + b"".join(sources[place] for place in places),
            capture_output=True,
            # Sets of constants are written in the order of their hashes.
            env={"PYTHONHASHSEED": "0"},
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise RequestInvalid(f"the modules could not be compiled: {e}") from e
    if done.returncode != 0:
        raise RequestInvalid(
            f"the modules could not be compiled: {done.stderr.decode(errors='replace')[-1000:]}"
        )
    first, _, rest = done.stdout.partition(b"\n")
    at = int(first)
    made: dict[str, bytes] = {}
    for place, size in zip(places, json.loads(rest[:at]), strict=True):
        made[f"{place}c"] = rest[at : at + size]
        at += size
    return made
