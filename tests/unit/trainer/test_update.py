"""A step's arithmetic: against a naive one, and against itself in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from models.qwen2 import Qwen2, initial
from schemas.arrays import unpack_f4, unpack_i4
from schemas.errors import CorruptRecord, SeamlessFlowError, UsageError
from schemas.training import Plan, Row
from schemas.trajectory import Trajectory
from tests.unit.trainer import small
from trainer import checkpoint
from trainer.learner import Learner
from trainer.losses import Clipped
from trainer.numerics import numerics_key, settle
from trainer.optimizer import OptimizerSettings
from trainer.update import LossSettings, apply

pytestmark = pytest.mark.torch
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _settled() -> None:
    settle()


def naive_tokens(model: Qwen2, row: Row, trajectory: Trajectory) -> list[tuple[Tensor, Tensor, float]]:
    """(logprob, entropy, recorded logprob) of a row's trained tokens: the whole sequence by itself, one token at a time."""
    parts = [(trajectory.nodes[index], stop) for index, stop in zip(row.nodes, row.stops, strict=True)]
    tokens = [token for each, stop in parts for token in unpack_i4(each.tokens)[:stop]]
    recorded = [value for each, stop in parts for value in unpack_f4(each.logprobs)[:stop]]
    temperature = [each.sampling.temperature for each, stop in parts for _ in range(stop)]
    logits = model(torch.tensor([tokens]), torch.arange(len(tokens))[None])[0]
    found = []
    for begin, end in zip(row.train_from, row.train_to, strict=True):
        for at in range(begin, end):
            probabilities = torch.softmax(logits[at - 1] / temperature[at], -1)
            found.append((probabilities[tokens[at]].log(), torch.distributions.Categorical(probabilities).entropy(), recorded[at]))
    return found


def naive_step(model: Qwen2, optimizer: torch.optim.Optimizer, plan: Plan, trajectories: list[Trajectory], updates: int) -> int:
    """The recipe's formulas, written without batches. Returns the number of updates so far."""
    old = [[float(each[0].detach()) for each in naive_tokens(model, row, trajectories[row.place])] for row in plan.rows]
    for _ in range(plan.epochs):
        for mini_batch in plan.mini_batches:
            losses = []
            for index in [row for micro in mini_batch for row in plan.micro_batches[micro]]:
                row = plan.rows[index]
                for (logprob, entropy, recorded), before in zip(
                    naive_tokens(model, row, trajectories[row.place]), old[index], strict=True
                ):
                    ratio = torch.exp(logprob - before)
                    weight = min(torch.tensor(before - recorded).exp().item(), 2.0)
                    gain = torch.minimum(ratio * row.advantage, torch.clamp(ratio, 0.8, 1.28) * row.advantage)
                    losses.append(-weight * gain - 0.02 * entropy)
            optimizer.zero_grad()
            torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, (updates + 1) / 10)
            optimizer.step()
            updates += 1
    return updates


def test_three_steps_equal_the_formulas_written_naively() -> None:
    subject, model = small.learner(), initial(small.CONFIG, seed=5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, foreach=False)
    updates = 0
    for seed in (1, 2, 3):
        plan, trajectories = small.batch(seed)
        assert len(plan.micro_batches) > len(plan.mini_batches) == 2, "the case must split"
        apply(subject, plan, trajectories, LossSettings())
        updates = naive_step(model, optimizer, plan, trajectories, updates)
    expected = model.state_dict()
    furthest = max(float((tensor - expected[name]).abs().max()) for name, tensor in subject.weights().items())
    moved = max(float((tensor - expected[name]).abs().max()) for name, tensor in initial(small.CONFIG, seed=5).state_dict().items())
    assert subject.optimizer.updates == updates == 12
    assert moved > 0.05
    # Adam divides by the root of a squared gradient: where that is near 0, a last bit of it becomes 1e-5 of a weight.
    assert furthest < 1e-4


def test_what_a_step_says_of_itself() -> None:
    plan, trajectories = small.batch(1)
    applied = apply(small.learner(), plan, trajectories, LossSettings())
    assert applied.trained_tokens == sum(sum(each.mask) for trajectory in trajectories for each in trajectory.nodes)
    assert applied.lowest_version == 0
    assert applied.metrics.keys() >= {"loss", "entropy", "kl_old", "importance", "truncated", "clipped", "grad_norm", "learning_rate"}
    assert applied.metrics["learning_rate"] == pytest.approx(4e-3), "the fourth of ten updates of the ramp"


def test_the_same_bits_again_after_a_checkpoint_and_in_another_process(tmp_path: Path) -> None:
    straight, again, resumed = small.learner(), small.learner(), small.learner()
    small.train(straight, 1, 2)
    saved = checkpoint.save(tmp_path, straight, step=2, version=2, numerics=numerics_key())
    small.train(straight, 3, 5)
    small.train(again, 1, 5)
    checkpoint.load(saved, resumed)
    small.train(resumed, 3, 5)
    assert straight.digests() == again.digests() == resumed.digests() != small.learner().digests()
    elsewhere = in_another_process(tmp_path, saved.state.weights_sha256)
    assert elsewhere == {"straight": list(straight.digests()), "resumed": list(straight.digests())}


def in_another_process(folder: Path, weights_sha256: str) -> dict[str, list[str]]:
    """What `small` prints. One process for both questions: starting torch is most of its time."""
    command = [sys.executable, "-m", "tests.unit.trainer.small", str(folder), weights_sha256]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=110)
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


def test_a_mini_batch_without_a_trained_token_is_refused() -> None:
    plan, trajectories = small.batch(1)
    empty = [msgspec.structs.replace(row, train_from=[], train_to=[]) for row in plan.rows]
    with pytest.raises(CorruptRecord, match="trains no token"):
        apply(small.learner(), msgspec.structs.replace(plan, rows=empty), trajectories, LossSettings())


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    plan, trajectories = small.batch(1)
    rows = [msgspec.structs.replace(row, advantage=float("inf")) for row in plan.rows]
    subject = small.learner()
    before = subject.digests()
    with pytest.raises(SeamlessFlowError, match="gradient of update 1 has norm"):
        apply(subject, msgspec.structs.replace(plan, rows=rows), trajectories, LossSettings())
    assert subject.digests() == before


def test_settings_are_checked_when_they_are_made() -> None:
    assert LossSettings(settings={"cap": 5.0}).make() == Clipped(cap=5.0)
    with pytest.raises(UsageError, match="unknown"):
        LossSettings(name="nothing")


def test_a_learner_goes_back_to_the_beginning() -> None:
    subject, fresh = small.learner(), small.learner()
    small.train(subject, 1, 1)
    subject.restore(fresh.weights(), {}, 0)
    assert (subject.digests(), subject.optimizer.updates) == (fresh.digests(), 0)


def test_a_restored_learner_is_equal_and_shares_no_tensor() -> None:
    subject, again = small.learner(), Learner(initial(small.CONFIG, seed=6), OptimizerSettings())
    small.train(subject, 1, 1)
    again.restore(subject.weights(), subject.optimizer.moments(), subject.optimizer.updates)
    assert again.digests() == subject.digests()
    before = subject.digests()
    small.train(again, 2, 2)
    assert subject.digests() == before != again.digests()
