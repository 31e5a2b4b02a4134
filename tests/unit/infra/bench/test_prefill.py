"""The prepared log means what the benchmark says of it: read by the fold and the trajectory builder, as the assembler reads it."""

from __future__ import annotations

import pytest

from infra.bench.prefill import MEMBERS, PROMPT_TOKENS, SAMPLED_TOKENS, Prefill, prefill
from infra.bench.rule import ParityRule
from models.chat import NumberChat
from schemas.errors import TopicMismatch
from schemas.session import Claim
from schemas.topics import SESSIONS, TASKS
from schemas.trajectory import Trajectory
from streams.log import Log
from streams.memory import MemoryBroker
from streams.topics import ensure_topics
from trainer.paths import paths_of
from workers.assembler.trajectory import trajectory_of
from workers.ledger import Ledger, SessionEnded

SHAPE = Prefill(groups=5, partitions=2)


def trajectories(shape: Prefill, partition: int) -> list[Trajectory]:
    ledger = Ledger()
    changes = [ledger.apply(offset, record) for offset, record in enumerate(shape.records(partition))]
    assert None not in changes
    return [trajectory_of(change.session) for change in changes if isinstance(change, SessionEnded)]


def test_every_session_ends_with_64_tokens_of_which_48_are_trained() -> None:
    found = [each for partition in range(2) for each in trajectories(SHAPE, partition)]
    assert len(found) == SHAPE.sessions == 40
    assert {len(node.tokens) // 4 for each in found for node in each.nodes} == {PROMPT_TOKENS + SAMPLED_TOKENS} == {64}
    assert {path.trained for each in found for path in paths_of(each)} == {48}


def test_groups_are_whole_and_lie_in_one_partition() -> None:
    slots = [[(each.group, each.member) for each in trajectories(SHAPE, partition)] for partition in range(2)]
    assert sorted(slots[0]) == [(group, member) for group in (0, 2, 4) for member in range(MEMBERS)]
    assert sorted(slots[1]) == [(group, member) for group in (1, 3) for member in range(MEMBERS)]


def test_the_rule_rewards_odd_members() -> None:
    chat, rule = NumberChat(), ParityRule()
    assert [rule.score(each, chat).value for each in trajectories(Prefill(1, 1), 0)] == [0.0, 1.0] * 4


@pytest.mark.anyio
async def test_what_is_written_stands_at_the_foreseen_offsets_and_nowhere_twice() -> None:
    log = Log(MemoryBroker(), "test.", "test")
    await ensure_topics(log.broker, "test.", 2)
    await prefill(log, SHAPE)
    async with log.follow_all(SESSIONS) as reader:
        entries = await reader.read_to_end([0, 1])
    assert len(entries) == 2 + 4 * SHAPE.sessions
    assert [(entry.partition, entry.offset) for entry in entries if isinstance(entry.record, Claim)] == [(0, 0), (1, 0)]
    async with log.follow_all(TASKS) as reader:
        tasks = await reader.read_to_end(range(16))
    assert len(tasks) == SHAPE.sessions
    with pytest.raises(TopicMismatch, match="sessions/0 was not empty"):
        await prefill(log, SHAPE)
