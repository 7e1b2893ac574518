"""What the bus says when it cannot be used as asked: a configuration fault, in one line."""

from __future__ import annotations


class BusError(Exception):
    """The endpoint cannot bind or dial as configured. The text names the address and what to do."""


class KeyRefused(BusError):
    """This peer is not spoken to as the keys of both sides are now: it is tried again, since keys change."""
