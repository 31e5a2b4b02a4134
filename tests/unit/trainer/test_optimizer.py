"""AdamW against torch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from schemas.errors import SeamlessFlowError
from trainer.optimizer import AdamW, OptimizerSettings

pytestmark = pytest.mark.torch
SHAPES = {"a": (3, 4), "b": (5,)}


def parameters() -> dict[str, Parameter]:
    generator = torch.Generator().manual_seed(1)
    return {name: Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}


def set_gradients(named: dict[str, Parameter], seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in named.values():
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator)


def test_equals_torch_with_clipping_decay_and_ramp() -> None:
    ours, theirs = parameters(), parameters()
    settings = OptimizerSettings(learning_rate=0.1, weight_decay=0.05, warm_updates=3)
    subject = AdamW(ours.items(), settings)
    reference = torch.optim.AdamW(theirs.values(), betas=(0.9, 0.99), weight_decay=0.05, foreach=False)
    for update, rate in enumerate([0.1 / 3, 0.2 / 3, 0.1, 0.1, 0.1, 0.1]):
        scale = 5.0 if update % 2 else 0.01  # above and below the clip
        set_gradients(ours, update, scale)
        set_gradients(theirs, update, scale)
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        reference.param_groups[0]["lr"] = rate
        reference.step()
        assert subject.step() == pytest.approx(float(norm), rel=1e-6)
        assert all(parameter.grad is None for parameter in ours.values())
        for name in SHAPES:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-6)
    for name, parameter in theirs.items():
        torch.testing.assert_close(subject.moments()[f"{name}.first"], reference.state[parameter]["exp_avg"], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(subject.moments()[f"{name}.second"], reference.state[parameter]["exp_avg_sq"], rtol=1e-6, atol=1e-7)


def test_restored_moments_continue_as_if_nothing_happened() -> None:
    straight, resumed = parameters(), parameters()
    first, second = AdamW(straight.items(), OptimizerSettings()), AdamW(resumed.items(), OptimizerSettings())
    for update in range(4):
        set_gradients(straight, update, 1.0)
        first.step()
    for name, parameter in resumed.items():
        parameter.data.copy_(straight[name].data)
    second.restore(first.moments(), first.updates)
    for named, subject in ((straight, first), (resumed, second)):
        set_gradients(named, 9, 1.0)
        subject.step()
    assert first.updates == second.updates == 5
    assert all(torch.equal(straight[name], resumed[name]) for name in SHAPES)
    assert all(torch.equal(tensor, second.moments()[name]) for name, tensor in first.moments().items())


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    named = parameters()
    subject = AdamW(named.items(), OptimizerSettings())
    set_gradients(named, 1, float("inf"))
    with pytest.raises(SeamlessFlowError, match="update 1 has norm"):
        subject.step()
    assert subject.updates == 0
    assert all(torch.equal(parameter, parameters()[name]) for name, parameter in named.items())
    assert not any(tensor.any() for tensor in subject.moments().values())


@pytest.mark.parametrize(("updates", "rate"), [(0, 0.1), (4, 0.5), (9, 1.0), (10, 1.0), (500, 1.0)])
def test_the_ramp_is_a_function_of_the_updates(updates: int, rate: float) -> None:
    assert OptimizerSettings(learning_rate=1.0, warm_updates=10).rate(updates) == pytest.approx(rate)


def test_no_ramp() -> None:
    assert OptimizerSettings(learning_rate=1.0, warm_updates=0).rate(0) == 1.0
