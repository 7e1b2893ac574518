"""One place for one session: all that the remote code keeps of it, and the swap that lets many share the weights.

The code is written for one session in a process. It keeps state in the duplex object (the caches of decoder and talker,
buffers), in the processor (the stream of spectra), in the model (the encoder's cache) and in the vocoder (its caches,
and whose voice it speaks with). A seat has its own of all of these; while it is `seated` they are the model's.

Rule 1. Nothing of the remote code is called outside of `seated`, and one seat is seated at a time.
Rule 2. The random numbers of a session are its own too: what it draws does not depend on who is beside it.
Rule 3. Objects are made once per slot, when the worker starts; `prepare` makes them new for a session.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from duologue.models.minicpmo_4_5.checkpoint import Checkpoint, accepted
from duologue.models.minicpmo_4_5.measure import state_bytes
from duologue.models.minicpmo_4_5.options import FIRST_WINDOW_MS, INPUT_RATE_HZ, Sampling, Window

Floats = npt.NDArray[np.float32]

OF_MODEL: Final = ("processor", "duplex", "audio_past_key_values", "audio_chunk_idx")
OF_VOCODER: Final = ("cache", "stream_cache", "hift_cache_dict", "_stream_prompt")
_TALKER_START: Final = {"tts_text_start_pos": 0, "tts_past_key_values": None, "tts_current_turn_start_time": None}
"""What the duplex object says of a talker that has said nothing in this turn."""
_DIARIES: Final = ("session_logs", "total_hidden", "total_ids", "res_ids", "prefill_schema_tokens")
"""What it writes down of a whole session, on the device too, and never reads again but to print it."""
_REPETITION: Final = 4096
"""Tokens that a penalty of repetition may look back on: `Sampling.text_repetition_window_size`."""


@dataclass(frozen=True)
class Heard:
    """What the model made of one unit. `sound`: float32 at 24 kHz, or None. `ended`: its turn is over with it."""

    listens: bool = True
    text: str = ""
    sound: Floats | None = None
    ended: bool = False
    text_tokens: int = 0
    audio_tokens: int = 0
    refused: str = ""
    """Why there is no unit: the model took nothing in."""


class Seat:
    """See the module."""

    def __init__(self, loaded: Checkpoint) -> None:
        self._loaded = loaded
        loaded.model.processor = loaded.make_processor()
        self._duplex: Any = loaded.make_duplex()
        self._duplex.processor = loaded.model.processor
        if hasattr(loaded.model, "duplex"):
            loaded.model.duplex = self._duplex
        self._empty = self._taken()
        self._kept = self._emptied()
        self._random: tuple[torch.Tensor, torch.Tensor | None] = self._drawn()
        self._wav_path: str | None = None
        self._first = True

    @contextmanager
    def seated(self) -> Iterator[None]:
        """The remote code works for this session meanwhile."""
        self._put(self._kept)
        self._draw_from(self._random)
        try:
            with torch.no_grad(), self._current_device():
                yield
        finally:
            self._kept = self._taken()
            self._random = self._drawn()

    # -- what a session is made of: only while seated --------------------------------------------------

    def prepare(
        self, instructions: str, window: Window, voice: Floats | None, wav_path: str | None, seed: int, speaks: bool
    ) -> None:
        """Begin a session. `voice`: 16 kHz; `wav_path`: the same, for the vocoder."""
        duplex = self._duplex
        torch.manual_seed(seed)
        duplex.generate_audio = speaks
        decoder = duplex.decoder
        fields = msgspec.structs.asdict(window)
        kind = type(decoder._window_config)
        decoder.set_window_config(kind(**accepted(kind, fields)))
        decoder.set_window_enabled(window.sliding_window_mode != "off")
        self._wav_path, self._first = wav_path if speaks else None, True
        head, tail = instructions, ""
        if "suffix_system_prompt" in accepted(duplex.prepare, {"suffix_system_prompt": ""}):
            head = f"<|im_start|>system\n{instructions}" + ("\n<|audio_start|>" if voice is not None else "")
            tail = ("<|audio_end|>" if voice is not None else "") + "<|im_end|>"
        given = {
            "prefix_system_prompt": head,
            "suffix_system_prompt": tail,
            "ref_audio": voice,
            "prompt_wav_path": self._wav_path,
        }
        duplex.prepare(**accepted(duplex.prepare, given))

    def hear(self, sound: Floats, images: Sequence[Any], sampling: Sampling, *, listen: bool) -> Heard:
        """One unit: a second at 16 kHz, and what was seen in it. `listen`: whatever the model would do."""
        self.finish()
        was_open = self.turn_open
        taken = self._prefill(sound, images)
        if not taken.get("success", True):
            return Heard(refused=str(taken.get("reason") or "the model took nothing in"))
        self._first = False
        told = self._generate(sampling, listen)
        if listen and was_open:
            self.restart_talker()  # the code closes the turn of the language model alone
        ended = bool(told.get("end_of_turn")) or (was_open and not self.turn_open)
        if told["is_listen"]:
            return Heard(ended=ended)
        made = told.get("audio_waveform")
        # Where there is no sound the code puts a second of zeros, also while it speaks.
        speech = None if made is None or not np.any(made) else np.asarray(made, dtype=np.float32)
        tokens, audio_tokens = int(told.get("n_tokens") or 0), int(told.get("n_tts_tokens") or 0)
        return Heard(False, told.get("text") or "", speech, ended, tokens, audio_tokens)

    def finish(self) -> None:
        """Give the model the end of its last unit, if it is still owed; must be done before the next one."""
        duplex = self._duplex
        if hasattr(duplex, "finalize_unit") and self.owes:
            duplex.finalize_unit()
        for name in _DIARIES:
            if diary := getattr(duplex, name, None):
                diary.clear()
        said = getattr(duplex.decoder, "generated_tokens", [])
        del said[: max(len(said) - _REPETITION, 0)]

    def restart_talker(self) -> None:
        """The talker forgets what it said: what comes next is the beginning of its turn."""
        for name, value in _TALKER_START.items():
            if hasattr(self._duplex, name):
                setattr(self._duplex, name, value)

    # -- what is known of it: at any time --------------------------------------------------------------

    @property
    def owes(self) -> bool:
        return bool(getattr(self._duplex, "needs_finalize", False))

    @property
    def turn_open(self) -> bool:
        """It is in the middle of saying something."""
        return not getattr(self._duplex, "current_turn_ended", True)

    @property
    def context_tokens(self) -> int:
        return int(self._duplex.decoder.get_cache_length())

    @property
    def talker_tokens(self) -> int:
        """Positions of the talker in this turn."""
        return int(getattr(self._duplex, "tts_text_start_pos", 0))

    @property
    def speech_bytes(self) -> int:
        """Of the talker and the vocoder."""
        duplex = self._duplex
        own = (getattr(duplex, name, None) for name in ("tts_past_key_values", "flow_cache_base", "hift_cache_base"))
        return state_bytes(*own, *(self._kept[1].get(name) for name in OF_VOCODER))

    @property
    def state_bytes(self) -> int:
        """Of everything on the device."""
        heard = state_bytes(self._duplex.decoder.cache, self._kept[0].get("audio_past_key_values"))
        return heard + self.speech_bytes

    def clear(self) -> None:
        """The session is over: let go of what it held. Not while seated."""
        self._duplex._reset_streaming_state()
        self._duplex.decoder.reset()
        self._kept = self._emptied()

    # -- the calls -------------------------------------------------------------------------------------

    def _prefill(self, sound: Floats, images: Sequence[Any]) -> dict[str, Any]:
        if self._first:
            window = int(getattr(self._duplex, "FIRST_CHUNK_MS", FIRST_WINDOW_MS)) * INPUT_RATE_HZ // 1000
            sound = np.pad(sound, (max(window - len(sound), 0), 0))
        given = {"audio_waveform": sound, "frame_list": list(images) or None, "max_slice_nums": 1}
        taken = self._duplex.streaming_prefill(**accepted(self._duplex.streaming_prefill, given))
        return taken if isinstance(taken, dict) else {}

    def _generate(self, sampling: Sampling, listen: bool) -> dict[str, Any]:
        """Every parameter is passed: the code computes with the defaults of some, which are None."""
        duplex = self._duplex
        greedy = sampling.temperature == 0
        given: dict[str, Any] = {
            "prompt_wav_path": self._wav_path,
            "max_new_speak_tokens_per_chunk": int(getattr(duplex, "max_new_speak_tokens_per_chunk", 20)),
            "decode_mode": "greedy" if greedy else "sampling",
            "temperature": 1.0 if greedy else sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "listen_prob_scale": sampling.listen_prob_scale,
            "listen_top_k": None,
            "text_repetition_penalty": sampling.text_repetition_penalty,
            "text_repetition_window_size": sampling.text_repetition_window_size,
            "length_penalty": sampling.length_penalty,
            "force_listen_override": listen,
        }
        known = accepted(duplex.streaming_generate, given)
        if listen and "force_listen_override" not in known:
            return self._forced(known)
        told: dict[str, Any] = duplex.streaming_generate(**known)
        return told

    def _forced(self, known: dict[str, Any]) -> dict[str, Any]:
        """A form of the code that can only be told how many of the first units to listen to."""
        duplex = self._duplex
        duplex.force_listen_count = int(getattr(duplex, "_streaming_generate_count", 0)) + 1
        duplex.current_turn_ended = True
        try:
            told: dict[str, Any] = duplex.streaming_generate(**known)
        finally:
            duplex.force_listen_count = 0
        return told

    def _current_device(self) -> AbstractContextManager[Any]:
        """Of this thread: the vocoder asks for the current one."""
        device = self._loaded.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    # -- the swap --------------------------------------------------------------------------------------

    def _taken(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the model and the vocoder hold now."""
        found = []
        for owner, names in ((self._loaded.model, OF_MODEL), (self._loaded.vocoder, OF_VOCODER)):
            found.append({name: getattr(owner, name) for name in names if hasattr(owner, name)})
        return found[0], found[1]

    def _put(self, kept: tuple[dict[str, Any], dict[str, Any]]) -> None:
        for owner, values in zip((self._loaded.model, self._loaded.vocoder), kept, strict=True):
            for name, value in values.items():
                setattr(owner, name, value)

    def _emptied(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """As before any session, in containers of its own."""
        of_model, of_vocoder = self._empty
        return dict(of_model), {name: copy.copy(value) for name, value in of_vocoder.items()}

    def _drawn(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Where the random numbers are now."""
        device = self._loaded.device
        return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def _draw_from(self, random: tuple[torch.Tensor, torch.Tensor | None]) -> None:
        torch.set_rng_state(random[0])
        if random[1] is not None:
            torch.cuda.set_rng_state(random[1], self._loaded.device)
