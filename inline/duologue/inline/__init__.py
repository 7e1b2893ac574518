"""Full-duplex sessions in one process: the in-process API. Needs the extra `inline`."""

import logging

from duologue.inline.client import InlineDuplexClient
from duologue.inline.handle import DuplexSessionHandle
from duologue.inline.omni import DuplexOmni, UnknownSessionError

__all__ = ["DuplexOmni", "DuplexSessionHandle", "InlineDuplexClient", "UnknownSessionError"]

# The process is somebody else's, and so is what is done with the log.
logging.getLogger("duologue").addHandler(logging.NullHandler())
