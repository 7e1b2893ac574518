"""The system that the clients meet: `duologue up` with a home of its own, and what its metrics say of its places."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import ssl
import tempfile
import tomllib
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from clients.environments import ROOT
from clients.stub_thinker import StubThinker
from system.running import RunningSystem, status, until

from duologue.cli.home import Home

#: How long a session waits for its client, and a stopped gateway for its sockets.
GRACE_S, DRAIN_S = 8, 1
START_S = 180.0
CASCADE = ROOT / "models" / "duologue" / "models" / "cascade" / "cascade.toml"
STUBBED = "cascade-stub"
_SAMPLE = re.compile(r"^(duologue_[a-z_]+)(?:\{([^}]*)\})? ([0-9.eE+-]+)$", re.MULTILINE)


def stubbed_cascade(folder: Path, thinker: str) -> Path:
    """A pipeline like the cascade, in workers of its own, that thinks at another URL."""
    text = CASCADE.read_text().replace('"cascade-', f'"{STUBBED}-').replace('name = "cascade"', f'name = "{STUBBED}"')
    table = f'[options.thinker]\nurl = "{thinker}"\nmodel = "stub"\n\n'
    path = folder / f"{STUBBED}.toml"
    path.write_text(text.replace("[[stages]]", f"{table}[[stages]]", 1))
    written = tomllib.loads(path.read_text())
    assert (written["name"], written["options"]["thinker"]["url"]) == (STUBBED, thinker)
    return path


@dataclass
class Places:
    """What is taken, and how sessions have ended so far."""

    sessions: float = 0
    slots: float = 0
    ended: Counter[str] = field(default_factory=Counter)

    @property
    def free(self) -> bool:
        return self.sessions == 0 and self.slots == 0


def authority(home: Path) -> Path:
    """The CA that `duologue up --tls` has made."""
    return Home(home).tls_dir / "ca.pem"


class SecureSystem(RunningSystem):
    """The same behind TLS."""

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        ca = authority(self.home)
        if not ca.exists():
            return False
        context = ssl.create_default_context(cafile=ca)
        try:
            with urllib.request.urlopen(f"https://127.0.0.1:{self.port}/readyz", timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Served:
    """A running system with two gateways, so that one may be stopped under its clients."""

    def __init__(self, system: RunningSystem, thinker: StubThinker, *, tls: bool) -> None:
        self.system, self.thinker, self.tls = system, thinker, tls
        self.ports = [system.port, system.port + 1]
        members = status("--home", str(system.home))["members"]
        self._meters = [m["record"]["metrics_url"] for m in members if m["kind"] in ("shard", "worker")]

    @property
    def trust(self) -> dict[str, str]:
        """What makes a Node client believe the system's own certificate."""
        return {"NODE_EXTRA_CA_CERTS": str(authority(self.system.home))} if self.tls else {}

    def places(self) -> Places:
        places = Places()
        for url in self._meters:
            with urllib.request.urlopen(url, timeout=10) as answer:
                exposition = answer.read().decode()
            for name, labels, value in _SAMPLE.findall(exposition):
                if name == "duologue_session_live_sessions":
                    places.sessions += float(value)
                elif name == "duologue_worker_used_slots":
                    places.slots += float(value)
                elif name == "duologue_session_ended_total":
                    places.ended[re.sub(r'.*reason="([^"]*)".*', r"\1", labels)] += int(float(value))
        return places

    async def until_free(self) -> Places:
        """When no session and no slot is taken. Raises AssertionError if that does not come."""
        places = Places()

        def free() -> bool:
            nonlocal places
            places = self.places()
            return places.free

        await asyncio.to_thread(until, free, "every place is free again", None, GRACE_S * 5)
        return places

    def stop_gateway(self, port: int) -> None:
        """SIGTERM to the gateway at a port: it drains, closes with 1012, and is started again."""
        os.kill(self.system.pid_of(f"gateway-{self.ports.index(port) + 1}"), signal.SIGTERM)


@contextmanager
def serve(*, tls: bool, models: set[str], logs: Path) -> Iterator[Served]:
    """The system with those models, ready, until the block is left; then its log is among the logs."""
    settings = {
        "DUOLOGUE_SESSION__DISCONNECT_GRACE_S": str(GRACE_S),
        "DUOLOGUE_GATEWAY__DRAIN_S": str(DRAIN_S),
        "DUOLOGUE_SUPERVISOR__SHARDS": "1",
    }
    with tempfile.TemporaryDirectory(prefix="duologue-clients-") as folder, StubThinker() as thinker:
        pipelines = [str(stubbed_cascade(Path(folder), thinker.url)) if m == STUBBED else m for m in sorted(models)]
        options = ["--pipelines", ",".join(pipelines), "--gateways", "2", *(["--tls"] if tls else [])]
        before = {name: os.environ.get(name) for name in settings}
        os.environ.update(settings)
        try:
            system = (SecureSystem if tls else RunningSystem)(Path(folder) / "home", *options)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        try:
            with system:
                yield Served(system, thinker, tls=tls)
        finally:
            shutil.copy(system.log, logs / f"system-{'tls' if tls else 'plain'}.log")
