"""What a partition remembers: until the Trajectory stands, and not beyond a reset."""

from __future__ import annotations

from schemas.identity import Position
from schemas.record import Record
from streams.broker import Outgoing
from streams.codec import Entry
from streams.writer import Receipt
from tests.unit.workers.assembler.session_log import claim, close, open_
from workers.assembler.deadlines import Deadlines
from workers.assembler.partition import HeldPartition
from workers.ledger import Ledger, SessionState


def held(ledger: Ledger | None = None) -> HeldPartition:
    return HeldPartition(ledger or Ledger(), Deadlines(idle_s=10, max_age_s=60))


def take(partition: HeldPartition, record: Record, now_s: float = 0.0) -> SessionState | None:
    return partition.take(Entry(0, partition.ledger.next, 0, record), now_s)


def receipt() -> Receipt:
    return Receipt(Outgoing("t", 0, None, b""))


def test_the_position_waits_for_the_acknowledgement_of_the_oldest() -> None:
    partition = held()
    take(partition, claim(3))
    take(partition, open_())
    take(partition, open_())
    receipts = [receipt(), receipt()]
    for session, answer in zip((2, 1), receipts, strict=True):
        ended = take(partition, close(session))
        assert ended is not None
        assert ended.offset == session
        partition.sent(ended, answer)
    assert (partition.settle(), partition.position()) == (0, Position(1, 3))
    receipts[0].acknowledge(0)
    assert (partition.settle(), partition.position()) == (1, Position(1, 3))
    receipts[1].acknowledge(1)
    assert (partition.settle(), partition.position()) == (1, Position(5, 3))


def test_a_reset_ends_sessions_without_a_trajectory_and_without_deadlines() -> None:
    partition = held()
    take(partition, claim(3))
    take(partition, open_())
    assert take(partition, claim(5, reset=True)) is None
    assert partition.position() == Position(3, 5)
    assert partition.due(1e6) == []


def test_while_nothing_counts_there_is_no_position() -> None:
    partition = held(Ledger(Position(7, -1), floor=4))
    take(partition, open_())
    assert partition.position() is None
    take(partition, claim(4, reset=True))
    assert partition.position() == Position(9, 4)


def test_no_snapshot_while_a_session_that_ended_waits_for_its_acknowledgement() -> None:
    """It would hold open sessions alone, and whoever began with it would never write that Trajectory."""
    partition = held()
    take(partition, claim(3))
    take(partition, open_())
    ended = take(partition, close(1))
    assert ended is not None
    answer = receipt()
    partition.sent(ended, answer)
    assert partition.snapshot("t", 0) is None
    answer.acknowledge(0)
    partition.settle()
    taken = partition.snapshot("t", 0)
    assert taken is not None
    assert taken.position == Position(3, 3)
