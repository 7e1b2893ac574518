"""A peer whose bus version is not ours is refused, counted, and told of once, however often it tries."""

from __future__ import annotations

import msgspec
import pytest
from contract.bus.recorder import Recorder
from contract.bus.rigs import MemoryRig

pytestmark = pytest.mark.contract


async def test_a_peer_of_an_unknown_version_is_refused_by_name_in_a_log_that_stays_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, dialler = MemoryRig(), Recorder()
    ours = rig.options.version
    try:
        await rig.start("listener", Recorder(), listen=True)
        endpoint = await rig.start("dialler", dialler, options=msgspec.structs.replace(rig.options, version=ours + 2))
        endpoint.dial("listener", rig.address("listener"))
        refused = rig.endpoints[0].stats.hellos_refused
        await dialler.until(lambda: refused.get("version", 0) >= 3)
        told = [record.getMessage() for record in caplog.records if record.name == "duologue.bus"]
        assert told == [
            f"hello of dialler refused: version (it speaks bus version {ours + 2}, we {ours})",
            f"listener does not speak our bus version ({ours + 2}); dialling on",
        ]
        assert set(endpoint.stats.of("listener").lost) == {"version"}
        assert dialler.ready == []
    finally:
        await rig.finish()
