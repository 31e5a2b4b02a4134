"""The agents role on the broker in memory, against a gateway that only remembers."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from schemas.deadletter import DeadLetter
from schemas.errors import BrokerError, BrokerUnavailable
from schemas.task import Task
from schemas.topics import DEADLETTER, TASKS, TRAINING
from schemas.training import Consumed, Drops
from streams.log import Log
from streams.service import Role
from tests.unit.workers.agents.episodes import Gate
from tests.unit.workers.agents.fake_gateway import FakeGateway, fake_gateway
from tests.unit.workers.running import append, memory_log, records, running, until
from workers.agents.service import Runner, role
from workers.agents.settings import AgentsSettings
from workers.intake import Item
from workers.trials import FATAL, SUSPECT, Trials, metadata_of, trials_of

pytestmark = pytest.mark.anyio


def agents(gateway: FakeGateway, agent: str, **more: Any) -> Role:
    values: dict[str, Any] = {"gateway_url": gateway.url, "agent": f"tests.unit.workers.agents.episodes:{agent}", "commit_s": 0.01}
    return role(AgentsSettings(**{**values, "retry_s": 0.01, **more}))


def give(log: Log, number: int, partition: int = 0, **more: Any) -> None:
    append(log, TASKS, partition, Task(number=number, group=number // 2, member=number % 2, members=2, payload={"word": "abc"}, **more))


async def committed(log: Log, partition: int = 0) -> int:
    place = log.place(TASKS, partition)
    return (await log.broker.committed(log.group("agents"), [place])).get(place, (0, ""))[0]


async def until_committed(log: Log, offset: int, partition: int = 0) -> None:
    with anyio.fail_after(20):
        while await committed(log, partition) != offset:
            await anyio.sleep(0.002)


async def test_a_task_is_a_session_that_is_opened_played_and_closed() -> None:
    log = await memory_log()
    async with fake_gateway() as gateway, running(agents(gateway, "reverse"), log):
        give(log, 5, purpose="eval", seed=17)
        await until_committed(log, 1)
        assert gateway.opened == [{"group": 2, "member": 1, "attempt": 0, "purpose": "eval", "payload": {"word": "abc"}}]
        ((session, body),) = gateway.chats
        assert (session, body["messages"], body["seed"]) == ("0-1-abcdef", [{"role": "user", "content": "abc"}], 17)
        assert gateway.closed == {"0-1-abcdef": {"outcome": "ok", "reward": 3.0}}


async def test_the_openai_client_reaches_the_session() -> None:
    log = await memory_log()
    async with fake_gateway() as gateway, running(agents(gateway, "openai_reverse"), log):
        give(log, 0)
        await until_committed(log, 1)
        assert [session for session, _ in gateway.chats] == ["0-1-abcdef"]
        assert gateway.outcomes() == ["cba"]


async def test_a_share_of_the_tasks_goes_to_the_second_agent() -> None:
    log = await memory_log()
    second = "tests.unit.workers.agents.episodes:broken"
    async with fake_gateway() as gateway:
        async with running(agents(gateway, "reverse", second_agent=second, second_share=0.5, attempts=1), log):
            for number in range(40):
                give(log, number)
            await until_committed(log, 40)
        shares = Counter(gateway.outcomes())
    assert sum(shares.values()) == 40
    assert 10 <= shares["failed"] <= 30


async def test_what_an_agent_raises_ends_its_try_and_the_next_one_is_numbered(tmp_path: Path) -> None:
    log, report = await memory_log(), tmp_path / "report.json"
    async with fake_gateway() as gateway:
        async with running(agents(gateway, "broken", attempts=3, report_file=report), log):
            give(log, 0)
            await until_committed(log, 1)
        assert [body["attempt"] for body in gateway.opened] == [0, 1, 2]
        assert gateway.outcomes() == ["failed", "failed", "failed"]
    found = orjson.loads(report.read_bytes())
    assert (found["episodes"], found["failed_tries"], found["lost"], found["errors"]) == (3, 3, 1, {"RuntimeError": 3})


async def test_a_task_that_is_given_up_is_buried_with_the_reason() -> None:
    log = await memory_log(partitions=1)
    place = log.place(TASKS, 0)
    await log.broker.commit(log.group("agents"), {place: (0, metadata_of(Trials(SUSPECT, FATAL, until=1)))})
    async with fake_gateway() as gateway, running(agents(gateway, "broken", attempts=2), log):
        give(log, 0)
        give(log, 1)
        await until_committed(log, 2)
        assert [body["member"] for body in gateway.opened] == [1, 1]
    letters = {letter.offset: letter.reason for letter in records(log, DEADLETTER, DeadLetter)}
    assert sorted(letters) == [0, 1]
    assert letters[0] == "poison: the agent ended every process that ran it"
    assert letters[1].startswith("poison: 2 tries failed, the last one by RuntimeError: ")


async def test_a_refused_call_is_seen_by_the_agent_counted_and_tried_again(tmp_path: Path) -> None:
    log, report = await memory_log(), tmp_path / "report.json"
    async with fake_gateway() as gateway:
        gateway.refusals["chat"] = [422]
        async with running(agents(gateway, "reverse", report_file=report), log):
            give(log, 0)
            await until_committed(log, 1)
        assert gateway.outcomes() == ["failed", "ok"]
    found = orjson.loads(report.read_bytes())
    assert (found["episodes"], found["lost"], found["errors"]) == (2, 0, {"AgentSawError": 1})


async def test_a_gateway_that_is_away_costs_no_try(tmp_path: Path) -> None:
    log, report = await memory_log(), tmp_path / "report.json"
    async with fake_gateway() as gateway:
        gateway.refusals = {"open": [503, 429, 502], "close": [503]}
        async with running(agents(gateway, "reverse", attempts=1, report_file=report), log):
            give(log, 0)
            await until_committed(log, 1)
        assert [body["attempt"] for body in gateway.opened] == [0]
        assert gateway.outcomes() == ["ok"]
    found = orjson.loads(report.read_bytes())
    assert (found["failed_tries"], found["lost"]) == (0, 0)


async def test_a_task_waits_beyond_the_patience_for_a_gateway_that_is_away_and_the_log_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    log = await memory_log()
    async with fake_gateway() as gateway:
        gateway.refusals["open"] = [503] * 5
        async with running(agents(gateway, "reverse", attempts=1, patience_s=0), log):
            give(log, 0)
            await until_committed(log, 1)
        assert [body["attempt"] for body in gateway.opened] == [0]
        assert gateway.outcomes() == ["ok"]
    assert records(log, DEADLETTER, DeadLetter) == []
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("a task waits for a gateway") == 5


async def test_nobody_listens_and_the_group_is_decided_meanwhile() -> None:
    log = await memory_log(partitions=1)
    async with running(agents(FakeGateway("http://127.0.0.1:9"), "reverse", patience_s=0), log):
        give(log, 0)
        with anyio.fail_after(20):
            while not await begun(log):
                await anyio.sleep(0.002)
        append(log, TRAINING, 0, Drops(consumed=Consumed(groups_below=1)))
        await until_committed(log, 1)
    assert records(log, DEADLETTER, DeadLetter) == []


async def test_a_gateway_that_answers_with_its_own_error_costs_a_try() -> None:
    log = await memory_log(partitions=1)
    async with fake_gateway() as gateway:
        gateway.refusals["open"] = [500]
        async with running(agents(gateway, "reverse", attempts=1, patience_s=0), log):
            give(log, 0)
            await until_committed(log, 1)
    (letter,) = records(log, DEADLETTER, DeadLetter)
    assert letter.reason.startswith("poison: 1 tries failed, the last one by AgentSawError: 500: ")


async def test_an_agent_that_failed_while_the_gateway_was_away_has_its_try_again() -> None:
    log = await memory_log(partitions=1)
    async with fake_gateway() as gateway:
        gateway.refusals = {"chat": [503], "close": [503]}
        async with running(agents(gateway, "reverse", attempts=1, patience_s=0), log):
            give(log, 0)
            await until_committed(log, 1)
        assert [body["attempt"] for body in gateway.opened] == [0, 1]
        assert gateway.closed == {"0-2-abcdef": {"outcome": "ok", "reward": 3.0}}
    assert records(log, DEADLETTER, DeadLetter) == []


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        ("leaks_a_cancellation", "CancelledError: "), ("awaits_what_is_cancelled", "CancelledError: "), ("exits", "SystemExit: 0"),
        ("interrupts", "KeyboardInterrupt: "), ("exits_in_a_group", "BaseExceptionGroup: "),
        ("answers_nothing", "TypeError: the agent answered NoneType, not an Outcome"),
        ("is_unprintable", "Unprintable: it cannot be printed"),
        ("has_no_end_of_reward", "ValueError: the agent's reward is nan"), ("says_half_a_character", "ValueError: bad ?"),
        ("sleeps", "TimeoutError: no answer within 0.2 s"),
    ],
)  # fmt: skip
async def test_whatever_an_agent_does_is_a_failure_of_its_own_and_the_role_goes_on(agent: str, why: str, tmp_path: Path) -> None:
    log, report = await memory_log(partitions=1), tmp_path / "report.json"
    async with fake_gateway() as gateway:
        async with running(agents(gateway, agent, attempts=1, episode_s=0.2, report_file=report), log):
            give(log, 0)
            await until_committed(log, 1)
            give(log, 1)
            await until_committed(log, 2)
        assert gateway.outcomes() == ["failed", "failed"]
    reasons = {letter.reason for letter in records(log, DEADLETTER, DeadLetter)}
    assert all(reason.startswith(f"poison: 1 tries failed, the last one by {why}") for reason in reasons), reasons
    assert orjson.loads(report.read_bytes())["lost"] == 2


async def test_a_stop_is_no_failure_of_the_agents_that_run(tmp_path: Path) -> None:
    Gate.running, Gate.opened = set(), {}
    log, report = await memory_log(partitions=1), tmp_path / "report.json"
    async with fake_gateway() as gateway:
        async with running(agents(gateway, "wait", report_file=report), log):
            give(log, 0)
            await until(lambda: Gate.running == {0}, "it runs")
        assert gateway.closed == {}
    assert orjson.loads(report.read_bytes())["failed_tries"] == 0


async def test_a_reward_of_numpy_is_a_number() -> None:
    log = await memory_log(partitions=1)
    async with fake_gateway() as gateway, running(agents(gateway, "rewards_in_numpy"), log):
        give(log, 0)
        await until_committed(log, 1)
        assert gateway.closed == {"0-1-abcdef": {"outcome": "ok ?", "reward": 0.5}}


async def begun(log: Log) -> str:
    place = log.place(TASKS, 0)
    return trials_of((await log.broker.committed(log.group("agents"), [place])).get(place, (0, ""))[1]).begun


@pytest.mark.parametrize(
    ("end", "stands"), [(None, ""), (BrokerUnavailable("away"), ""), (BrokerError("refused"), "some"), (TypeError("a defect"), "some")]
)
async def test_an_end_counts_unless_it_came_from_outside(end: Exception | None, stands: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = await memory_log(partitions=1)
    Gate.running, Gate.opened = set(), {}
    is_over = anyio.Event()

    async def fail(self: Runner, item: Item) -> None:
        await is_over.wait()
        if end is not None:
            raise end

    monkeypatch.setattr(Runner, "_try_all", fail)
    with contextlib.suppress(ExceptionGroup):
        async with fake_gateway() as gateway, running(agents(gateway, "wait"), log):
            give(log, 0)
            with anyio.fail_after(20):
                while not await begun(log):
                    await anyio.sleep(0.002)
            if end is not None:
                is_over.set()
                await anyio.sleep_forever()
    assert await begun(log) == stands


async def test_no_more_episodes_than_the_bound_and_no_commit_past_one_that_runs() -> None:
    Gate.running, Gate.most, Gate.opened = set(), 0, {}
    log = await memory_log()
    async with fake_gateway() as gateway, running(agents(gateway, "wait", concurrency=2), log):
        for number in range(4):
            give(log, number)
        await until(lambda: Gate.running == {0, 1}, "two run")
        Gate.opened[1].set()
        await until(lambda: Gate.running == {0, 2}, "the next one runs")
        assert await committed(log) == 0
        Gate.opened[0].set()
        await until_committed(log, 2)
        for number in (2, 3):
            Gate.opened.setdefault(number, anyio.Event()).set()
        await until_committed(log, 4)
    assert Gate.most == 2


async def test_what_was_not_committed_when_it_died_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = await memory_log()
    async with fake_gateway() as gateway:
        monkeypatch.setattr(Runner, "keep", _keep_nothing)
        monkeypatch.setattr(Runner, "leave", _keep_nothing)
        async with running(agents(gateway, "reverse"), log):
            for number in range(4):
                give(log, number, partition=number % 2)
            await until(lambda: len(gateway.closed) == 4, "all played")
        monkeypatch.undo()
        async with running(agents(gateway, "reverse"), log):
            await until_committed(log, 2, partition=0)
            await until_committed(log, 2, partition=1)
        played = Counter((body["group"], body["member"]) for body in gateway.opened)
    assert played == {(group, member): 2 for group in range(2) for member in range(2)}


async def test_a_task_whose_group_is_decided_is_passed_and_an_evaluation_is_played() -> None:
    log = await memory_log()
    for decided in (Consumed(groups_below=1), Consumed(groups_below=2, groups=[3])):
        append(log, TRAINING, 0, Drops(consumed=decided))
    async with fake_gateway() as gateway:
        async with running(agents(gateway, "reverse"), log):
            for number, purpose in ((2, "train"), (3, "eval"), (4, "train"), (6, "train"), (8, "train")):
                give(log, number, purpose=purpose)
            await until_committed(log, 5)
        assert sorted((body["group"], body["purpose"]) for body in gateway.opened) == [(1, "eval"), (2, "train"), (4, "train")]


async def _keep_nothing(self: Runner, **how: bool) -> None:
    """A process that is killed commits nothing."""
