"""What the wheels of programs carry beside their package: manual pages and shell completions, made as they are built.

Hatchling runs this for the members whose pyproject.toml names it. Each text is printed by the program itself, started
from the sources beside this file, so it is never older than the program; nothing of the environment reaches it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SECONDS = 120
MAN = "share/man/man1"
COMPLETIONS = {
    "bash": "share/bash-completion/completions/{}",
    "zsh": "share/zsh/site-functions/_{}",
    "fish": "share/fish/vendor_completions.d/{}.fish",
}
"""Where each shell looks for the completions of a program, below a prefix such as /usr or an environment."""


class ProgramsHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling fills the argument in itself
    """Asks each program of a member for its pages and completions."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add them to the files that the wheel puts into the prefix; an editable one has none."""
        if version == "editable":
            return
        self.made = tempfile.TemporaryDirectory()  # goes with this object, after the wheel is written
        for place, text in self._texts().items():
            file = Path(self.made.name) / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
            build_data["shared_data"][str(file)] = place

    def _texts(self) -> dict[str, str]:
        """Return what is added, by its place in the prefix.

        Raises:
            subprocess.CalledProcessError: A program does not print what it is asked for.
        """
        texts: dict[str, str] = {}
        for program, entry in sorted(self.metadata.core.scripts.items()):
            if program == "attestation":  # a page for each of its commands
                pages = Path(self.made.name) / "pages"
                self._said(entry, "man", "--to", str(pages))
                texts |= {f"{MAN}/{page.name}": page.read_text(encoding="utf-8") for page in pages.iterdir()}
            else:
                texts[f"{MAN}/{program}.1"] = self._said(entry, "--man")
            word = "completion" if program == "attestation" else "--completion"
            for shell, place in COMPLETIONS.items():
                texts[place.format(program)] = self._said(entry, word, shell)
        return texts

    def _said(self, entry: str, *words: str) -> str:
        """Return what a program prints; places in its environment begin with `share/`, wherever it is built."""
        module, function = entry.split(":")
        code = f"""import sys
sys.prefix = "."
from {module} import {function} as main
sys.argv[1:] = {list(words)!r}
sys.exit(main())"""
        sources = [Path(self.root), Path(self.root).parent / "sdk"]
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": ":".join(map(str, sources)), "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=True,
            timeout=SECONDS,
        )
        return done.stdout.decode("utf-8")
