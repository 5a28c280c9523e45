"""Which extensions `./dev run` enables, and with what settings."""

from __future__ import annotations

from pathlib import Path

from tools.demo import _parser
from tools.demo_extensions import NAMES, prepare


def test_extensions_of_the_caller_stand_beside_the_demo_s(tmp_path: Path) -> None:
    """Each once; a setting of the caller goes before the demo's."""
    options = _parser().parse_args(["--extensions", "hooks,metrics"])
    ours = prepare(tmp_path, 4050)
    theirs = {
        "ITL_EXT_HOOKS_MODULES": "our_hooks",
        "ITL_EXT_MACHINE_IDENTITY_AUDIENCES": "openbao",
    }
    both = prepare(tmp_path, 4050, names=options.extensions, settings=theirs)
    assert both == ours | theirs | {"ITL_EXTENSIONS": ",".join((*NAMES, "hooks"))}
    assert _parser().parse_args([]).extensions == ()
