"""The request that opens a socket: path, query, headers, subprotocols, the key in them, and a resume by query.

An input is a msgpack list: path, query, subprotocols, then headers as name and value in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from fuzz import mutators
from fuzz.target import Target
from fuzz.trees import write_msgpack

from duologue.gateway.admission import Admission, KeyRing, Place, Refusal
from duologue.gateway.connection import Connection, End, Resume
from duologue.gateway.handshake import read_offer
from duologue.gateway.provisional import token_digest
from duologue.gateway.secrets import _digest
from duologue.store.scripts import journal_keys, session_keys

_ADMISSION = Admission(KeyRing(["sk-1"]), ["https://app.example"])
_PLACE = Place()


def check(data: bytes) -> bool:
    """Nothing in it raises; it is let in, or refused in HTTP, or told why before it is closed."""
    try:
        path, query, names, *headers = msgspec.msgpack.decode(data, type=list[Any])
    except (ValueError, RecursionError):
        return False
    told = [header for header in headers if isinstance(header, bytes)]
    pairs = list(zip(told[::2], told[1::2], strict=False))
    subprotocols = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    if not isinstance(path, str) or not isinstance(query, bytes):
        return False
    offer = read_offer(path, query, pairs, subprotocols)
    repr(offer)
    _digest(offer.key)
    judged = _ADMISSION.judge(offer, lambda principal: _PLACE)
    connection = Connection(offer)
    step = connection.begin()
    if isinstance(step, End):
        msgspec.json.decode(step.payload)
    elif isinstance(step, Resume):
        token_digest(step.token)
        for key in (*session_keys(step.session_id), *journal_keys(step.session_id)):
            key.encode()
        assert 0 <= step.cursor < 2**63
    connection.receive('{"type":"session.heartbeat"}', 0.0)
    return not isinstance(judged, Refusal)


def seeds() -> Iterator[bytes]:
    queries = (
        *(b"", b"model=loopback", b"duplex=1&resume=1", b"model=%ff%fe&model=x", b"a=%", b"%00=%00", b"autostart=0"),
        b"resume_session=duplex-1&resume_token=t&last_seq=7",
        *(
            b"resume_session=d&resume_token=%ed%a0%80&last_seq=" + n
            for n in (b"-1", b"%C2%B2", b"9" * 30, b"1e3", b"", b"0")
        ),
        b"resume_session=" + b"x" * 3000 + b"&resume_token=%F0%9F%98%80&last_seq=1",
        b"&".join(b"k%d=1" % n for n in range(300)),
        b";".join([b"a=1"] * 300),
    )
    headers: tuple[list[bytes], ...] = (
        [],
        [b"Authorization", b"Bearer sk-1"],
        [b"authorization", b"bearer \xff\xfe"],
        [b"OpenAI-Beta", b"realtime=v1, realtime = v1", b"Origin", b"https://app.example", b"Host", b"h"],
        [b"origin", b"http://[::1", b"host", b"[::1]:99999"],
        [b"origin", b"http://h:port", b"host", b"h:\xb2"],
        [b"origin", b"http://h:0", b"host", b"h:65536"],
    )
    offered: tuple[list[str], ...] = (
        [],
        ["realtime", "openai-insecure-api-key.ek_1"],
        ["openai-insecure-api-key."],
        [" "],
    )
    for path in ("/v1/realtime", "/v1/duplex/", "", "/v1/realtime//"):
        for number, query in enumerate(queries):
            for told in headers:
                yield write_msgpack([path, query, offered[number % 4], b"Authorization", b"Bearer sk-1", *told])
                yield write_msgpack([path, query, offered[number % 4], *told])


TARGET = Target(
    "upgrades",
    check,
    seeds,
    mutators.of_msgpack(seeds),
    ("duologue.gateway.handshake", "duologue.gateway.connection", "duologue.gateway.admission"),
)
