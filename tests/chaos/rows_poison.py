"""Work that kills whoever touches it: counted in the log over the deaths of its processes, then given up; everything else goes on."""

from __future__ import annotations

import aiohttp
import anyio

from schemas.deadletter import DeadLetter
from schemas.errors import NoProgress
from schemas.identity import SessionId
from schemas.score import Score
from schemas.topics import DEADLETTER
from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage
from tests.flow.seen import Key

VERDICT_S = 2.0
LOOK_S = 0.1


async def open_and_close(url: str, payload: dict[str, object]) -> Key:
    """A session without a call."""
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/sessions", json={"payload": payload}) as response:
            session = SessionId.parse((await response.json())["id"])
        async with http.post(f"{url}/v1/sessions/{session}/close", json={}) as response:
            assert response.status == 200, await response.text()
    return Key(session.partition, session.offset)


def score_of(stage: Stage, session: Key) -> Score | None:
    trajectory = stage.seen.trajectories().get(session)
    return None if trajectory is None else stage.seen.first_scores().get(Key(session.partition, trajectory.offset))


@row("a reward rule that never returns from one trajectory", is_alone=True)
async def rule_never_returns(stage: Stage) -> Happened:
    pipeline = stage.pipeline
    await stage.reconfigure("reward", rule="tests.chaos.plugins:HangingRule", verdict_s=VERDICT_S)
    hanging = await open_and_close(pipeline.url, {"hangs": True})
    async with stage.agents(4, tokens=20):
        pass
    deaths = 0
    while (score := score_of(stage, hanging)) is None:
        if not pipeline.crew.members["reward"].is_alive:
            assert await pipeline.exit_code("reward") == NoProgress.exit_code, pipeline.said("reward")
            deaths += 1
            await pipeline.restart("reward")
        await anyio.sleep(LOOK_S)
    await stage.seen.until(lambda: stage.seen.all(DEADLETTER, DeadLetter), "the dead letter")
    letters = [entry.record.reason for entry in stage.seen.all(DEADLETTER, DeadLetter)]
    is_given_up = score.status == "failed" and len(letters) == 1 and letters[0].startswith("poison")
    return Happened(f"reward ended {deaths} times by exit code {NoProgress.exit_code}; then {score.detail!r}" if is_given_up else "")
