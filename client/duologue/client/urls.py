"""The address that a duplex client dials."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit


def build_realtime_url(url: str, model: str | None = None) -> str:
    """`ws://host:port` with the path `/v1/realtime` unless it has one, `duplex=1`, the model, `autostart=0`.

    http and https become ws and wss. Raises ValueError for anything else.
    """
    parts = urlsplit(url if "//" in url else f"ws://{url}")
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.netloc:
        raise ValueError(f"{url!r} is not a ws:// or wss:// address")
    query = dict(parse_qsl(parts.query))
    query.setdefault("duplex", "1")
    if model:
        query.setdefault("model", model)
    query["autostart"] = "0"
    path = parts.path if parts.path not in ("", "/") else "/v1/realtime"
    return urlunsplit((scheme, parts.netloc, path, urlencode(query), ""))
