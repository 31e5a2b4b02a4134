"""The trainee that is a torch model: a Learner, its checkpoints and its published files behind `trainer.trainee.Trainee`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from models.weights import fetch, require_fit
from schemas.errors import UsageError
from schemas.training import Plan, WeightVersion
from schemas.trajectory import Trajectory
from trainer import checkpoint
from trainer.initial import read_model
from trainer.learner import Learner, OptimizerSettings
from trainer.numerics import numerics_key, settle
from trainer.publish import publish
from trainer.settings import TrainerSettings
from trainer.trainee import Trained
from trainer.update import LossSettings, apply

__all__ = ["TorchTrainee"]


class TorchTrainee:
    """See `Trainee`. Made in the thread that will use it.

    :raises UsageError: a setting of loss or optimizer is wrong, or the model folder cannot be used.
    """

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        settle(settings.threads)
        self._loss = LossSettings(name=settings.loss, settings=settings.loss_settings)
        model, self._chat = read_model(settings.model_dir)
        self._learner = Learner(model, _optimizer(settings))

    def begin(self, initial: WeightVersion | None) -> WeightVersion:
        """Stand at version 0."""
        if initial is None:
            return publish(self._settings.weights_dir, self._learner.model, self._chat, version=0, step=None)
        if (initial.tokenizer_sha256, initial.template_sha256) != (self._chat.tokenizer_sha256, self._chat.template_sha256):
            raise UsageError(f"{self._settings.model_dir} is not what this run began with: its tokenizer or template differs")
        weights = fetch(initial)
        require_fit(weights, self._learner.model)
        self._learner.restore(weights, {}, 0)
        return initial

    def restore(self, committed: Mapping[int, str]) -> int | None:
        """Stand at the newest committed checkpoint."""
        found = checkpoint.newest(self._settings.checkpoint_dir, committed)
        if found is None:
            return None
        checkpoint.load(found, self._learner)
        return found.state.step

    def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
        """All updates of one Step."""
        applied = apply(self._learner, plan, trajectories, self._loss)
        weights, optimizer = self._learner.digests()
        return Trained(weights_sha256=weights, optimizer_sha256=optimizer, numerics=numerics_key(), metrics=applied.metrics)

    def publish(self, version: int, step: int) -> WeightVersion:
        """Write the weights as they are."""
        return publish(self._settings.weights_dir, self._learner.model, self._chat, version=version, step=step)

    def keep(self, step: int, version: int, committed: Mapping[int, str]) -> None:
        """Write a checkpoint, and remove old ones."""
        folder = self._settings.checkpoint_dir
        checkpoint.save(folder, self._learner, step=step, version=version, numerics=numerics_key())
        checkpoint.prune(folder, committed, keep=self._settings.checkpoints_kept)


def _optimizer(settings: TrainerSettings) -> OptimizerSettings:
    try:
        return OptimizerSettings(**settings.optimizer)
    except ValidationError as error:
        raise UsageError(f"trainer.optimizer: {error}") from error
