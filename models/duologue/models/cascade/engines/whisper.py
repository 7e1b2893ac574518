"""Whisper on CTranslate2: a sound in, its text out. Blocking, for one thread.

Rule 1. CTranslate2 takes a window shorter than 30 s: 15 s cost a third. The sound is padded with silence
        up to the window and never cut to its own length, or the model makes words up.
Rule 2. Sound longer than one window is split where it is quietest.
Rule 3. What the model itself holds for no speech, or writes without conviction, is no text.
"""

from __future__ import annotations

import re
from pathlib import Path

import ctranslate2
import msgspec
import numpy as np
from tokenizers import Tokenizer

from duologue.hearing.mel import RATE, Floats, log_mel

SHORT_FRAMES = 1500
LONG_FRAMES = 3000
_SPLIT_FROM_S = 20
_SPLIT_TO_S = 28
_MIN_SAMPLES = RATE // 10
HINT = "Mm-hmm. Uh-huh. Hmm. Okay. Right. Yeah."
"""Given as what was said before, it makes the model write sounds of listening as such."""
_BRACKETED = re.compile(r"\([^)]*\)|\[[^\]]*\]|\*[^*]*\*|[♪♫]+")


class Heard(msgspec.Struct, frozen=True):
    """`confidence`: mean log probability of a token. `no_speech`: how sure the model is that nobody spoke."""

    text: str
    confidence: float = 0.0
    no_speech: float = 0.0


class Whisper:
    """The recogniser of one process."""

    def __init__(self, folder: Path, threads: int, min_confidence: float, max_no_speech: float) -> None:
        self._model = ctranslate2.models.Whisper(
            str(folder), device="cpu", compute_type="int8", inter_threads=1, intra_threads=threads
        )
        self._tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
        hint = [self._tokens.token_to_id("<|startofprev|>"), *self._encode(" " + HINT)]
        names = ["<|startoftranscript|>", "<|notimestamps|>"]
        if self._model.is_multilingual:
            names[1:1] = ["<|en|>", "<|transcribe|>"]
        self._prompt = [self._tokens.token_to_id(name) for name in names]
        self._hinted = hint + self._prompt
        self._min_confidence = min_confidence
        self._max_no_speech = max_no_speech

    def transcribe(self, pcm: Floats) -> str:
        """The words in mono sound at 16 kHz; empty if there are none."""
        texts = [self.listen(piece) for piece in split(pcm)]
        return " ".join(heard.text for heard in texts if heard.text and self._believed(heard))

    def listen(self, pcm: Floats, *, hinted: bool = False) -> Heard:
        """One window, at most 30 s, with the figures that `transcribe` judges by. `hinted`: signs of
        listening are to be expected; `no_speech` then says nothing."""
        if len(pcm) < _MIN_SAMPLES:
            return Heard("", no_speech=1.0)
        mel = log_mel(pcm)
        window = SHORT_FRAMES if mel.shape[1] <= SHORT_FRAMES else LONG_FRAMES
        padded = np.zeros((1, mel.shape[0], window), np.float32)
        padded[0, :, : mel.shape[1]] = mel[:, :window]
        seconds = len(pcm) / RATE
        prompt = self._hinted if hinted else self._prompt
        result = self._model.generate(
            ctranslate2.StorageView.from_array(padded),
            [prompt],
            beam_size=1,
            # Nobody speaks more than about six tokens a second; a loop of the decoder does.
            max_length=len(prompt) + 8 + int(10 * seconds),
            return_scores=True,
            return_no_speech_prob=True,
        )[0]
        text = self._tokens.decode(result.sequences_ids[0])
        return Heard(_plain(text), float(result.scores[0]), float(result.no_speech_prob))

    def _encode(self, text: str) -> list[int]:
        return self._tokens.encode(text, add_special_tokens=False).ids

    def _believed(self, heard: Heard) -> bool:
        return heard.confidence >= self._min_confidence and heard.no_speech <= self._max_no_speech


def split(pcm: Floats) -> list[Floats]:
    """Pieces that fit into a window, cut at the quietest tenth of a second."""
    pieces = []
    while len(pcm) > _SPLIT_TO_S * RATE:
        tenth = RATE // 10
        region = pcm[_SPLIT_FROM_S * RATE : _SPLIT_TO_S * RATE].reshape(-1, tenth)
        cut = _SPLIT_FROM_S * RATE + int(np.argmin(np.square(region).sum(axis=1))) * tenth + tenth // 2
        pieces.append(pcm[:cut])
        pcm = pcm[cut:]
    return [*pieces, pcm]


def _plain(text: str) -> str:
    """Without the sounds that are written in brackets."""
    return " ".join(_BRACKETED.sub(" ", text).split())
