"""Who came, from where, with which key, for which session: one line each, on a logger of its own.

Rule 1. The key's id and the secret's, never a key, a token or anything that was said.
Rule 2. A session may have many lines here (open, resume, take over, leave) and has one at its end, of the shard
        (`session/accounts.py`): that knows why, whoever was attached.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec

from duologue.runtime.logs import bound

if TYPE_CHECKING:
    from duologue.gateway.attachment import Attachment

_log: Final = logging.getLogger("duologue.audit")


class _Stored(msgspec.Struct, frozen=True):
    """Of `SessionRecord.extra`."""

    pipeline: str = ""


_decode = msgspec.msgpack.Decoder(_Stored).decode


def model_of(extra: bytes) -> str:
    """The model of a session, of what was stored at its open; empty: another version wrote that."""
    try:
        return _decode(extra).pipeline
    except msgspec.DecodeError:
        return ""


def opened(attachment: Attachment) -> None:
    _tell("session opened", "open", attachment)


def resumed(attachment: Attachment, *, took_over: bool) -> None:
    """`took_over`: from a socket that had not let go."""
    event = "take_over" if took_over else "resume"
    _tell("session taken over" if took_over else "session resumed", event, attachment)


def left(attachment: Attachment, close_code: int) -> None:
    """The socket is done with this session."""
    why = attachment.ended.value if attachment.ended is not None else ""
    seconds = round(attachment.gateway.now() - attachment.since, 3)
    _tell("session left", "leave", attachment, why=why, close_code=close_code, seconds=seconds)


def _tell(message: str, event: str, attachment: Attachment, **more: object) -> None:
    bound(
        _log,
        event=event,
        session_id=attachment.session_id,
        key_id=attachment.principal,
        dialect=attachment.dialect.value,
        model=attachment.model,
        remote=attachment.remote,
        generation=attachment.generation,
        **more,
    ).info(message)
