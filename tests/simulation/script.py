"""What simulated clients say, drawn from the world's seed: how they open, and one act after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulation.record import UNIT_MS

if TYPE_CHECKING:
    from simulation.client import Client

SPEECHES = 40
"""Steps of speech in a script: more than one session gets through."""
ACTS = {
    "append": 60,
    "burst": 4,
    "long append": 4,
    "heartbeat": 6,
    "item": 8,
    "ack": 9,
    "cancel": 5,
    "input.cancel": 2,
    "barge_in": 2,
    "clear output": 2,
    "event ack": 4,
    "retrieve": 2,
    "signal": 2,
    "update": 2,
    "commit": 3,
}
TURN_ACTS = {
    "append": 30,
    "commit": 14,
    "long append": 3,
    "heartbeat": 6,
    "item": 8,
    "ack": 9,
    "cancel": 6,
    "event ack": 4,
}


def session_of(client: Client) -> dict[str, Any]:
    """The session object that this client opens with."""
    draw, record = client.random, client.record
    script: list[dict[str, Any]] = []
    for step in range(SPEECHES):
        units = draw.randint(3, 14)
        text = " ".join(f"{record.name}.{step}.{unit}" for unit in range(units))
        if not client.turn_based:
            script.append({"listen": draw.randint(1, 4)})
        script.append({"speak": {"units": units, "text": text}})
    script.append({"listen": 1})
    loopback: dict[str, Any] = {"script": script, "audio": f"tone:{record.tone.hz}", "seed": draw.randint(0, 10**6)}
    if draw.random() < 0.7:
        loopback["stage_ms"] = [draw.choice((0, 1, 5)) for _ in range(4)]
        loopback["jitter_ms"] = draw.choice((0, 3))
    if draw.random() < 0.15:
        loopback["fail"] = {"stage": draw.randrange(4), "unit": draw.randint(5, 60), "how": "error"}
    extra: dict[str, Any] = {"loopback": loopback, "auto_response": not client.turn_based}
    return {
        "model": "loopback",
        "extra_body": extra,
        "overflow_policy": draw.choice(("close", "fail_response", "fail_response")),
    }


async def act(client: Client) -> None:
    """One act and the pause after it."""
    draw = client.random
    acts = client.world.acts_of(client)
    what = draw.choices(list(acts), list(acts.values()))[0]
    if client.talk_on:
        client.talk_on -= 1
        what = "commit" if client.turn_based and client.talk_on % 2 else "append" if client.turn_based else "burst"
    _do(client, what)
    quick = draw.random() < 0.25
    await client.pause(0.002 if quick else draw.expovariate(1 / 0.07))


def _do(client: Client, what: str) -> None:
    draw, record = client.random, client.record
    latest = record.latest
    if what == "append":
        client.send("input_audio_buffer.append", audio_ms=draw.choice((40, 80, 80, 80, 120)), is_speech=True)
    elif what == "burst":
        for _ in range(draw.randint(5, 14)):
            client.send("input_audio_buffer.append", audio_ms=UNIT_MS, is_speech=True)
    elif what == "long append":
        client.send("input_audio_buffer.append", audio_ms=draw.choice((240, 400)), is_speech=True)
    elif what == "heartbeat":
        client.send("session.heartbeat")
    elif what == "item":
        item_id = f"item-{record.name}-{client.commands}"
        content = [{"type": "input_text", "text": item_id}]
        item = {"id": item_id, "type": "message", "role": "user", "content": content}
        client.send("conversation.item.create", item=item)
    elif what == "ack" and latest is not None:
        heard = record.responses[latest]
        played = round(draw.random() * heard.audios * UNIT_MS)
        heard.acked = True
        heard.acked_ms = max(heard.acked_ms, played)
        client.send("playback.ack", response_id=latest, played_ms=played)
    elif what == "cancel":
        client.send("response.cancel")
    elif what in ("input.cancel", "barge_in"):
        client.send(what)
    elif what == "clear output":
        client.send("output_audio_buffer.clear")
    elif what == "event ack" and record.seq:
        client.send("session.event_ack", server_event_seq=record.seq)
    elif what == "retrieve" and record.items:
        client.send("conversation.item.retrieve", item_id=draw.choice(sorted(record.items)))
    elif what == "signal":
        client.send("turn.signal", event="user_started")
    elif what == "update":
        client.send("session.update", session={"overlap_short_ack_ms": draw.randint(300, 900)})
    elif what == "commit":
        client.send("input_audio_buffer.commit", response_create=True)
    elif what == "delete" and record.items:
        client.send("conversation.item.delete", item_id=draw.choice(sorted(record.items)))
    elif what == "create":
        client.send("response.create")
