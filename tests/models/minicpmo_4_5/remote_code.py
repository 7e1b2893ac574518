"""A stand-in for the Python files of the published repository: small, real, and with the members that they have.

`tiny.py` puts this file into a checkpoint's folder, where transformers loads it with `trust_remote_code`, as it loads
the published code. A Qwen3 of two layers hears through a causal attention with a cache, speaks through a recurrent
talker, and keeps its state where the published code keeps it: in the duplex object, in the processor, in the model and
in the vocoder. Nothing of the published code is in it; what it shares are names and the order of calls.

It listens and speaks by turns of its own: how much likelier it finds one word than another decides, so that a number
that is wrong in a cache changes what it does.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import (
    DynamicCache,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

_log = logging.getLogger(__name__)
WIDTH, BANDS, STEPS = 64, 40, 10
FAR = 40.0
"""Added to a logit, it decides."""


class StandInConfig(PretrainedConfig):  # type: ignore[misc]
    model_type = "minicpmo_stand_in"

    def __init__(self, vocab_size: int = 256, num_audio_tokens: int = 6562, **more: Any) -> None:
        self.init_vision, self.init_audio, self.init_tts = False, True, True
        for name in ("init_vision", "init_audio", "init_tts"):
            setattr(self, name, more.pop(name, getattr(self, name)))
        self.vocab_size, self.num_audio_tokens = vocab_size, num_audio_tokens
        super().__init__(**more)


class Processor:
    """The stream of spectra of one session: its windows overlap, so it remembers the end of the last one."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.tail = np.zeros(0, np.float32)
        self.need = 16560

    @classmethod
    def from_pretrained(cls, folder: str, **more: Any) -> Processor:
        return cls(PreTrainedTokenizerFast.from_pretrained(folder))

    def reset_streaming(self) -> None:
        self.tail, self.need = np.zeros(160, np.float32), 16560

    def get_streaming_chunk_size(self) -> int:
        return self.need

    def process_audio_streaming(self, sound: np.ndarray) -> torch.Tensor:
        """[10, bands] of a window."""
        self.need = 16000
        whole = np.concatenate([self.tail, sound])
        self.tail = sound[-160:]
        pieces = np.stack([piece[:1600] for piece in np.array_split(whole, STEPS)])
        spectrum = np.abs(np.fft.rfft(pieces * np.hanning(1600), axis=1))[:, : BANDS * 8]
        return torch.from_numpy(np.log1p(spectrum.reshape(STEPS, BANDS, 8).sum(2)).astype(np.float32))

    def process_audio(self, sound: np.ndarray) -> torch.Tensor:
        """A voice, apart from the stream."""
        return Processor(self.tokenizer).process_audio_streaming(sound)

    def process_image(self, frames: list[Any]) -> torch.Tensor:
        return torch.stack([torch.from_numpy(np.asarray(f.resize((4, 4)), np.float32) / 255).flatten() for f in frames])


class Talker(nn.Module):  # type: ignore[misc]
    """From the hidden states of what is said to codes of sound."""

    def __init__(self, codes: int) -> None:
        super().__init__()
        self.step = nn.GRUCell(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 512)
        self.codes = codes
        self.audio_tokenizer: Any = None

    def generate_chunk(self, condition: torch.Tensor, past: torch.Tensor | None) -> tuple[list[int], torch.Tensor]:
        """25 codes of one second, and the cache: a row for each position of this turn."""
        rows = [] if past is None else [past]
        state = torch.zeros(1, WIDTH) if past is None else past[-1:]
        for hidden in condition:
            state = self.step(hidden[None], state)
            rows.append(state)
        codes = []
        for _ in range(25):
            code = int(self.head(state * 4).argmax())
            codes.append(code)
            state = self.step(condition[code % len(condition)][None], state)
            rows.append(state)
        return codes, torch.cat(rows)


class Weights(PreTrainedModel):  # type: ignore[misc]
    """What both forms of the code compute with."""

    config_class = StandInConfig
    _supports_sdpa = True

    def __init__(self, config: StandInConfig) -> None:
        super().__init__(config)
        qwen = Qwen3Config(
            vocab_size=config.vocab_size,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=8192,
        )
        self.llm = Qwen3ForCausalLM(qwen)
        self.ear = nn.Linear(BANDS, 3 * WIDTH)
        if config.init_vision:
            self.eye = nn.Linear(48, WIDTH)
        if config.init_tts:
            self.tts = Talker(config.num_audio_tokens)
        self.audio_past_key_values: Any = None
        self.audio_chunk_idx = 0
        self.duplex: Any = None
        self._tts_streaming: Any = None
        self._duplex_config: dict[str, Any] = {"generate_audio": True, "force_listen_count": 0}

    def init_streaming_processor(self) -> None:
        self.processor.reset_streaming()
        self.audio_chunk_idx = 0
        self.audio_past_key_values = None

    def hear(self, spectra: torch.Tensor) -> torch.Tensor:
        """[10, width], with what was heard before in view."""
        query, key, value = self.ear(spectra / 4).chunk(3, dim=1)
        if self.audio_past_key_values is not None:
            old_key, old_value = self.audio_past_key_values
            key, value = torch.cat([old_key, key])[-200:], torch.cat([old_value, value])[-200:]
        self.audio_past_key_values = (key, value)
        self.audio_chunk_idx += 1
        weights = torch.softmax(query @ key.T / WIDTH**0.5, dim=1)
        heard: torch.Tensor = weights @ value + query
        return heard


class Decoder:
    """The language model's cache of one session."""

    def __init__(self, llm: Any) -> None:
        self.m = llm
        self._window_config = DuplexWindowConfig()
        self._window_enabled = False
        self.reset()

    def reset(self) -> None:
        self.generated_tokens: list[int] = []
        self.cache: Any = None
        self.units: list[int] = []
        self.preserved = 0

    def set_window_config(self, config: DuplexWindowConfig) -> None:
        self._window_config = config

    def set_window_enabled(self, enabled: bool) -> None:
        self._window_enabled = enabled

    def get_cache_length(self) -> int:
        return 0 if self.cache is None else int(self.cache.get_seq_length())

    def embed(self, *ids: int) -> torch.Tensor:
        embedded: torch.Tensor = self.m.model.embed_tokens(torch.tensor(ids))
        return embedded

    def feed(self, embedded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits behind the last row, and its hidden state."""
        at = self.get_cache_length()
        out = self.m.model(
            inputs_embeds=embedded[None],
            position_ids=torch.arange(at, at + len(embedded))[None],
            past_key_values=self.cache if self.cache is not None else DynamicCache(),
            use_cache=True,
        )
        self.cache = out.past_key_values
        hidden = out.last_hidden_state[0, -1]
        return self.m.lm_head(hidden), hidden

    def slide(self) -> None:
        """Drop the oldest units down to the low mark."""
        config = self._window_config
        if not self._window_enabled or self.get_cache_length() <= config.basic_window_high_tokens:
            return
        dropped = 0
        while self.units and self.get_cache_length() - dropped > config.basic_window_low_tokens:
            dropped += self.units.pop(0)
        for name in ("key_cache", "value_cache"):
            kept = [
                torch.cat([one[:, :, : self.preserved], one[:, :, self.preserved + dropped :]], dim=2)
                for one in getattr(self.cache, name)
            ]
            setattr(self.cache, name, kept)


class DuplexWindowConfig:
    def __init__(
        self,
        sliding_window_mode: str = "off",
        basic_window_high_tokens: int = 4000,
        basic_window_low_tokens: int = 3500,
        context_previous_max_tokens: int = 500,
        context_max_units: int = 24,
    ) -> None:
        self.sliding_window_mode = sliding_window_mode
        self.basic_window_high_tokens, self.basic_window_low_tokens = basic_window_high_tokens, basic_window_low_tokens
        self.context_previous_max_tokens, self.context_max_units = context_previous_max_tokens, context_max_units


class SessionState:
    """What is kept of one session beside the weights."""

    FIRST_CHUNK_MS = 1035

    def __init__(self, model: Any, device: str = "cpu", generate_audio: bool = True, **config: Any) -> None:
        self.model, self.device, self.generate_audio = model, device, generate_audio
        if getattr(model, "processor", None) is None:
            model.processor = Processor.from_pretrained(model.config._name_or_path)
        self.processor = model.processor
        self.tokenizer = self.processor.tokenizer
        self.force_listen_count = config.get("force_listen_count", 0)
        self.break_event, self.session_stop_event = threading.Event(), threading.Event()
        name = self.tokenizer.convert_tokens_to_ids
        self.listen, self.speak, self.turn_eos = name("<|listen|>"), name("<|speak|>"), name("<|turn_eos|>")
        self.unit, self.unit_end, self.tts_bos = name("<unit>"), name("</unit>"), name("<|tts_bos|>")
        self.chunk_eos, self.chunk_tts_eos = name("<|chunk_eos|>"), name("<|chunk_tts_eos|>")
        self.letters = [name(letter) for letter in "abcdefghijklmnopqrstuvwxyz ,."]
        self.decoder = Decoder(model.llm)
        self.calls: list[dict[str, Any]] = []
        """What generate was told, for tests."""
        self.session_logs: list[str] = []
        self._reset_streaming_state()

    def _reset_streaming_state(self) -> None:
        self.audio_buffer = np.zeros(0, np.float32)
        self.pending_logits: torch.Tensor | None = None
        self.current_turn_ended = True
        self._pending_finalize: int | None = None
        self._streaming_generate_count = 0
        self.tts_text_start_pos, self.tts_past_key_values, self.tts_current_turn_start_time = 0, None, None
        self.token2wav_initialized, self.token2wav_buffer = False, list[int]()
        self.flow_cache_base = self.hift_cache_base = None
        self.unit_start = 0
        self.windows: list[int] = []
        self.total_hidden: list[Any] = []

    @property
    def needs_finalize(self) -> bool:
        return self._pending_finalize is not None

    def prepare(
        self,
        prefix_system_prompt: str | None = None,
        suffix_system_prompt: str | None = None,
        ref_audio: np.ndarray | None = None,
        prompt_wav_path: str | None = None,
    ) -> None:
        self._reset_streaming_state()
        self.decoder.reset()
        self.model.init_streaming_processor()
        if prompt_wav_path and self.generate_audio:
            vocoder = self.model.tts.audio_tokenizer
            vocoder.cache = None
            flow, hift = vocoder.set_stream_cache(prompt_wav_path)
            self.flow_cache_base, self.hift_cache_base = cloned(flow), cloned(hift)
            self.pre_lookahead = int(vocoder.flow.pre_lookahead_len)
            self.token2wav_initialized = True
            self._reset_vocoder()
        self.decoder.feed(self.decoder.embed(*self.tokenizer.encode(prefix_system_prompt)))
        if ref_audio is not None:
            spectra = self.processor.process_audio(ref_audio)
            self.decoder.feed(self.model.ear(spectra / 4).chunk(3, dim=1)[0])
        if suffix_system_prompt:
            self.decoder.feed(self.decoder.embed(*self.tokenizer.encode(suffix_system_prompt)))
        self.decoder.preserved = self.decoder.get_cache_length()

    def streaming_prefill(
        self, audio_waveform: np.ndarray, frame_list: list[Any] | None = None, max_slice_nums: int = 1
    ) -> dict[str, Any]:
        if self.needs_finalize:
            raise RuntimeError("prefill before finalize_unit")
        self.audio_buffer = np.concatenate([self.audio_buffer, audio_waveform])
        need = self.processor.get_streaming_chunk_size()
        if len(self.audio_buffer) < need:
            return {"success": False, "reason": f"{len(self.audio_buffer)} samples of {need}"}
        window, self.audio_buffer = self.audio_buffer[:need], self.audio_buffer[need:]
        self.windows.append(len(window))
        self.unit_start = self.decoder.get_cache_length()
        self.decoder.feed(self.decoder.embed(self.unit))
        if frame_list:
            self.decoder.feed(self.model.eye(self.processor.process_image(frame_list)))
        heard = self.model.hear(self.processor.process_audio_streaming(window))
        self.pending_logits, _ = self.decoder.feed(heard)
        return {"success": True, "reason": ""}

    def streaming_generate(
        self,
        prompt_wav_path: str | None = None,
        max_new_speak_tokens_per_chunk: int = 20,
        decode_mode: str = "sampling",
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        listen_prob_scale: float | None = None,
        listen_top_k: int | None = None,
        text_repetition_penalty: float | None = None,
        text_repetition_window_size: int | None = None,
        length_penalty: float = 1.1,
        force_listen_override: bool = False,
    ) -> dict[str, Any]:
        assert self.pending_logits is not None and None not in (temperature, top_k, top_p, text_repetition_penalty)
        self.calls.append({"listen": force_listen_override, "mode": decode_mode, "temperature": temperature})
        logits, self.pending_logits = self.pending_logits, None
        forced = force_listen_override or self._streaming_generate_count < self.force_listen_count
        self._streaming_generate_count += 1
        if force_listen_override and not self.current_turn_ended:
            logits, _ = self.decoder.feed(self.decoder.embed(self.turn_eos))
            self.current_turn_ended = True
            self._reset_vocoder()
        said: list[int] = []
        hiddens: list[torch.Tensor] = []
        listens = ended = False
        for n in range(max_new_speak_tokens_per_chunk):
            token = self.chunk_eos
            if forced:
                token = self.listen
            elif n < max_new_speak_tokens_per_chunk - 1:
                token = self._drawn(logits, n, decode_mode, temperature or 1.0, top_k or 1)
            if token == self.listen and not self.current_turn_ended and not forced:
                token = self.tts_bos
            if token in (self.listen, self.chunk_eos, self.chunk_tts_eos):
                self._pending_finalize, listens = token, token == self.listen
                break
            self.current_turn_ended = ended = token == self.turn_eos
            logits, hidden = self.decoder.feed(self.decoder.embed(token))
            if n:
                said.append(token)
                hiddens.append(hidden)
        result = {"is_listen": listens, "text": "", "audio_waveform": np.zeros(24000, np.float32)}
        result |= {"end_of_turn": False, "n_tokens": len(said), "n_tts_tokens": 0}
        if listens:
            return result
        text = self.tokenizer.decode([token for token in said if token in self.letters])
        print(f"> speak: {text}")
        _log.info("said %s", text)
        self.session_logs.append(text)
        self.total_hidden.append(hiddens)
        self.decoder.generated_tokens += said
        result |= {"text": text, "end_of_turn": ended}
        if self.generate_audio:
            sound, count = self._sound(hiddens, prompt_wav_path, ended)
            result["n_tts_tokens"] = count
            if sound is not None:
                result["audio_waveform"] = sound
        return result

    def _drawn(self, logits: torch.Tensor, n: int, mode: str, temperature: float, top_k: int) -> int:
        """Two words decide what is done, all letters what is said."""
        a, b, c, d = (float(logits[self.letters[i]]) for i in range(4))
        wanted = -1
        if n == 0 and self.current_turn_ended:
            wanted = self.listen if int(abs(a - b) * 8) % 3 == 0 else self.speak
        elif n > 5 and c > d + 0.5:
            wanted = self.chunk_eos
        elif n > 3 and d > c + 2.5:
            wanted = self.turn_eos
        if self.current_turn_ended and n:
            wanted = self.chunk_eos
        masked = torch.full_like(logits, -FAR)
        masked[self.letters] = logits[self.letters]
        if wanted >= 0:
            masked[wanted] = FAR
        if mode == "greedy":
            return int(masked.argmax())
        best = torch.topk(masked / temperature, min(top_k, len(masked)))
        return int(best.indices[torch.multinomial(torch.softmax(best.values, 0), 1)])

    def _sound(self, hiddens: list[torch.Tensor], wav: str | None, last: bool) -> tuple[np.ndarray | None, int]:
        condition = torch.stack(hiddens) if hiddens else self.decoder.embed(self.tts_bos)
        codes, past = self.model.tts.generate_chunk(condition, self.tts_past_key_values)
        self.tts_past_key_values = None if last else past
        self.tts_text_start_pos = 0 if last else self.tts_text_start_pos + len(condition) + len(codes)
        self.token2wav_buffer += codes
        pieces = []
        while len(self.token2wav_buffer) >= 25 + self.pre_lookahead:
            chunk = self.token2wav_buffer[: 25 + self.pre_lookahead]
            pieces.append(self.model.tts.audio_tokenizer.stream(chunk, prompt_wav=wav))
            self.token2wav_buffer = self.token2wav_buffer[25:]
        if last:
            pieces.append(self.model.tts.audio_tokenizer.stream(self.token2wav_buffer, prompt_wav=wav, last_chunk=True))
            self._reset_vocoder()
        pcm = b"".join(pieces)
        return (np.frombuffer(pcm, "<i2").astype(np.float32) / 32768 if pcm else None), len(codes)

    def _reset_vocoder(self) -> None:
        if self.token2wav_initialized:
            vocoder = self.model.tts.audio_tokenizer
            vocoder.stream_cache, vocoder.hift_cache_dict = cloned(self.flow_cache_base), cloned(self.hift_cache_base)
            self.token2wav_buffer = [4218] * 3

    def _end_unit(self) -> None:
        assert self._pending_finalize is not None
        self.decoder.feed(self.decoder.embed(self._pending_finalize, self.unit_end))
        self._pending_finalize = None
        self.decoder.units.append(self.decoder.get_cache_length() - self.unit_start)
        if self.decoder._window_config.sliding_window_mode == "basic":
            self.decoder.slide()


class DuplexCapability(SessionState):
    """The form of `init_unified`: whoever generates must finalize."""

    def finalize_unit(self) -> None:
        self._end_unit()


class SeparateDuplex(SessionState):
    """The form of `as_duplex`: no finalize, no suffix, and no override."""

    @property
    def needs_finalize(self) -> bool:
        return False

    def prepare(  # type: ignore[override]
        self,
        prefix_system_prompt: str | None = None,
        ref_audio: np.ndarray | None = None,
        prompt_wav_path: str | None = None,
    ) -> None:
        super().prepare(prefix_system_prompt, "<|im_end|>", ref_audio, prompt_wav_path)

    def streaming_generate(  # type: ignore[override]
        self,
        prompt_wav_path: str | None = None,
        decode_mode: str = "sampling",
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        text_repetition_penalty: float | None = None,
    ) -> dict[str, Any]:
        told: dict[str, Any] = super().streaming_generate(
            prompt_wav_path,
            20,
            decode_mode,
            temperature,
            top_k,
            top_p,
            text_repetition_penalty=text_repetition_penalty,
        )
        self._end_unit()
        return told


class StandIn(Weights):
    """The form of `init_unified`."""

    def init_unified(self, preload_both_tts: bool = True, duplex_config: Any = None, device: str = "cpu") -> None:
        if preload_both_tts:
            raise RuntimeError("the published vocoder needs a GPU")
        self._duplex_config.update(duplex_config or {})
        self.duplex = DuplexCapability(model=self, device=device, **self._duplex_config)
        self.tts.audio_tokenizer = self._tts_streaming


class SeparateStandIn(Weights):
    """The form of `as_duplex`."""

    vocoders_loaded = 0

    def init_tts(self) -> Any:
        self.vocoders_loaded += 1
        return self.tts.audio_tokenizer

    def as_duplex(self, device: str | None = None, generate_audio: bool = True, **more: Any) -> SeparateDuplex:
        if generate_audio:
            self.init_tts()
        return SeparateDuplex(self, device or "cpu", generate_audio, **more)


def cloned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: cloned(one) for name, one in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def register() -> None:
    """For whoever writes a checkpoint: `save_pretrained` names this file in `auto_map`."""
    StandInConfig.register_for_auto_class("AutoConfig")
    StandIn.register_for_auto_class("AutoModel")
    SeparateStandIn.register_for_auto_class("AutoModel")
