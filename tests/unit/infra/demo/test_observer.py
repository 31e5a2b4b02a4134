"""Which requests of a node are under way, by the log."""

from __future__ import annotations

from infra.demo.observer import Observer
from schemas.arrays import pack_i4
from schemas.node import NodeStatus
from schemas.record import Record
from schemas.session import Claim, Open, Request, Sampling
from streams.codec import Entry


def test_a_node_that_gave_its_partitions_up_has_nothing_under_way() -> None:
    observer = Observer()
    session: list[Record] = [
        Claim(epoch=0, node="a", incarnation="i"), Open(nonce=b"o", check="abcdef"),
        Request(session=1, nonce=b"r", tokens=pack_i4([1]), sampling=Sampling(max_tokens=4)),
    ]  # fmt: skip
    for offset, record in enumerate(session):
        observer._take_session(Entry(0, offset, 0, record))
    assert observer.unfinished("a") == []
    for held, expected in (([0], 1), ([], 0)):
        status = NodeStatus(node="a", incarnation="i", tags=["rollout"], state="serving", partitions=held)
        observer._take_node(Entry(0, 0, 0, status))
        assert len(observer.unfinished("a")) == expected
