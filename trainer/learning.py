"""Torch behind the seams of `trainer.trainee`: the arithmetic of training, shared by the trainer and by those who recompute its work.

Invariant: what `Arithmetic` makes of its state and a plan depends on nothing but the settings in `trainer.recover.ARITHMETIC` and the
numerics key; so a trainer that comes back and an auditor come to the same bits (R7).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from models.qwen2 import Qwen2
from models.weights import fetch, remove_weights, require_fit
from schemas.errors import UsageError
from schemas.training import Plan, WeightFile, WeightVersion
from schemas.trajectory import Trajectory
from trainer import checkpoint
from trainer.initial import read_model
from trainer.learner import Learner, OptimizerSettings
from trainer.numerics import numerics_key, settle
from trainer.publish import publish
from trainer.retain import gone, removable
from trainer.settings import TrainerSettings
from trainer.trainee import Trained, Trainee
from trainer.update import LossSettings, apply

__all__ = ["Arithmetic", "TorchTrainee"]


class Arithmetic:
    """A learner that trains plans. `threads` counts torch's threads, and may be changed between two calls.

    :raises UsageError: a setting of loss or optimizer is wrong.
    """

    def __init__(self, model: Qwen2, settings: TrainerSettings) -> None:
        self.threads = settings.threads
        self.learner = Learner(model, _optimizer(settings))
        self._loss = LossSettings(name=settings.loss, settings=settings.loss_settings)

    def stand_at(self, version: WeightVersion) -> None:
        """Take the weights of a version, with an optimizer that has seen nothing.

        :raises EngineError: its files are missing, or are not what the log says.
        """
        weights = fetch(version)
        require_fit(weights, self.learner.model)
        self.learner.restore(weights, {}, 0)

    def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
        """All updates of one Step."""
        settle(self.threads)  # here, because the number of threads belongs to the thread that calls
        applied = apply(self.learner, plan, trajectories, self._loss)
        weights, optimizer = self.learner.digests()
        return Trained(weights_sha256=weights, optimizer_sha256=optimizer, numerics=numerics_key(), metrics=applied.metrics)


class TorchTrainee(Arithmetic, Trainee):
    """See `Trainee`: with the checkpoints and the published files of a trainer.

    :raises UsageError: a setting of loss or optimizer is wrong, or the model folder cannot be used.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        settle(settings.threads)
        model, self._chat = read_model(settings.model_dir)
        super().__init__(model, settings)
        self._settings = settings

    def begin(self, initial: WeightVersion | None) -> WeightVersion:
        """Stand at version 0."""
        if initial is None:
            return publish(self._settings.weights_dir, self.learner.model, self._chat, version=0, step=None)
        if (initial.tokenizer_sha256, initial.template_sha256) != (self._chat.tokenizer_sha256, self._chat.template_sha256):
            raise UsageError(f"{self._settings.model_dir} is not what this run began with: its tokenizer or template differs")
        self.stand_at(initial)
        return initial

    def restore(self, committed: Mapping[int, str]) -> int | None:
        """Stand at the newest committed checkpoint."""
        found = checkpoint.newest(self._settings.checkpoint_dir, committed)
        if found is None:
            return None
        checkpoint.load(found, self.learner)
        return found.state.step

    def publish(self, version: int, step: int) -> WeightVersion:
        """Write the weights as they are."""
        return publish(self._settings.weights_dir, self.learner.model, self._chat, version=version, step=step)

    def keep(self, step: int, version: int, committed: Mapping[int, str]) -> None:
        """Write a checkpoint, and remove old ones."""
        folder = self._settings.checkpoint_dir
        checkpoint.save(folder, self.learner, step=step, version=version, numerics=numerics_key())
        checkpoint.prune(folder, committed, keep=self._settings.checkpoints_kept)

    def prune(self, files: Mapping[int, Sequence[WeightFile]], files_from: int, committed: Mapping[int, str]) -> list[int]:
        """Remove published files that may go."""
        kept = {each.state.version for each in checkpoint.kept(self._settings.checkpoint_dir, committed)}
        versions = gone(files, files_from, kept)
        remove_weights(self._settings.weights_dir, removable(files, versions))
        return versions


def _optimizer(settings: TrainerSettings) -> OptimizerSettings:
    try:
        return OptimizerSettings(**settings.optimizer)
    except ValidationError as error:
        raise UsageError(f"trainer.optimizer: {error}") from error
