"""One vLLM engine, in a thread with an event loop of its own. For stage workers only.

Rule 1. vLLM is touched by that thread alone. Whoever else wants something of it hands over a coroutine.
Rule 2. The engine's core is a process of its own. If it dies this process is of no use: it ends, and its sessions go
        the way of every lost worker.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import msgspec

from duologue.model.loop_thread import LoopThread
from duologue.models.vllm_stream.admission import Admission
from duologue.models.vllm_stream.options import EngineOptions
from duologue.runtime import metrics

_log = logging.getLogger("duologue.models.vllm")
_T = TypeVar("_T")
CLOSE_S: Final = 15.0
EXIT_CODE: Final = 70
"""Of a worker whose engine died."""


class HostError(Exception):
    """vLLM does not start, or what it was given cannot be served; the message says why."""


class HostSpec(msgspec.Struct, frozen=True):
    model: str
    sessions: int
    context_tokens: int
    options: EngineOptions = EngineOptions()
    sound_token: str = ""
    """Empty: a model of text."""


def _end_process() -> None:
    os._exit(EXIT_CODE)


class VllmHost:
    """`admission`, `tokenizer` and `prompts` are there once it is loaded."""

    def __init__(self, spec: HostSpec, on_death: Callable[[], None] = _end_process) -> None:
        self.spec: Final = spec
        self._thread = LoopThread("vllm")
        self.loop: Final = self._thread.loop
        self.engine: Any = None
        self.tokenizer: Any = None
        self.prompts: Any = None
        self.admission: Admission
        self._on_death = on_death
        self._label = spec.model.rstrip("/").rsplit("/", 1)[-1]

    def load(self) -> None:
        """Takes its time. Raises HostError."""
        self._thread.start()
        try:
            self.submit(self._load()).result()
        except HostError:
            raise
        except Exception as error:  # whatever a model's loader raises is why it does not start
            raise HostError(f"vLLM does not start {self.spec.model}: {type(error).__name__}: {error}") from error

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """From any thread."""
        return self._thread.submit(work)

    def count(self, result: str) -> None:
        """What came of an append."""
        metrics.WORKER_VLLM_APPENDS.labels(self._label, result).inc()

    def count_reopened(self) -> None:
        metrics.WORKER_VLLM_REOPENED.labels(self._label).inc()

    def died(self, error: BaseException) -> None:
        _log.critical("vLLM's engine died: %s", error)
        self._on_death()

    def encode(self, text: str) -> tuple[int, ...]:
        """With the model's special tokens read as such."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """`last`: what the owner still has to do in the loop."""
        if self._thread.started:
            self.submit(self._close(last)).result(CLOSE_S)
        else:
            last.close()
        self._thread.close(end_s=CLOSE_S)

    async def _load(self) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from duologue.models.vllm_stream.prompts import Prompts

        engine = self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._arguments()))
        self.tokenizer = engine.get_tokenizer()
        self.prompts = Prompts(engine, self._sound_id())
        cache = engine.vllm_config.cache_config
        pool = int(cache.kv_cache_size_tokens or (cache.num_gpu_blocks or 0) * cache.block_size)
        self.admission = Admission(self.spec.sessions, pool, int(cache.block_size))
        fits = self.admission.fits(self.spec.context_tokens)
        if not fits:
            raise HostError(f"the KV cache of {pool} tokens holds no context of {self.spec.context_tokens}")
        if fits < self.spec.sessions:
            _log.warning("the KV cache of %d tokens holds %d of %d sessions", pool, fits, self.spec.sessions)

    def _arguments(self) -> dict[str, Any]:
        spec, options = self.spec, self.spec.options
        arguments: dict[str, Any] = {
            "model": spec.model,
            "max_num_seqs": spec.sessions,
            "max_model_len": spec.context_tokens,
            "dtype": options.dtype,
            "enforce_eager": options.enforce_eager,
            "enable_prefix_caching": options.prefix_caching,
            "tensor_parallel_size": options.tensor_parallel,
            "disable_log_stats": True,
            "mm_processor_cache_gb": 0,
        }
        if options.gpu_memory is not None:
            arguments["gpu_memory_utilization"] = options.gpu_memory
        if options.scheduler:
            arguments["scheduler_cls"] = options.scheduler
        if spec.sound_token:
            arguments |= {"enable_mm_embeds": True, "limit_mm_per_prompt": {"audio": 1}}
        return arguments | options.arguments

    def _sound_id(self) -> int | None:
        if not self.spec.sound_token:
            return None
        ids = self.encode(self.spec.sound_token)
        if len(ids) != 1:
            raise HostError(f"{self.spec.sound_token!r} is no token of {self.spec.model}")
        return ids[0]

    async def _close(self, last: Coroutine[Any, Any, None]) -> None:
        try:
            await last
        finally:
            if self.engine is not None:
                self.engine.shutdown()
