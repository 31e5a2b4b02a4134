"""The reward role on the broker in memory: one Score a trajectory, failures included, restarts included."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from models.chat import CharacterChat
from schemas.arrays import pack_f4, pack_i4
from schemas.deadletter import DeadLetter
from schemas.errors import UsageError
from schemas.score import Score
from schemas.session import Sampling
from schemas.topics import DEADLETTER, SCORES, TRAJECTORIES
from schemas.trajectory import Node, NodeEnd, Trajectory
from streams.log import Log
from streams.memory import MemoryBroker
from streams.service import Role
from tests.unit.workers.reward.rules import Gate
from tests.unit.workers.running import append, memory_log, records, running, until
from workers.reward.guard import Guard
from workers.reward.rule import Turn, load_rule, turns
from workers.reward.service import Scorer, role
from workers.reward.settings import RewardSettings
from workers.trials import FATAL, SUSPECT, Trials, metadata_of

pytestmark = pytest.mark.anyio

RULES = "tests.unit.workers.reward.rules:"
CHAT = CharacterChat()


def node(prompt: str, answer: str, parent: int = -1, end: NodeEnd = "stop") -> Node:
    given, sampled = CHAT.encode(prompt), [*CHAT.encode(answer), *CHAT.stop_token_ids]
    count = len(given) + len(sampled)
    return Node(
        request=0, parent=parent, prompt=len(given), tokens=pack_i4([*given, *sampled]), mask=bytes(count), logprobs=pack_f4([0.0] * count),
        versions=pack_i4([0] * count), sampling=Sampling(max_tokens=9), end=end,
    )


def trajectory(session: int, *nodes: Node, **more: Any) -> Trajectory:
    return Trajectory(session=session, close=session + 1, nodes=list(nodes), **more)


@pytest.fixture
def reward(tmp_path: Path) -> Any:
    CHAT.save(tmp_path)

    def make(rule: str, **more: Any) -> Role:
        return role(RewardSettings(rule=RULES + rule, model_dir=tmp_path, commit_s=0.01, **more))

    return make


async def committed(log: Log, partition: int) -> int:
    place = log.place(TRAJECTORIES, partition)
    return (await log.broker.committed(log.group("reward"), [place])).get(place, (0, ""))[0]


async def until_committed(log: Log, partition: int, offset: int) -> None:
    with anyio.fail_after(20):
        while await committed(log, partition) != offset:
            await anyio.sleep(0.002)


def test_turns_are_the_new_text_of_each_request() -> None:
    found = turns(trajectory(1, node("hello", "ifmmp"), node("again", "x", parent=0, end="length")), CHAT)
    assert found == [Turn(-1, "hello", "ifmmp", "stop"), Turn(0, "again", "x", "length")]


def test_what_is_no_rule_is_named() -> None:
    with pytest.raises(UsageError, match="no version, score"):
        load_rule(RULES + "NoRule")
    with pytest.raises(UsageError, match="cannot be loaded"):
        load_rule(RULES + "Nothing")
    with pytest.raises(UsageError, match="cannot be loaded"):
        load_rule("no.such.module:Rule")


async def test_a_score_stands_in_the_partition_of_its_trajectory_with_its_place(reward: Any) -> None:
    log = await memory_log()
    append(log, TRAJECTORIES, 1, trajectory(9, node("a", "bcd")))
    append(log, TRAJECTORIES, 1, trajectory(12, node("a", "bc"), purpose="eval", group=5))
    async with running(reward("Letters"), log):
        await until(lambda: len(records(log, SCORES, Score, 1)) == 2, "two scores")
        await until_committed(log, 1, 2)
    first, second = records(log, SCORES, Score, 1)
    assert first == Score(trajectory=0, session=9, rule="letters", rule_version=3, value=3.0, components={"turns": 1.0})
    assert (second.trajectory, second.session, second.value, second.purpose, second.group) == (1, 12, 2.0, "eval", 5)


async def test_a_rule_that_raises_makes_a_failed_score_and_the_role_goes_on(reward: Any) -> None:
    log = await memory_log(partitions=1)
    for number, nodes in enumerate(([], [node("a", "q")], [node("a", "bc")])):
        append(log, TRAJECTORIES, 0, trajectory(number, *nodes))
    async with running(reward("Letters"), log):
        await until(lambda: len(records(log, SCORES, Score)) == 3, "three scores")
    empty, endless, good = records(log, SCORES, Score)
    assert (empty.status, empty.value, empty.detail) == ("failed", 0.0, "IndexError: list index out of range")
    assert (endless.status, endless.detail) == ("failed", "ValueError: not finite: {'value': nan}")
    assert (good.status, good.value) == ("ok", 2.0)


async def test_slow_verdicts_run_at_once_up_to_the_bound_and_what_is_done_is_committed_meanwhile(reward: Any) -> None:
    Gate.opened, Gate.waiting, Gate.most = anyio.Event(), 0, 0
    log = await memory_log(partitions=1)
    for session in range(7):
        append(log, TRAJECTORIES, 0, trajectory(session))
    async with running(reward("Gate", concurrency=3), log):
        await until(lambda: Gate.waiting == 3, "three verdicts are sought")
        await until_committed(log, 0, 1)
        assert Gate.waiting == 3
        Gate.opened.set()
        await until_committed(log, 0, 7)
    assert sorted(score.value for score in records(log, SCORES, Score)) == [0, 1, 2, 3, 4, 5, 6]
    assert Gate.most == 3


async def test_a_rule_that_never_answers_makes_a_failed_score_and_the_role_goes_on(reward: Any) -> None:
    Gate.opened, Gate.waiting, Gate.most = anyio.Event(), 0, 0
    log = await memory_log(partitions=1)
    for session in (1, 2, 0):
        append(log, TRAJECTORIES, 0, trajectory(session))
    async with running(reward("Gate", concurrency=2, verdict_s=0.05), log):
        await until_committed(log, 0, 3)
    found = {score.session: (score.status, score.detail) for score in records(log, SCORES, Score)}
    late = ("failed", "TimeoutError: no answer within 0.05 s")
    assert found == {0: ("ok", ""), 1: late, 2: late}


async def test_nothing_unacknowledged_is_committed(reward: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await memory_log(partitions=1)
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    append(log, TRAJECTORIES, 0, trajectory(0, node("a", "b")))
    commit, commits = Scorer.commit, []

    async def counted(self: Scorer) -> None:
        await commit(self)
        commits.append(1)

    monkeypatch.setattr(Scorer, "commit", counted)
    async with running(reward("Letters"), log):
        await until_committed(log, 0, 1)
        broker.held = True
        append(log, TRAJECTORIES, 0, trajectory(1, node("a", "b")))
        await until(lambda: any(outbox.waiting() for outbox in broker.outboxes), "a score on its way")
        seen = len(commits)
        await until(lambda: len(commits) >= seen + 2, "two more commits")
        assert await committed(log, 0) == 1
        broker.held = False
        for outbox in broker.outboxes:
            while outbox.waiting():
                outbox.land(next(iter(outbox.waiting())))
        await until_committed(log, 0, 2)


@pytest.mark.parametrize("deaths", [1, 3])
async def test_killed_before_its_commit_it_scores_again(reward: Any, deaths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await memory_log()
    for number in range(6):
        append(log, TRAJECTORIES, number % 2, trajectory(number, node("a", "b" * number)))
    monkeypatch.setattr(Scorer, "commit", _commit_nothing)
    for death in range(1, deaths + 1):
        async with running(reward("Letters"), log):
            await until(lambda: len(records(log, SCORES, Score)) == 6 * death, "all scored")  # noqa: B023
    monkeypatch.undo()
    async with running(reward("Letters"), log):
        await until_committed(log, 0, 3)
        await until_committed(log, 1, 3)
    found = Counter((score.session, score.value) for score in records(log, SCORES, Score))
    assert found == {(number, float(number)): deaths + 1 for number in range(6)}


async def test_a_trajectory_that_kills_the_rule_has_a_failed_score_and_a_letter_and_the_next_ones_are_scored(reward: Any) -> None:
    log = await memory_log(partitions=1)
    for number in range(3):
        append(log, TRAJECTORIES, 0, trajectory(number, node("a", "bc")))
    place = log.place(TRAJECTORIES, 0)
    await log.broker.commit(log.group("reward"), {place: (0, metadata_of(Trials(SUSPECT, FATAL, until=2)))})
    async with running(reward("Letters"), log):
        await until_committed(log, 0, 3)
    found = {score.session: (score.status, score.detail) for score in records(log, SCORES, Score)}
    killed = ("failed", "the rule ended every process that scored this trajectory")
    assert found == {0: killed, 1: ("ok", ""), 2: ("ok", "")}
    (letter,) = records(log, DEADLETTER, DeadLetter)
    assert (letter.topic, letter.partition, letter.offset) == ("trajectories", 0, 0)
    assert letter.reason.startswith("poison: ")


@pytest.mark.parametrize("rule", ["Whatever", "SlowWhatever"])
async def test_whatever_a_rule_does_makes_a_failed_score_and_the_role_goes_on(reward: Any, rule: str) -> None:
    log = await memory_log(partitions=1)
    acts = [
        "cancels", "exits", "interrupts", "answers nothing", "half a character", "unprintable", "no number", "long names", "huge", "numpy",
    ]  # fmt: skip
    for number, act in enumerate(acts):
        append(log, TRAJECTORIES, 0, trajectory(number, payload={"act": act}))
    async with running(reward(rule), log):
        await until_committed(log, 0, len(acts))
    found = {score.session: score for score in records(log, SCORES, Score)}
    assert [found[number].detail for number in range(len(acts) - 1)] == [
        "CancelledError: ", "SystemExit: 0", "KeyboardInterrupt: ", "TypeError: the rule answered NoneType, not a Verdict",
        "ValueError: bad ?", "Unprintable: it cannot be printed", "ValueError: could not convert string to float: 'much'",
        "ValueError: the names of 1 components have more than 65536 characters", "OverflowError: int too large to convert to float",
    ]  # fmt: skip
    assert {score.status for score in found.values() if score.session < len(acts) - 1} == {"failed"}
    assert (found[len(acts) - 1].value, found[len(acts) - 1].components) == (0.5, {"half ?": 0.25})


async def test_a_rule_without_a_name_in_text_is_named() -> None:
    with pytest.raises(UsageError, match="the name of a reward rule is text, its version a whole number"):
        load_rule(RULES + "Unnamed")


def test_a_call_that_does_not_return_ends_the_process_and_one_that_does_is_left_alone() -> None:
    ended: list[str] = []
    happened = threading.Event()

    def end(what: str) -> None:
        ended.append(what)
        happened.set()

    with Guard(60.0, end).awake():
        pass
    guard = Guard(0.02, end)
    with guard.awake():
        for _ in range(50):
            with guard.over("a quick one"):
                pass
        with guard.over("a slow one"):
            assert happened.wait(60)
    assert len(ended) == 1
    assert ended[0].startswith("a slow one did not return within 0.02 s; it was at ")


HOLDS_THE_INTERPRETER = """
import re
from workers.reward import guard
guard.NET_S = 0.5
watch = guard.Guard(0.2)
with watch.awake(), watch.over("a call"):
    re.match(r"(a+)+$", "a" * 60 + "b")
"""


def test_a_call_that_never_lets_go_of_the_interpreter_ends_the_process_too() -> None:
    ended = subprocess.run([sys.executable, "-c", HOLDS_THE_INTERPRETER], capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("Timeout (0:00:00.700000)!")
    assert "in match" in ended.stderr


async def _commit_nothing(self: Scorer) -> None:
    """A process that is killed commits nothing."""
