"""`duologue keys`: what it writes, what it leaves alone, and how a key is exchanged."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from duologue.bus.curve import AllowedKeys, CurveKeys, decoded, read_secret
from duologue.cli import keys
from duologue.cli.errors import UserError

pytestmark = pytest.mark.unit


def make(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    keys.add_arguments(parser)
    return keys.run(parser.parse_args(arguments))


def public(folder: Path, name: str) -> str:
    return CurveKeys(read_secret(folder / f"{name}.secret")).public


def allowed(folder: Path, *keys: str) -> list[bool]:
    listed = AllowedKeys((), folder / "allowed")
    return [decoded(key) in listed for key in keys]


def test_each_name_gets_a_pair_and_all_are_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    assert make(str(folder), "shard-1", "gateway-1") == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["allowed", "gateway-1.secret", "shard-1.secret"]
    assert (folder / "shard-1.secret").stat().st_mode & 0o777 == 0o600
    both = public(folder, "shard-1"), public(folder, "gateway-1")
    assert allowed(folder, *both) == [True, True]
    said = capsys.readouterr().out
    assert all(key in said for key in both)
    assert read_secret(folder / "shard-1.secret") not in said


def test_a_key_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(str(tmp_path))
    before = public(tmp_path, "fleet")
    make(str(tmp_path))
    assert public(tmp_path, "fleet") == before
    assert "has a key already" in capsys.readouterr().out
    assert len((tmp_path / "allowed").read_text().splitlines()) == 1


def test_a_key_is_exchanged_in_three_steps(tmp_path: Path) -> None:
    make(str(tmp_path), "shard-1", "shard-2")
    old, other = public(tmp_path, "shard-1"), public(tmp_path, "shard-2")
    make(str(tmp_path), "shard-1", "--renew")
    new = public(tmp_path, "shard-1")
    assert new != old
    assert allowed(tmp_path, old, new, other) == [True, True, True]
    make(str(tmp_path), "shard-1", "--retire")
    assert allowed(tmp_path, old, new, other) == [False, True, True]


def test_variables_for_compose_are_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(str(tmp_path), "one")
    make(str(tmp_path), "two")
    capsys.readouterr()
    make(str(tmp_path), "one", "--env")
    secret, listed = capsys.readouterr().out.splitlines()
    assert secret == f"DUOLOGUE_CURVE_SECRET='{read_secret(tmp_path / 'one.secret')}'"
    assert listed == f"DUOLOGUE_CURVE_ALLOWED='{public(tmp_path, 'one')},{public(tmp_path, 'two')}'"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("../x",), "no name of a process"),
        (("nobody", "--retire"), "cannot be read"),
        (("a", "b", "--env"), "one pair"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make(str(tmp_path / "keys"), *arguments)


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot keep keys"):
        make(str(tmp_path / "file" / "keys"))
