"""What a person gets wrong is one line before the conversation, and somebody says when a turn ends."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest

from duologue.cli import talk
from duologue.cli.main import main
from duologue.client import DuplexClient, SessionConfig, write_pcm16_wav

pytestmark = pytest.mark.unit


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "in.wav"
    write_pcm16_wav(path, b"\1\0" * 160, 16_000)
    return path


@pytest.fixture
def nobody_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    async def converse(*_: object) -> None:
        raise AssertionError("a conversation was begun")

    monkeypatch.setattr(talk, "_converse", converse)


@pytest.mark.usefixtures("nobody_is_called")
@pytest.mark.parametrize("out", [".", "no/such/folder/a.wav", "in.wav/a.wav"])
def test_an_unwritable_answer_is_told_before_the_conversation(
    wav: Path, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["talk", "--wav", str(wav), "--out", str(wav.parent / out)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("duologue talk: --out ")


def test_the_check_leaves_what_is_there(wav: Path, tmp_path: Path) -> None:
    before = wav.read_bytes()
    talk.check_writable(wav)
    talk.check_writable(tmp_path / "new.wav")
    assert wav.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["in.wav"]


@pytest.mark.usefixtures("nobody_is_called")
def test_a_wav_without_sound_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pcm16_wav(tmp_path / "empty.wav", b"", 16_000)
    assert main(["talk", "--wav", str(tmp_path / "empty.wav")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("empty.wav holds no sound")


@pytest.mark.usefixtures("nobody_is_called")
@pytest.mark.parametrize(
    "wrong",
    [["--wait", "0"], ["--wait=-1"], ["--wait", "nan"], ["--wait", "x"], ["--answers", "0"], ["--answers=-1"]],
)
def test_what_is_waited_for_is_positive(wav: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["talk", "--wav", str(wav), *wrong])
    assert ended.value.code == 2


def test_positive_numbers_are_taken() -> None:
    parser = argparse.ArgumentParser()
    talk.add_arguments(parser)
    options = parser.parse_args(["--say", "x", "--wait", "0.5", "--answers", "2"])
    assert (options.wait, options.answers) == (0.5, 2)


def test_a_model_that_ends_no_turns_is_opened_with_a_detector(wav: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[SessionConfig] = []

    async def converse(client: DuplexClient, *_: object) -> object:
        opened.append(client.config)
        return SimpleNamespace(responses=["an answer"])

    monkeypatch.setattr(talk, "_converse", converse)
    for ends in (False, True):
        monkeypatch.setattr(talk, "ends_its_turns", lambda *_, ends=ends: ends)
        assert main(["talk", "--wav", str(wav)]) == 0
    assert [(config.auto_response, config.turn_detection) for config in opened] == [
        (False, {"type": "server_vad"}),
        (True, None),
    ]


@pytest.mark.usefixtures("nobody_is_called")
def test_an_address_that_is_none_is_one_line(wav: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["talk", "--wav", str(wav), "--url", "ftp://x"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("duologue talk: --url: ")
