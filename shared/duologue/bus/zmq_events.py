"""EVENTS and RCVMORE of a ZeroMQ socket without the wrapper's way there.

`Socket.get` of pyzmq looks the type of an option up by making an enum of its number, in Python, at each call.
These two are asked several times for each message and are integers: libzmq is asked directly, through the
module that is linked with it. Where that is not possible the wrapper is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import zmq

_SIZE: Final = ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))


def _find() -> Any:
    try:
        from zmq.backend.cython import _zmq

        return ctypes.CDLL(_zmq.__file__).zmq_getsockopt
    except (ImportError, OSError, AttributeError):
        return None


_getsockopt: Final = _find()


def option_reader(socket: zmq.Socket[bytes], option: int) -> Callable[[], int]:
    """A function that reads this option, an integer, now. Not to be called once the socket is closed."""
    if _getsockopt is None:
        return lambda: int(socket.getsockopt(option))
    handle = ctypes.c_void_p(socket.underlying)
    number = ctypes.c_int(option)
    value = ctypes.c_int()
    there, size = ctypes.byref(value), ctypes.byref(_SIZE)
    ask = _getsockopt

    def read() -> int:
        if ask(handle, number, there, size):
            return int(socket.getsockopt(option))  # raises what is wrong
        return value.value

    return read
