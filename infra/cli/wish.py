"""An operator's wish: a Control record, and the wait until the grants show it.

Invariants: a wish that stands already is not written again; `carry_out` answers only after the log has shown what was wished.
"""

from __future__ import annotations

import sys

import anyio

from infra.cli.fleet import Fleet
from infra.cli.peek import FleetReader, now_ms, open_fleet
from schemas.errors import NoProgress, UsageError
from schemas.node import Control
from schemas.topics import NODES
from streams.log import Log

POLL_S = 1.0


async def carry_out(log: Log, control: Control, wait_s: float) -> str:
    """Write the wish unless it stands already, and wait until it holds; answers a line about what holds then.

    :raises UsageError: there is no such node.
    :raises NoProgress: it does not hold after `wait_s` seconds.
    """
    async with open_fleet(log) as reader:
        _require_node(reader.fleet, control.node)
        if not stands(reader.fleet, control):
            async with log.writer() as writer:
                await (await writer.send(NODES, 0, control))
        with anyio.move_on_after(wait_s):
            await _until_it_holds(reader, control)
            return outcome(reader.fleet, control)
        raise NoProgress(f"{lacking(reader.fleet, control)} after {wait_s:g} s{_cause(reader.fleet)}; the wish stands")


def stands(fleet: Fleet, control: Control) -> bool:
    """The log holds this wish."""
    if control.node:
        return (control.node in fleet.draining) == (control.command == "drain")
    return (fleet.paused is not None) == (control.command == "pause")


def lacking(fleet: Fleet, control: Control) -> str | None:
    """What keeps the wish from being fulfilled, as a sentence; None once it holds."""
    if not stands(fleet, control):
        return "the wish is not in the log"
    owned = len(fleet.owners())
    match control.command:
        case "pause":
            return f"{owned} of {fleet.partitions} partitions have an owner" if owned else None
        case "resume":
            return f"{fleet.partitions - owned} of {fleet.partitions} partitions have no owner" if owned < fleet.partitions else None
        case "drain":
            return _not_drained(fleet, control.node)
        case "undrain":
            return None if fleet.owned_by(control.node) or not _may_own(fleet, control.node) else f"{control.node} owns no partition"


def outcome(fleet: Fleet, control: Control) -> str:
    """One line about what holds now."""
    owners, node = fleet.owners(), control.node
    names = ", ".join(sorted(set(owners.values())))
    match control.command:
        case "pause":
            return f"paused: none of {fleet.partitions} partitions has an owner"
        case "resume":
            return f"resumed: {len(owners)} partitions are owned by {names}"
        case "drain":
            return f"drained: {node} owns nothing; {len(owners)} partitions are owned by {names or 'others'}"
        case "undrain":
            return f"undrained: {node} owns {len(fleet.owned_by(node))} partitions" + ("; everything is paused" if fleet.paused else "")


def _not_drained(fleet: Fleet, node: str) -> str | None:
    """To own nothing is not enough: the node is going to be stopped, so it must have let go, and others must have taken over."""
    if owned := fleet.owned_by(node):
        return f"{node} owns {len(owned)} partitions"
    held, free = fleet.nodes[node].status.partitions, fleet.partitions - len(fleet.owners())
    if held and fleet.life(node, now_ms()) == "alive":
        return f"{node} has not let go of {len(held)} partitions"
    return f"{free} partitions have no owner" if free and any(_may_own(fleet, other) for other in fleet.nodes) else None


def _may_own(fleet: Fleet, node: str) -> bool:
    """The scheduler can give it partitions."""
    status = fleet.nodes[node].status
    is_wanted = not fleet.paused and node not in fleet.draining
    return is_wanted and "rollout" in status.tags and status.state == "serving" and fleet.life(node, now_ms()) != "dead"


def _cause(fleet: Fleet) -> str:
    """The likely cause of a wish that is not fulfilled."""
    if fleet.scheduler_is_silent(now_ms()):
        return ": no scheduler is at work (`seamlessflow run scheduler`)"
    serving = [name for name, heard in fleet.nodes.items() if heard.status.state == "serving" and fleet.life(name, now_ms()) == "alive"]
    return "" if serving else ": no node serves"


def _require_node(fleet: Fleet, node: str) -> None:
    nodes = sorted(name for name, heard in fleet.nodes.items() if "rollout" in heard.status.tags)
    if node and node not in nodes:
        raise UsageError(f"there is no rollout node {node!r}; there are {', '.join(nodes) or 'none yet'}")


async def _until_it_holds(reader: FleetReader, control: Control) -> None:
    told = None
    while (lacks := lacking(reader.fleet, control)) is not None:
        if lacks != told and stands(reader.fleet, control):
            print(f"{lacks} …", file=sys.stderr, flush=True)
            told = lacks
        await reader.update(timeout_s=POLL_S)
