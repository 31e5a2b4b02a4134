"""What an incarnation holds, and what the newest Grants say that it should."""

from __future__ import annotations

from schemas.grant import Grant
from schemas.record import Record
from streams.codec import Entry
from workers.ledger import Ledger
from workers.rollout.holdings import Granted, Holding, Reconciliation, granted_to, reconcile


def rows(*grants: Grant) -> dict[bytes, Entry[Record]]:
    """The table of grants, these standing one after another from offset 10 on."""
    return {grant.key(): Entry(0, offset, 0, grant) for offset, grant in enumerate(grants, 10)}


def held(**epochs: int) -> dict[int, Holding]:
    """Partition `pN` under an epoch."""
    return {int(name[1:]): Holding(int(name[1:]), epoch, Ledger()) for name, epoch in epochs.items()}


def test_only_grants_of_this_very_incarnation_are_its_own() -> None:
    found = granted_to(
        rows(
            Grant(partition=0, node="a", incarnation="a2", cause="dead"), Grant(partition=1, node="a", incarnation="a1"),
            Grant(partition=2, node="b", incarnation="a2"), Grant(partition=3, holder="a2", cause="moved"),
        ), "a", "a2",
    )  # fmt: skip
    assert found == {0: Granted(10, "dead")}


def test_a_newer_epoch_of_a_partition_is_given_up_and_taken_anew() -> None:
    """R1: only the newest Claim's spans count, also where both are this incarnation's."""
    plan = reconcile(held(p0=10, p1=11), {0: Granted(10, "joined"), 1: Granted(15, "moved")})
    assert plan == Reconciliation(release=[1], take={1: Granted(15, "moved")})


def test_what_is_not_granted_any_more_is_given_up_and_what_is_new_is_taken() -> None:
    plan = reconcile(held(p0=10, p1=11), {1: Granted(11, "joined"), 2: Granted(12, "dead")})
    assert plan == Reconciliation(release=[0], take={2: Granted(12, "dead")})
