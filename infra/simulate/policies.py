"""Who trains when, how far generation runs ahead, and what a new version or a lost node means for running requests.

| policy | roles | ahead | a new version | after a loss |
| --- | --- | --- | --- | --- |
| `colocated_sync` | all nodes in turn | no batch | between batches | the request again |
| `static_N` | N nodes train, the others generate | no batch | between batches | the request again |
| `one_off_N` | the same | one batch, whole | between batches | the request again |
| `async_N` | the same | the bound | each engine when its requests have ended | the request again |
| `async_partial_N` | the same | the bound | at once, in the middle of requests | from the last token in the log |
| `tags_ungated` | `decide`, as if switches, moves and updates cost nothing | the bound | at once | from the last token |
| `tags` | `decide` | the bound | at once | from the last token |

Without `_N` the workload's `train_nodes` train. All go through the same `decide` for partitions; a node with one tag has no role.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.simulate.workload import Workload
from schemas.errors import UsageError

__all__ = ["Policy", "policy"]


@dataclass(frozen=True)
class Policy:
    """`train_nodes` only train; with 0 all nodes are tagged both ways. `ahead`: batches in flight besides the one that is trained.

    `is_fluid`: groups start one by one, not by batches. `is_partial`: versions load in the middle of requests. `resumes`: a request whose
    node is lost goes on. `is_measured`: roles are chosen by what was measured; else all nodes train in turn. `is_gated`: switches cost.
    """

    name: str
    train_nodes: int = 0
    ahead: int = 0
    is_fluid: bool = True
    is_partial: bool = False
    resumes: bool = False
    is_measured: bool = False
    is_gated: bool = True


def policy(name: str, workload: Workload) -> Policy:
    """The policy of this name.

    :raises UsageError: there is none, or its split leaves nobody to generate.
    """
    bound = workload.training.staleness
    if name == "colocated_sync":
        return Policy(name)
    if name in ("tags", "tags_ungated"):
        return Policy(name, ahead=bound, is_partial=True, resumes=True, is_measured=True, is_gated=name == "tags")
    kind, _, number = name.rpartition("_") if name[-1:].isdigit() else (name, "", "")
    train_nodes = int(number) if number else workload.training.train_nodes
    if not 0 < train_nodes < workload.cluster.nodes:
        raise UsageError(f"policy {name}: {train_nodes} of {workload.cluster.nodes} nodes cannot train: some of both kinds are needed")
    match kind:
        case "static":
            return Policy(name, train_nodes)
        case "one_off":
            return Policy(name, train_nodes, ahead=1, is_fluid=False)
        case "async":
            return Policy(name, train_nodes, ahead=bound)
        case "async_partial":
            return Policy(name, train_nodes, ahead=bound, is_partial=True, resumes=True)
    raise UsageError(
        f"there is no policy {name!r}: there are colocated_sync, static, one_off, async, async_partial (with _N where N nodes train), "
        "tags_ungated, tags"
    )
