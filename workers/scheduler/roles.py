"""Which of the nodes tagged both ways train, and the order in which one role is handed over for the other. Pure.

The order: a Role `train`, `asleep`, and the revokes of its partitions (no new work) · the node aborts, writes its partial spans, lets
go, and its engine sleeps · its status says so · a Role `train` for all of the gang together · the step. Back: `rollout`, `asleep` (no
further step) · the running step ends · its status says so · `rollout` · it wakes, loads the newest version, serves, is granted partitions.

Invariants:
- between `rollout` and `train` stands a sleep that the node acknowledged: no step runs beside an engine that is awake;
- a gang is changed only where nobody is on the way, so a node switches at most twice a step;
- a node that sleeps, and waits for nobody, gets its next role in the same round; one that does not do as it was told holds others up for
  ACK_TICKS only;
- each change carries its reason, with the figures that decided it.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas.grant import Role
from workers.scheduler.crew import Crew
from workers.scheduler.period import Arrangement, best, standing
from workers.scheduler.training import Training
from workers.scheduler.view import View

__all__ = ["ACK_TICKS", "decide_roles"]

ACK_TICKS = 60
"""Nobody is waited for longer than this: a step begins without a node that did not fall asleep."""


def decide_roles(view: View) -> list[Role]:
    """The Roles to be written now. None while paused, where nothing is known of training, or where no node alternates."""
    if view.training is None or view.is_paused:
        return []
    crew = Crew(view)
    if not crew.nodes:
        return []
    changes = [*_woken(crew), *_gang(crew), *_drained(crew)]
    if changes or _is_on_the_way(crew) or _is_unsure(crew):
        return changes
    return _rearranged(crew, view.training)


def _woken(crew: Crew) -> Iterable[Role]:
    for name, held in crew.asleep.items():
        if held.role.role == "rollout" and crew.sleeps(name) and not crew.is_drained(name):
            yield Role(node=name, role="rollout", reason=held.role.reason)


def _gang(crew: Crew) -> list[Role]:
    """All that sleep towards a step, together, once nobody is waited for."""
    coming = {name: held for name, held in crew.asleep.items() if held.role.role == "train" and not crew.is_drained(name)}
    if any(not crew.sleeps(name) and held.ticks < ACK_TICKS for name, held in coming.items()):
        return []
    return [Role(node=name, role="train", reason=held.role.reason) for name, held in coming.items() if crew.sleeps(name)]


def _drained(crew: Crew) -> list[Role]:
    leaving = [name for name in crew.nodes if crew.is_drained(name) and crew.role(name) == "train"]
    return [Role(node=name, role="rollout", asleep=True, reason=f"{name} is to be drained") for name in leaving]


def _is_on_the_way(crew: Crew) -> bool:
    """Somebody changes its role: who does what next is decided when all have arrived, or kept the others waiting for too long."""
    moving = {name: held for name, held in crew.asleep.items() if not crew.is_drained(name)} | crew.waking
    return any(held.ticks < ACK_TICKS for held in moving.values())


def _is_unsure(crew: Crew) -> bool:
    """A node may live or not: who trains is not decided on the strength of what may be its last word."""
    return any(not node.is_heard for node in crew.living.values())


def _rearranged(crew: Crew, training: Training) -> list[Role]:
    if not training.is_ready and (training.is_stepping or not crew.trainers):
        return []
    order = _in_order(crew)
    wanted, reason = _wanted(crew, training, order)
    if wanted is None:
        return []
    trainers, chosen = set(crew.trainers), set(order[:wanted])
    taken = [Role(node=name, role="train", asleep=True, reason=reason) for name in order if name in chosen - trainers]
    returned = [Role(node=name, role="rollout", asleep=True, reason=reason) for name in order if name in trainers - chosen]
    return [*taken, *returned]


def _in_order(crew: Crew) -> list[str]:
    """Those that train first, then the fastest, then those with the least to be computed again."""
    trainers, nodes = set(crew.trainers), crew.nodes
    return sorted(
        [*crew.trainers, *crew.generators],
        key=lambda name: (name not in trainers, -nodes[name].capacity, nodes[name].context_tokens, name),
    )


def _wanted(crew: Crew, training: Training, order: list[str]) -> tuple[int | None, str]:
    """How many of `order` are to train now, and why. None: as it is."""
    if not training.step_node_s or not training.batch_tokens:
        wanted = len(order) if training.is_ready else 0
        return wanted, "nothing was measured yet: all train and return"
    cluster, trainers = crew.cluster(order), len(crew.trainers)
    chosen = best(cluster, training)
    if chosen is None:
        return None, ""
    if trainers or cluster.train:
        now = standing(cluster, training, trainers)
        if now.period_s * (1.0 - training.margin) <= chosen.period_s and not _are_too_few(trainers, training, order):
            return None, ""
        return _of(chosen, training, trainers), f"{chosen}; as it was: {now.period_s:.0f} s"
    return _of(chosen, training, trainers), f"{chosen}; {_otherwise(chosen, best(cluster, training, not chosen.stays))}"


def _are_too_few(trainers: int, training: Training, order: list[str]) -> bool:
    """As after a death: those that are left train alone until the nodes that a step needs are there again."""
    return 0 < trainers < min(training.least_nodes, len(order))


def _of(chosen: Arrangement, training: Training, trainers: int) -> int:
    """Nodes are taken only for a batch that waits. Those that are to return between steps do so when none does."""
    if training.is_ready:
        return chosen.trainers
    return min(chosen.trainers, trainers) if chosen.stays else 0


def _otherwise(chosen: Arrangement, other: Arrangement | None) -> str:
    kind = "returned" if chosen.stays else "stayed"
    return f"{other.period_s:.0f} s if they {kind}" if other is not None else "there is no other way"
