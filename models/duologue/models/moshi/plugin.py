"""The session half of Moshi. SANS-I/O: see `model.plugin`.

Rule 1. The model listens and speaks at once, a frame of 80 ms for a frame: every session answers by itself, and
        neither commits nor `response.create` move it.
Rule 2. It takes no instructions, no voice, no tools, no text: they are refused by name. What may be set is how
        tokens are drawn, and the seed.
Rule 3. A token of this model is a frame in or out (12.5 a second) or a piece of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from duologue.model.outputs import ModelOutput, Usage, decode_output
from duologue.model.pipeline import PipelineSpec
from duologue.model.plugin import AppendPlan, DuplexModelPlugin, InputUnit, ModelTraits
from duologue.models.moshi.options import RATE_HZ, UNIT_MS, MoshiOptions, Sampling, Temperature, TopK, read_options
from duologue.models.moshi.wire import FORCE_LISTEN, SlotConfig, encode_config
from duologue.protocol.duplex import DuplexCapabilities, RealtimeProtocolError, SessionConfig

MAX_TEMPERATURE: Final = 2
MAX_SEED: Final = 2**63 - 1


class MoshiState(msgspec.Struct):
    """What the session counts since the last response."""

    heard: int = 0
    spoken: int = 0
    pieces: int = 0
    prompt: int = 0
    """Tokens of a role that the model was given."""


class SessionOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`extra_body.<model>`: what one session may ask for, over the pipeline's options."""

    temperature_audio: Temperature | None = None
    temperature_text: Temperature | None = None
    top_k_audio: TopK | None = None
    top_k_text: TopK | None = None
    seed: int | None = None


class Moshi(DuplexModelPlugin[MoshiState]):
    """`moshi`; `personaplex` is a kind of it."""

    state_type = MoshiState
    name: ClassVar[str] = "moshi"
    """Names the table of `extra_body`, and the model in what is refused."""

    def __init__(self, pipeline: PipelineSpec) -> None:
        super().__init__(pipeline)
        self._options = self._read(pipeline)
        continuation = self._options.continuation_s * 1000 // UNIT_MS
        self.traits = ModelTraits(
            unit_ms=UNIT_MS,
            input_rate_hz=RATE_HZ,
            output_rate_hz=RATE_HZ,
            auto_only=True,
            continuation_turn=continuation,
            continuation_auto=continuation,
        )

    def _read(self, pipeline: PipelineSpec) -> MoshiOptions:
        return read_options(pipeline, MoshiOptions)

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
            optional_input_modalities=(),
            adapter_patterns=("frame_locked",),
            stage_handoff_transport="zeromq",
            chunk_period_ms=UNIT_MS,
            target_barge_in_latency_ms=None,
        )

    # -- configuration ---------------------------------------------------------------------------------

    def validate(self, config: SessionConfig, current: SessionConfig | None) -> None:
        for key in config.extra_body:
            if key != self.name:
                raise self._refused(f"{self.name} knows no extra_body.{key}", f"extra_body.{key}")
        asked = self._asked(config)
        if current is not None and asked.seed != self._asked(current).seed:
            raise self._refused("the seed is fixed when the session opens", f"extra_body.{self.name}.seed")
        if config.temperature is not None and not 0 <= config.temperature <= MAX_TEMPERATURE:
            raise self._unsupported(f"takes a temperature from 0 to {MAX_TEMPERATURE}", "temperature")
        if config.ref_audio is not None:
            raise self._unsupported("imitates no voice that is sent", "ref_audio")
        for name in ("tools", "max_output_tokens", "initial_user_text"):
            if getattr(config, name):
                raise self._unsupported(f"does not take {name}", name)
        self._validate_role(config, current)

    def _validate_role(self, config: SessionConfig, current: SessionConfig | None) -> None:
        """Who the model is to be."""
        if config.instructions:
            raise self._unsupported("takes no instructions", "instructions")
        if config.voice:
            raise self._unsupported("has one voice, that of its weights", "voice")

    def check_options(self, options: dict[str, Any], config: SessionConfig | None = None) -> None:
        for name, value in options.items():
            if value is not None and name not in ("conversation", "metadata", "modalities", "output_format"):
                raise RealtimeProtocolError(
                    "unsupported_native_response_options",
                    f"{self.name} does not take {name} for a single response",
                    param=f"response.{name}",
                )

    def _asked(self, config: SessionConfig) -> SessionOptions:
        given = config.extra_body.get(self.name, {})
        try:
            asked = msgspec.convert(given, SessionOptions)
        except msgspec.ValidationError as error:
            raise self._refused(str(error), f"extra_body.{self.name}") from None
        if asked.seed is not None and not 0 <= asked.seed <= MAX_SEED:
            raise self._refused(f"a seed is from 0 to {MAX_SEED}", f"extra_body.{self.name}.seed")
        return asked

    def _sampling(self, config: SessionConfig) -> Sampling:
        """The session's `temperature` is that of both; `extra_body` says them one by one."""
        base, asked = self._options.sampling, self._asked(config)
        if config.temperature is not None:
            base = msgspec.structs.replace(
                base, temperature_audio=config.temperature, temperature_text=config.temperature
            )
        given = {name: value for name in Sampling.__struct_fields__ if (value := getattr(asked, name)) is not None}
        return msgspec.structs.replace(base, **given)

    def _refused(self, message: str, param: str) -> RealtimeProtocolError:
        return RealtimeProtocolError("invalid_duplex_runtime_config", message, param=param)

    def _unsupported(self, what: str, param: str) -> RealtimeProtocolError:
        return RealtimeProtocolError("unsupported", f"{self.name} {what}", param=f"session.{param}")

    def new_state(self, config: SessionConfig) -> MoshiState:
        return MoshiState()

    def stage_configs(self, config: SessionConfig, state: MoshiState) -> tuple[bytes, ...]:
        return (encode_config(self._slot(config)),)

    def _slot(self, config: SessionConfig) -> SlotConfig:
        return SlotConfig(self._sampling(config), self._options.talking, self._asked(config).seed)

    # -- the life of a session -------------------------------------------------------------------------

    def plan_unit(self, state: MoshiState, unit: InputUnit) -> AppendPlan:
        state.heard += not unit.continuation
        return AppendPlan(FORCE_LISTEN if unit.force_listen else b"", (unit.pcm,))

    def project(self, state: MoshiState, head: bytes, frames: Sequence[bytes]) -> Sequence[ModelOutput]:
        output = decode_output(head)
        state.spoken += output.audio_rate_hz > 0
        state.pieces += bool(output.text)
        if output.usage is not None:  # of an opening, and told with the response that comes next
            state.prompt += output.usage.input_text_tokens
            output = msgspec.structs.replace(output, usage=None)
        return (output,)

    def take_usage(self, state: MoshiState) -> Usage | None:
        usage = Usage(
            input_audio_tokens=state.heard,
            input_text_tokens=state.prompt,
            output_audio_tokens=state.spoken,
            output_text_tokens=state.pieces,
        )
        state.heard = state.spoken = state.pieces = state.prompt = 0
        return usage
