"""A shard that cannot start says why in one line, and ends with 2; what it is told becomes its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.runtime.settings import settings_from
from duologue.session import __main__ as command
from duologue.session.process import build_shard, limits_of

pytestmark = pytest.mark.unit


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "configure_logs", lambda *how: None)
    return tmp_path / "duologue.toml"


def refused(config: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    config.write_text(text)
    assert command.main(["--config", str(config), "--id", "shard-1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("session shard: ")
    assert said.count("\n") == 1
    return said


def store_at(folder: Path, name: str = "none.sock") -> str:
    return f'[store]\nurl = "unix://{folder / name}"\n[bus]\nsocket_dir = "{folder}"\n'


def test_a_wrong_key_is_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "max_session`" in refused(config, "[session]\nmax_session = 3\n", capsys)


def test_an_unknown_pipeline_is_named(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "'nobody'" in refused(config, 'pipelines = ["nobody"]\n', capsys)


def test_a_store_that_does_not_answer_is_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'pipelines = ["loopback"]\n' + store_at(config.parent)
    assert "store" in refused(config, text, capsys)


def test_a_store_address_that_is_none_is_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "[store] url" in refused(config, 'pipelines = ["loopback"]\n[store]\nurl = "http://x"\n', capsys)


def test_the_settings_become_the_limits_of_every_session(tmp_path: Path) -> None:
    settings = settings_from(
        {
            "pipelines": ["loopback"],
            "session": {"idle_ttl_s": 12.0, "max_pending_turns": 2, "max_sessions": 7, "drain_s": 4.0},
            "gateway": {"journal_deadline_ms": 100},
            "bus": {"socket_dir": str(tmp_path)},
        }
    )
    limits = limits_of(settings)
    assert (limits.idle_ttl_s, limits.max_pending_turns, limits.journal_deadline_s) == (12.0, 2, 0.1)
    shard = build_shard(settings, id="shard-9")
    assert (shard.options.id, shard.admission.max_sessions, shard.options.shutdown_s) == ("shard-9", 7, 4.0)
    assert [pipeline.name for pipeline in shard.pipelines] == ["loopback"]
    shard.offload.close()
