"""The models as `/v1/models` lists them: OpenAI's object, and what a client of this server wants to know. SANS-I/O."""

from __future__ import annotations

from duologue.model.records import PipelineRecord
from duologue.protocol.duplex import JsonObject


def model_object(pipeline: PipelineRecord) -> JsonObject:
    """One model with its capabilities, as `session.capabilities` tells them."""
    return {
        "id": pipeline.name,
        "object": "model",
        "created": 0,
        "owned_by": "duologue",
        "ready": pipeline.ready,
        "session_mode": pipeline.session_mode,
        "native_turns": pipeline.native_turns,
        "input_rate_hz": pipeline.input_rate_hz,
        "output_rate_hz": pipeline.output_rate_hz,
        "max_sessions": pipeline.max_sessions,
        "max_chat_turns": pipeline.max_chat_turns,
        "capabilities": pipeline.capabilities.to_realtime(),
    }
