"""Who ends the turns of a model: asked of the server, since a session is opened accordingly."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit, urlunsplit

import httpx
import msgspec

from duologue.client.urls import build_realtime_url

_TIMEOUT_S: Final = 5.0


class _Capabilities(msgspec.Struct):
    supports_model_native_turn_policy: bool = True


class _Model(msgspec.Struct):
    id: str
    capabilities: _Capabilities


class _Models(msgspec.Struct):
    data: list[_Model]


def models_url(url: str) -> str:
    """Where the server of this WebSocket address lists its models. Raises ValueError as the client does."""
    parts = urlsplit(build_realtime_url(url))
    scheme = "https" if parts.scheme == "wss" else "http"
    return urlunsplit((scheme, parts.netloc, parts.path.rpartition("/")[0] + "/models", "", ""))


def ends_its_turns(url: str, model: str, api_key: str | None) -> bool:
    """Whether the model hears itself when a turn is over; else somebody must commit it.

    True if the server does not say: what is wrong with it, or with the model's name, the session tells better.
    Raises ValueError for an address that is none.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(models_url(url), headers=headers, timeout=_TIMEOUT_S)
        listed = msgspec.json.decode(answer.raise_for_status().content, type=_Models)
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError):
        return True
    return all(known.capabilities.supports_model_native_turn_policy for known in listed.data if known.id == model)
