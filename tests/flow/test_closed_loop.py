"""The closed loop, source → agents → … → trainer → weights → tokens, without torch: its drivers are killed. More in `tests.chaos`.

One set of processes for all tests. The run never stands still, so each audit leaves out what the last seconds began.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from schemas.session import Open
from schemas.span import Span
from schemas.task import Task
from schemas.topics import SESSIONS, TASKS, TRAINING
from schemas.training import WeightVersion
from tests.flow.harness import Pipeline, looping_pipeline
from tests.flow.seen import Seen, require_self_describing

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

GRACE_MS = 30_000


@pytest.fixture(scope="module")
def standing(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with looping_pipeline(kafka_bootstrap, tmp_path_factory.mktemp("loop")) as pipeline:
        yield pipeline


@pytest.fixture
async def seen(seen: Seen) -> Seen:
    """The log, once the loop goes round."""
    await seen.more_steps(1)
    return seen


async def require_sound(pipeline: Pipeline, seen: Seen) -> None:
    """All groups that were given out by now are decided, tasks are numbered without a gap, no token was trained twice, tokens name the
    versions that were announced before them, and the audit finds nothing."""
    wanted = seen.given_out()
    await seen.until(lambda: wanted <= seen.decided_groups(), "a decision on each group")
    numbers = sorted(entry.record.number for entry in seen.all(TASKS, Task))
    assert numbers == list(range(len(numbers)))
    require_self_describing(seen)
    announced = {entry.record.version for entry in seen.all(TRAINING, WeightVersion)}
    assert {entry.record.version for entry in seen.all(SESSIONS, Span)} <= announced
    verdict = await pipeline.audit(grace_ms=GRACE_MS, staleness_bound=None)
    assert not verdict.violations, "\n".join(map(str, verdict.violations))
    assert verdict.trained_twice == 0


async def test_agents(pipeline: Pipeline, seen: Seen) -> None:
    """What they ran is run again, in sessions of its own; of two sessions of one member one is trained."""
    await seen.until(lambda: len(seen.running()) >= 3, "episodes in mid-generation")
    pipeline.crew.kill("agents")
    await pipeline.restart("agents")
    await seen.more_steps(2)
    await require_sound(pipeline, seen)
    opens = [(entry.record.group, entry.record.member) for entry in seen.all(SESSIONS, Open) if entry.record.purpose == "train"]
    assert len(opens) > len(set(opens))


async def test_trainer(pipeline: Pipeline, seen: Seen) -> None:
    pipeline.crew.kill("trainer")
    await pipeline.restart("trainer")
    await seen.more_steps(2)
    await require_sound(pipeline, seen)


async def test_source_after_it_committed_tasks(pipeline: Pipeline, seen: Seen) -> None:
    pipeline.crew.kill("source")
    await pipeline.restart("source", "source.after_tasks")
    await pipeline.dies("source")
    await pipeline.restart("source")
    await seen.more_steps(2)
    await require_sound(pipeline, seen)
