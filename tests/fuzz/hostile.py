"""Values that decoders have fallen over, JSON and msgpack: deep, huge, not finite, half a character, out of range."""

from __future__ import annotations

import struct
from math import inf, nan
from typing import Any

from fuzz.trees import Pairs, Token

_NESTED = [b"[" * n + b"]" * n for n in (60, 64, 65, 1500)] + [
    b'{"a":' * n + b"1" + b"}" * n for n in (60, 64, 65, 1500)
]
_NUMBERS = [
    *("0 -0 -0.0 1 -1 2 1.0 1.5 -1.5 1e-400 1e308 -1e308 1e400 -1e400 NaN Infinity -Infinity".split()),
    *map(str, (255, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1)),
    *("1" + "0" * 40, "1" + "0" * 400, "1" + "0" * 5000, "1" * 30 + ".5", "00", "1_000", "0x10", "+1"),
]
_TEXTS = [
    *(rb'"\ud800"', rb'"\udc00\ud800"', rb'"\ud83d\ude00"', b'"\xed\xa0\x80"', rb'"\u0000"', rb'"\x"', b'"\n"', b'"'),
    *(b'""', b'"' + b"x" * 600 + b'"', b'"' + b"x" * 2000 + b'"', b'"%s{}%(a)s\\\\"'),
    *(b'"\xff\xfe"', '"é😀\u2028"'.encode(), b'"true"', b'"1"', b'"inf"', b'"root"'),
    *(b'"AA="', b'"A"', b'"AAAA"', b'"AA==AA=="', b'"AA AA"', b'"_-AA"', b'"UklGRgAAAABXQVZF"', b'"/9j/4AAQ"'),
]
JSON: list[Any] = [
    *(Token(text) for text in (*_NESTED, *_TEXTS)),
    *(Token(number.encode()) for number in _NUMBERS),
    *(Token(text) for text in (b"null", b"true", b"false", b"{}", b"[]", b"[[]]", b'{"":0}', b'{"a":1,"a":2}', b"")),
    *(Token(text) for text in (rb'{"\ud800":NaN}', rb'{"a":[NaN,"\ud800"]}', b'{"type":1}', b"[1,]", b"/**/1")),
]

MSGPACK: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 127, 255, 2**31, 2**32, 2**53, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -0.0, 0.5, 1e308, inf, -inf, nan),
    *("", "a", "x" * 2000, "\0", "é😀", b"", b"\0", b"\xff" * 64, b"x" * 2000),
    *([], [[]], [0] * 100, Pairs(), Pairs([("a", 1), ("a", 2)]), Pairs([(1, 2)]), Pairs([("", None)])),
    *(Token(b"\x91" * n + b"\xc0") for n in (30, 100, 1500)),
    *(Token(b"\x81\xa1a" * n + b"\xc0") for n in (30, 1500)),
    *(
        Token(raw)
        for raw in (b"\xa2\xff\xff", b"\xa3\xed\xa0\x80", b"\xc7\x03\x05abc", b"\xd6\xff\0\0\0\1", b"\xc1", b"")
    ),
    *(Token(struct.pack(">BI", kind, 2**31 - 1)) for kind in (0xDD, 0xDF, 0xDB, 0xC6, 0xC9)),
]
