"""Losses and their gradients, worked by hand: probabilities are chosen so that every factor is a short number."""

from __future__ import annotations

from math import log

import pytest
import torch

from schemas.errors import UsageError
from trainer.losses import Clipped, Reinforce, Tokens, make_loss

pytestmark = pytest.mark.torch


def tokens(*, now: float, old: float, behaviour: float, advantage: float, entropy: float = 0.0) -> Tokens:
    """One token by its probabilities."""
    return Tokens(
        logprob=torch.tensor([log(now)], requires_grad=True),
        entropy=torch.tensor([entropy], requires_grad=True),
        old=torch.tensor([log(old)]),
        behaviour=torch.tensor([log(behaviour)]),
        advantage=torch.tensor([advantage]),
    )


@pytest.mark.parametrize(
    ("now", "old", "behaviour", "advantage", "value", "slope"),
    [
        # The slope of −w·ρ·A in log π is the value itself; where the clip holds, it is 0.
        (0.4, 0.4, 0.4, 1.0, -1.0, -1.0),  # on policy
        (0.4, 0.4, 0.1, 1.0, -2.0, -2.0),  # importance 4 is cut to 2
        (0.4, 0.4, 0.8, 1.0, -0.5, -0.5),  # importance 0.5 stays
        (0.5, 0.4, 0.4, 2.0, -2.5, -2.5),  # ratio 1.25 is inside
        (0.6, 0.4, 0.4, 1.0, -1.28, 0.0),  # ratio 1.5 is cut to 1.28
        (0.2, 0.4, 0.4, 1.0, -0.5, -0.5),  # ratio 0.5, advantage positive: free to come back
        (0.2, 0.4, 0.4, -1.0, 0.8, 0.0),  # ratio 0.5 is cut to 0.8
        (0.6, 0.4, 0.4, -1.0, 1.5, 1.5),  # ratio 1.5, advantage negative: free to come back
        (0.6, 0.4, 0.1, -1.0, 3.0, 3.0),  # both factors: min(4, 2) · 1.5
    ],
)
def test_clipped(now: float, old: float, behaviour: float, advantage: float, value: float, slope: float) -> None:
    given = tokens(now=now, old=old, behaviour=behaviour, advantage=advantage)
    loss = Clipped(entropy=0.0)(given).value
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.tolist() == pytest.approx([value], rel=1e-6)
    assert given.logprob.grad is not None
    assert given.logprob.grad.tolist() == pytest.approx([slope], rel=1e-6, abs=1e-9)


def test_entropy_is_rewarded() -> None:
    given = tokens(now=0.4, old=0.4, behaviour=0.4, advantage=0.0, entropy=1.5)
    loss = Clipped(entropy=0.02)(given).value
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.tolist() == pytest.approx([-0.03])
    assert given.entropy.grad is not None
    assert given.entropy.grad.tolist() == pytest.approx([-0.02])


def test_facts_of_clipped() -> None:
    facts = Clipped()(tokens(now=0.6, old=0.4, behaviour=0.1, advantage=1.0)).facts
    assert {name: values.tolist() for name, values in facts.items()} == {
        "importance": pytest.approx([4.0]),
        "truncated": [1.0],
        "clipped": [1.0],
    }
    assert not any(values.requires_grad for values in facts.values())


def test_reinforce_weighs_the_present_policy_against_the_recorded_one() -> None:
    given = tokens(now=0.6, old=0.1, behaviour=0.4, advantage=2.0)
    loss = Reinforce(entropy=0.0)(given).value
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert loss.tolist() == pytest.approx([-1.5 * 2.0 * log(0.6)])
    assert given.logprob.grad is not None
    assert given.logprob.grad.tolist() == pytest.approx([-3.0])


def test_the_registry_names_what_is_wrong() -> None:
    assert make_loss("clipped", {"cap": 3.0}) == Clipped(cap=3.0)
    with pytest.raises(UsageError, match="use one of clipped, reinforce"):
        make_loss("dpo")
    with pytest.raises(UsageError, match="cap"):
        make_loss("clipped", {"cap": 0})
