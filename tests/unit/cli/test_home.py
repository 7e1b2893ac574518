"""What a dead system left behind is swept by the next one, in whatever home; what lives is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.cli.home import Home

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def killed(home: Home) -> None:
    """Its locks are freed and nothing is cleaned: what the kernel does."""
    assert home._lock is not None and home._socket_lock is not None
    home._lock.close()
    home._socket_lock.close()


def test_a_dead_systems_sockets_are_swept_by_another_home(tmp_path: Path) -> None:
    dead, other = Home(tmp_path / "dead"), Home(tmp_path / "other")
    dead.take()
    (dead.socket_dir / "store.sock").touch()
    killed(dead)
    other.take()
    assert not dead.socket_dir.exists()
    other.leave()


def test_a_living_systems_sockets_stay(tmp_path: Path) -> None:
    living, other = Home(tmp_path / "living"), Home(tmp_path / "other")
    living.take()
    other.take()
    assert living.socket_dir.exists() and living.socket_dir.stat().st_mode & 0o777 == 0o700
    other.leave()
    assert living.socket_dir.exists() and not other.socket_dir.exists()
    living.leave()


def test_a_folder_that_is_not_known_to_be_dead_stays(tmp_path: Path, temporary_files: Path) -> None:
    unknown = Home(tmp_path / "unknown").socket_dir
    unknown.mkdir()
    home = Home(tmp_path / "home")
    home.take()
    assert unknown.exists()
    home.leave()
    assert list(temporary_files.iterdir()) == [unknown]
