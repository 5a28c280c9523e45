"""How a demo begins: what is thrown away, what is not, and which demos go together."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import demo, demo_start
from tools.demo_start import MADE_BY_DEMO, alone, prepare_data
from tools.stage import Failed


def test_only_what_a_demo_made_for_itself_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was named, or that holds a service of somebody's, is as it was."""
    own, named = tmp_path / "own", tmp_path / "named"
    monkeypatch.setattr(demo_start, "DEFAULT_DATA", own)
    for chosen, where, stays in ((None, own, False), (named, named, True)):
        prepare_data(chosen, demo=True)
        (where / "file").touch()
        prepare_data(chosen, demo=True)
        assert (where / "file").exists() is stays
    (own / "file").touch()
    prepare_data(None, demo=False)
    assert not (own / MADE_BY_DEMO).exists()
    prepare_data(None, demo=True)
    assert (own / "file").exists()


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    """They would fight over the TPMs; the next one may have it."""
    data = tmp_path / "data"
    with alone(data), pytest.raises(Failed, match="another"), alone(data):
        pass
    with alone(data):
        pass


@pytest.mark.parametrize(
    "options",
    [["--hsm"], ["--kubernetes", "--hsm", "--confidential"], ["--kubernetes", "--postgres"]],
    ids=" ".join,
)
def test_demos_that_do_not_go_together_are_refused(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    monkeypatch.setattr(sys, "argv", ["./dev run", *options])
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == 2
    assert options[0] in capsys.readouterr().err
