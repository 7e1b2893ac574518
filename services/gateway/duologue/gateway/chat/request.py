"""A chat completion as clients ask for it, read into what a turn is given. SANS-I/O.

Rule 1. What would change the answer and cannot be honoured is refused by name; what only describes the request
        (`user`, `seed`, `store`, ...) is ignored, as are unknown keys.
Rule 2. The conversation is told to the session core as a client would tell it: instructions, items, one
        `response.create`. Nothing but this file knows chat messages.
Rule 3. Bounded: messages, their text, and (by the size of the body) their sound.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from duologue.gateway.chat.wav import read_wav
from duologue.protocol.duplex import (
    ContentPart,
    CreateItem,
    CreateResponse,
    DuplexCommand,
    Item,
    ItemAudio,
    JsonObject,
    RealtimeProtocolError,
    function_call_item,
    message_item,
)
from duologue.protocol.realtime.item_input import decode_base64
from duologue.protocol.realtime.strict import read

INVALID: Final = "invalid_request"
RATE_HZ: Final = 24_000
"""Of the sound of an answer, and of `pcm16` in."""
MAX_MESSAGES: Final = 512
MAX_TEXT_BYTES: Final = 256 * 1024
"""Of all messages together."""

_NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "top_p": (1, 1.0),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "logit_bias": ({},),
    "stop": ([],),
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "function_call": ("none",),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
}
"""What is not served, with the values that ask for nothing."""


class _StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class _AudioOut(msgspec.Struct, kw_only=True):
    format: str
    voice: str | JsonObject | None = None


class _Called(msgspec.Struct, kw_only=True):
    name: str
    arguments: str = "{}"


class _ToolCall(msgspec.Struct, kw_only=True):
    id: str
    function: _Called
    type: Literal["function"] = "function"


class _Message(msgspec.Struct, kw_only=True):
    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: str | list[JsonObject] | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None
    audio: JsonObject | None = None


class _Function(msgspec.Struct, kw_only=True):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None


class _Tool(msgspec.Struct, kw_only=True):
    function: _Function
    type: Literal["function"] = "function"


class _Written(msgspec.Struct, kw_only=True):
    model: str
    messages: list[_Message]
    modalities: list[Literal["text", "audio"]] | None = None
    audio: _AudioOut | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: int | float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    tools: list[_Tool] | None = None
    tool_choice: str | JsonObject | None = None
    extra_body: JsonObject | None = None


class ChatRequest(msgspec.Struct, frozen=True):
    """One turn that is to be made."""

    model: str
    session: JsonObject
    """The session object of the machine that makes it, in GA spelling."""
    commands: tuple[DuplexCommand, ...]
    stream: bool = False
    include_usage: bool = False
    audio_format: str = ""
    """wav or pcm16; empty: text is asked for."""


def read_request(body: JsonObject) -> ChatRequest:
    """Raises RealtimeProtocolError, which names the field."""
    written = read(body, _Written, default=INVALID)
    for name, neutral in _NEUTRAL.items():
        value = body.get(name)
        if value is not None and value not in neutral:
            raise RealtimeProtocolError("unsupported", f"{name} is not served", param=name)
    stream = bool(written.stream)
    audio_format = _audio_format(written, stream)
    instructions, commands = _conversation(written.messages)
    options = written.stream_options
    return ChatRequest(
        model=written.model,
        session=_session(written, instructions, audio_format),
        commands=(*commands, CreateResponse()),
        stream=stream,
        include_usage=options is not None and bool(options.include_usage),
        audio_format=audio_format,
    )


def param_of(param: str | None) -> str | None:
    """The field of the request that a refusal of the session core is about."""
    if param is None:
        return None
    name = param.removeprefix("session.").removeprefix("response.")
    if name.startswith("item"):
        return "messages"
    return _PARAMS.get(name, name)


_PARAMS: Final = {
    "max_output_tokens": "max_completion_tokens",
    "output_modalities": "modalities",
    "instructions": "messages",
    "audio.output.voice": "audio.voice",
    "voice": "audio.voice",
}


# -- the session ------------------------------------------------------------------------------------------


def _audio_format(written: _Written, stream: bool) -> str:
    if "audio" not in (written.modalities or ()):
        return ""
    if written.audio is None:
        raise RealtimeProtocolError(INVALID, "modalities name audio: say its format and voice", param="audio")
    known = ("pcm16",) if stream else ("wav", "pcm16")
    if written.audio.format not in known:
        raise RealtimeProtocolError(
            "unsupported_audio_format",
            f"{written.audio.format[:40]!r} is not served{' in a stream' if stream else ''}: {' or '.join(known)}",
            param="audio.format",
        )
    return written.audio.format


def _session(written: _Written, instructions: str, audio_format: str) -> JsonObject:
    pcm = {"type": "audio/pcm", "rate": RATE_HZ}
    output: JsonObject = {"format": pcm}
    voice = None if written.audio is None else written.audio.voice
    if isinstance(voice, dict):
        voice = voice.get("id")
    if isinstance(voice, str):
        output["voice"] = voice
    session: JsonObject = {
        "model": written.model,
        "output_modalities": ["audio"] if audio_format else ["text"],
        "audio": {"input": {"format": pcm, "turn_detection": None}, "output": output},
        "extra_body": {**(written.extra_body or {}), "auto_response": False},
    }
    if instructions:
        session["instructions"] = instructions
    if written.temperature is not None:
        session["temperature"] = written.temperature
    tokens = written.max_tokens if written.max_completion_tokens is None else written.max_completion_tokens
    if tokens is not None:
        session["max_output_tokens"] = tokens
    if written.tools:
        session["tools"] = [_tool(tool.function) for tool in written.tools]
    if written.tool_choice is not None:
        session["tool_choice"] = _tool_choice(written.tool_choice)
    return session


def _tool(function: _Function) -> JsonObject:
    told: JsonObject = {"type": "function", "name": function.name}
    if function.description is not None:
        told["description"] = function.description
    if function.parameters is not None:
        told["parameters"] = function.parameters
    return told


def _tool_choice(choice: str | JsonObject) -> str | JsonObject:
    """`{"type": "function", "function": {"name": ...}}` is flat in a session."""
    function = choice.get("function") if isinstance(choice, dict) else None
    return choice if not isinstance(function, dict) else {"type": "function", "name": function.get("name")}


# -- the conversation -------------------------------------------------------------------------------------


def _conversation(messages: list[_Message]) -> tuple[str, list[DuplexCommand]]:
    """The instructions that the conversation begins with, and its items."""
    if not messages:
        raise RealtimeProtocolError(INVALID, "messages are empty", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise RealtimeProtocolError(INVALID, f"more than {MAX_MESSAGES} messages", param="messages")
    reader = _Reader()
    for index, message in enumerate(messages):
        reader.message(f"messages[{index}]", message)
    if not reader.asked:
        raise RealtimeProtocolError(INVALID, "there is no message of a user", param="messages")
    return "\n".join(reader.instructions), reader.commands


class _Reader:
    """The messages of one request, in order."""

    def __init__(self) -> None:
        self.instructions: list[str] = []
        self.commands: list[DuplexCommand] = []
        self.asked = False
        self._calls: set[str] = set()
        self._bytes = 0

    def message(self, at: str, message: _Message) -> None:
        match message.role:
            case "user":
                self.asked = True
                self._user(at, message)
            case "assistant":
                self._assistant(at, message)
            case "tool":
                self._result(at, message)
            case _:
                text = self._text(at, message)
                if self.commands:
                    self._say("system", "input_text", text)
                else:
                    self.instructions.append(text)

    def _user(self, at: str, message: _Message) -> None:
        """Neighbouring text is one item; each sound is one of its own: it is heard, and its words are found."""
        if not isinstance(message.content, list):
            self._say("user", "input_text", self._text(at, message))
            return
        if not message.content:
            raise RealtimeProtocolError(INVALID, "a message of a user has content", param=f"{at}.content")
        written: list[str] = []
        for index, part in enumerate(message.content):
            place = f"{at}.content[{index}]"
            if part.get("type") == "input_audio":
                self._flush(written)
                self._sound(place, part.get("input_audio"))
            else:
                written.append(self._part(place, part, ("text",)))
        self._flush(written)

    def _flush(self, written: list[str]) -> None:
        if written:
            self._say("user", "input_text", "\n".join(written))
            written.clear()

    def _sound(self, at: str, sound: object) -> None:
        param = f"{at}.input_audio"
        told = sound if isinstance(sound, dict) else {}
        data, kind = told.get("data"), told.get("format")
        if not isinstance(data, str):
            raise RealtimeProtocolError(INVALID, "data is base64 text", param=f"{param}.data")
        if kind not in ("wav", "pcm16"):
            raise RealtimeProtocolError(
                "unsupported_audio_format", "wav or pcm16 (mono, 24 kHz) is taken", param=f"{param}.format"
            )
        raw, rate_hz = decode_base64(data, param=f"{param}.data"), RATE_HZ
        if kind == "wav":
            found = read_wav(raw, f"{param}.data")
            raw, rate_hz = found.pcm, found.rate_hz
        if not raw:
            raise RealtimeProtocolError("bad_audio", "there is no sound in it", param=f"{param}.data")
        item = message_item("", "user", ContentPart(type="input_audio", transcript=None))
        audio = ItemAudio(content_index=0, audio=raw, format="pcm16", sample_rate_hz=rate_hz)
        self._item(item, audio)

    def _assistant(self, at: str, message: _Message) -> None:
        if message.audio is not None and message.content is None and not message.tool_calls:
            raise RealtimeProtocolError(
                "unsupported", "no sound of an answer is kept: send its transcript as content", param=f"{at}.audio"
            )
        if message.content:
            self._say("assistant", "output_text", self._text(at, message, ("text", "refusal")))
        for index, call in enumerate(message.tool_calls or ()):
            if call.id in self._calls:
                raise RealtimeProtocolError(INVALID, "two calls have this id", param=f"{at}.tool_calls[{index}].id")
            self._calls.add(call.id)
            self._weigh(call.function.arguments)
            self._item(
                function_call_item("", call_id=call.id, name=call.function.name, arguments=call.function.arguments)
            )

    def _result(self, at: str, message: _Message) -> None:
        call_id = message.tool_call_id or ""
        if call_id not in self._calls:
            raise RealtimeProtocolError(INVALID, "no such call is open", param=f"{at}.tool_call_id")
        self._calls.remove(call_id)
        output = self._text(at, message)
        self._item(Item(id="", type="function_call_output", call_id=call_id, output=output))

    def _text(self, at: str, message: _Message, kinds: tuple[str, ...] = ("text",)) -> str:
        content = message.content
        if content is None:
            raise RealtimeProtocolError(INVALID, f"a message of role {message.role} has content", param=f"{at}.content")
        if isinstance(content, str):
            return self._weigh(content)
        return "".join(self._part(f"{at}.content[{index}]", part, kinds) for index, part in enumerate(content))

    def _part(self, at: str, part: JsonObject, kinds: tuple[str, ...]) -> str:
        kind = part.get("type")
        if kind not in kinds:
            served = kind in ("image_url", "file", "input_audio")
            code = "unsupported" if served else INVALID
            raise RealtimeProtocolError(code, f"{str(kind)[:40]!r} content is not taken here", param=f"{at}.type")
        text = part.get(kind)
        if not isinstance(text, str):
            raise RealtimeProtocolError(INVALID, f"{kind} is required", param=f"{at}.{kind}")
        return self._weigh(text)

    def _weigh(self, text: str) -> str:
        self._bytes += len(text.encode("utf-8", "surrogatepass"))
        if self._bytes > MAX_TEXT_BYTES:
            raise RealtimeProtocolError(INVALID, f"more than {MAX_TEXT_BYTES} bytes of text", param="messages")
        return text

    def _say(self, role: str, kind: str, text: str) -> None:
        self._item(message_item("", role, ContentPart(type=kind, text=text)))

    def _item(self, item: Item, *audio: ItemAudio) -> None:
        self.commands.append(CreateItem(item=item, audio=audio))
