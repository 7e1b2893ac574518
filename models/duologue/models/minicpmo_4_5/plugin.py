"""The session half of MiniCPM-o 4.5. SANS-I/O: see `model.plugin`.

Rule 1. The model hears a second and decides whether to listen or to speak for the next one. A session answers by
        itself, or turn by turn as its client commits.
Rule 2. Who is to be heard must have a voice to imitate: the session's `ref_audio`, or the pipeline's. It is sent, never
        fetched, and fixed at open; so is the window, and the seed.
Rule 3. It takes no tools, no text and no limit of tokens: they are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from duologue.model.outputs import ModelOutput, Usage, decode_output
from duologue.model.pipeline import PipelineSpec
from duologue.model.plugin import AppendPlan, DuplexModelPlugin, InputUnit, ModelTraits
from duologue.models.minicpmo_4_5.options import (
    AUDIO_TOKENS,
    FRAME_TOKENS,
    INPUT_RATE_HZ,
    MAX_FRAMES,
    OUTPUT_RATE_HZ,
    UNIT_MS,
    Sampling,
    Share,
    Temperature,
    Window,
    read_options,
)
from duologue.models.minicpmo_4_5.voices import BadVoice, sent_voice
from duologue.models.minicpmo_4_5.wire import FORCE_LISTEN, SlotConfig, encode_config
from duologue.protocol.duplex import DuplexCapabilities, RealtimeProtocolError, SessionConfig

MAX_SEED: Final = 2**63 - 1
MAX_FORCED: Final = 600
TABLE: Final = "minicpmo_4_5"
_SPECIAL: Final = re.compile(r"<\|[^|<>]{1,40}\|>|</?[a-z_]{1,20}>")
"""How the model's own marks are written: they end what they stand in."""


class MiniCPMOState(msgspec.Struct):
    """What the session remembers of itself, and counts since the last response."""

    forced: int = 0
    """Units of the user's sound, of the session or of each committed turn, that are listened to in any case."""
    to_listen: int = 0
    """Of these, still to come."""
    heard: int = 0
    seen: int = 0
    spoken: int = 0
    pieces: int = 0
    prompt: int = 0


class SessionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`extra_body.minicpmo_4_5`: what one session may ask for, over the pipeline's options."""

    temperature: Temperature | None = None
    top_k: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    top_p: Share | None = None
    listen_prob_scale: Annotated[float, msgspec.Meta(gt=0.0, le=4.0)] | None = None
    text_repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=4.0)] | None = None
    length_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=4.0)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] | None = None


class MiniCPMO(DuplexModelPlugin[MiniCPMOState]):
    state_type = MiniCPMOState

    def __init__(self, pipeline: PipelineSpec) -> None:
        super().__init__(pipeline)
        self._options = read_options(pipeline)
        self.traits = ModelTraits(
            unit_ms=UNIT_MS,
            input_rate_hz=INPUT_RATE_HZ,
            output_rate_hz=OUTPUT_RATE_HZ,
            max_in_flight=4,
            continuation_turn=8,
            continuation_auto=self._options.continuation_s,
        )

    def capabilities(self, max_sessions: int) -> DuplexCapabilities:
        return DuplexCapabilities(
            supports_model_native_turn_policy=True,
            supports_input_append=True,
            supports_replace_latest_chunk=False,
            supports_reencode_context=False,
            supports_turn_commit_only=False,
            supports_model_internal_state=True,
            supports_independent_io_streams=True,
            supports_realtime_endpoint=True,
            supports_multi_session=max_sessions > 1,
            supports_multi_session_same_replica=max_sessions > 1,
            supports_session_lease=True,
            supports_session_resume=True,
            session_admission_mode="engine_managed",
            supports_audio_truncate=True,
            optional_input_modalities=("video",) if self._options.vision else (),
            adapter_patterns=("unit_locked",),
            stage_handoff_transport="zeromq",
            chunk_period_ms=UNIT_MS,
            target_barge_in_latency_ms=UNIT_MS,
        )

    # -- configuration ---------------------------------------------------------------------------------

    def validate(self, config: SessionConfig, current: SessionConfig | None) -> None:
        for key in config.extra_body:
            if key not in (TABLE, "force_listen_count", *Window.__struct_fields__):
                raise self._refused(f"{self.pipeline.name} knows no extra_body.{key}", f"extra_body.{key}")
        asked = self._asked(config)
        if current is not None and asked.seed != self._asked(current).seed:
            raise self._refused("the seed is fixed when the session opens", f"extra_body.{TABLE}.seed")
        if config.temperature is not None and not 0 <= config.temperature <= 2:
            raise self._unsupported("takes a temperature from 0 to 2", "temperature")
        for name in ("tools", "max_output_tokens", "initial_user_text"):
            if getattr(config, name):
                raise self._unsupported(f"does not take {name}", name)
        if config.voice:
            raise self._unsupported("has no voices by name: send one as ref_audio", "voice")
        self._force_listen_count(config)
        self._validate_window(config, current)
        self._validate_instructions(config.instructions)
        if current is None:
            self._voice(config)

    def _validate_window(self, config: SessionConfig, current: SessionConfig | None) -> None:
        window = self._window(config)
        if current is not None and window != self._window(current):
            raise RealtimeProtocolError(
                "sliding_window_update_unsupported", "the window is fixed when the session opens", param="extra_body"
            )
        if problem := window.problem(self._options.context_tokens):
            raise RealtimeProtocolError("invalid_sliding_window_config", problem, param="extra_body")

    def _validate_instructions(self, instructions: str | None) -> None:
        if not instructions:
            return
        if len(instructions) > self._options.max_instructions:
            raise self._unsupported(f"takes {self._options.max_instructions} characters at most", "instructions")
        if found := _SPECIAL.search(instructions):
            raise self._unsupported(f"takes no marks of the model's own, as {found.group()}", "instructions")

    def check_options(self, options: dict[str, Any], config: SessionConfig | None = None) -> None:
        for name, value in options.items():
            if value is not None and name not in ("conversation", "metadata", "modalities", "output_format"):
                raise RealtimeProtocolError(
                    "unsupported_native_response_options",
                    f"{self.pipeline.name} does not take {name} for a single response",
                    param=f"response.{name}",
                )

    def _asked(self, config: SessionConfig) -> SessionTable:
        try:
            return msgspec.convert(config.extra_body.get(TABLE, {}), SessionTable)
        except msgspec.ValidationError as error:
            raise self._refused(str(error), f"extra_body.{TABLE}") from None

    def _sampling(self, config: SessionConfig) -> Sampling:
        """The session's `temperature`, and over it what `extra_body` says."""
        base, asked = self._options.sampling, self._asked(config)
        if config.temperature is not None:
            base = msgspec.structs.replace(base, temperature=config.temperature)
        fields = (name for name in SessionTable.__struct_fields__ if name != "seed")
        given = {name: value for name in fields if (value := getattr(asked, name)) is not None}
        return msgspec.structs.replace(base, **given)

    def _window(self, config: SessionConfig) -> Window:
        given = {name: config.extra_body[name] for name in Window.__struct_fields__ if name in config.extra_body}
        if not given:
            return self._options.window
        try:
            return msgspec.convert({**msgspec.to_builtins(self._options.window), **given}, Window)
        except msgspec.ValidationError as error:
            raise RealtimeProtocolError("invalid_sliding_window_config", str(error), param="extra_body") from None

    def _force_listen_count(self, config: SessionConfig) -> int:
        count = config.extra_body.get("force_listen_count", self._options.force_listen_count)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_FORCED:
            raise self._refused(f"an integer from 0 to {MAX_FORCED}", "extra_body.force_listen_count")
        return count

    def _speaks(self, config: SessionConfig) -> bool:
        return self._options.speaks and "audio" in config.modalities

    def _voice(self, config: SessionConfig) -> tuple[bytes, int]:
        """The session's own voice; empty: it has none, and needs none."""
        if config.ref_audio is None:
            if self._speaks(config) and not self._options.ref_audio:
                raise RealtimeProtocolError(
                    "ref_audio_required",
                    f"{self.pipeline.name} speaks with a voice that it is sent: a WAV file in ref_audio; or ask for "
                    'modalities ["text"]',
                    param="session.ref_audio",
                )
            return b"", 0
        try:
            return sent_voice(config.ref_audio, self._options.max_ref_audio_s)
        except BadVoice as error:
            raise self._refused(str(error), "ref_audio") from None

    def _refused(self, message: str, param: str) -> RealtimeProtocolError:
        return RealtimeProtocolError("invalid_duplex_runtime_config", message, param=param)

    def _unsupported(self, what: str, param: str) -> RealtimeProtocolError:
        return RealtimeProtocolError("unsupported", f"{self.pipeline.name} {what}", param=f"session.{param}")

    def new_state(self, config: SessionConfig) -> MiniCPMOState:
        count = self._force_listen_count(config)
        return MiniCPMOState(forced=count, to_listen=count)

    def stage_configs(self, config: SessionConfig, state: MiniCPMOState) -> tuple[bytes, ...]:
        voice, rate = self._voice(config)
        slot = SlotConfig(
            sampling=self._sampling(config),
            window=self._window(config),
            instructions=config.instructions or self._options.instructions,
            speaks=self._speaks(config),
            voice=voice,
            voice_rate_hz=rate,
            seed=self._asked(config).seed,
        )
        return (encode_config(slot),)

    # -- the life of a session -------------------------------------------------------------------------

    def plan_unit(self, state: MiniCPMOState, unit: InputUnit) -> AppendPlan:
        forced = unit.force_listen
        seen = unit.video_frames[-MAX_FRAMES:] if self._options.vision else ()
        if not unit.continuation:
            state.heard += AUDIO_TOKENS
            if state.to_listen:
                state.to_listen -= 1
                forced = True
        state.seen += FRAME_TOKENS * len(seen)
        return AppendPlan(FORCE_LISTEN if forced else b"", (unit.pcm, *seen))

    def on_turn_start(self, state: MiniCPMOState, turn_id: int, epoch: int) -> None:
        state.to_listen = state.forced

    def project(self, state: MiniCPMOState, head: bytes, frames: Sequence[bytes]) -> Sequence[ModelOutput]:
        output = decode_output(head)
        if output.usage is not None:  # told once, with the response that comes next
            state.spoken += output.usage.output_audio_tokens
            state.pieces += output.usage.output_text_tokens
            state.prompt += output.usage.input_text_tokens
            output = msgspec.structs.replace(output, usage=None)
        return (output,)

    def take_usage(self, state: MiniCPMOState) -> Usage | None:
        usage = Usage(
            input_audio_tokens=state.heard,
            input_text_tokens=state.prompt + state.seen,
            output_audio_tokens=state.spoken,
            output_text_tokens=state.pieces,
        )
        state.heard = state.seen = state.spoken = state.pieces = state.prompt = 0
        return usage
