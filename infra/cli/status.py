"""`status`: the cluster and what the log says of nodes, owners, training and lag. For people, or as JSON for programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from infra.cli.where import AS_SET, Where

if TYPE_CHECKING:
    from infra.cli.fleet import Fleet
    from infra.cli.overview import Overview
    from schemas.settings import Connection

SILENT = "none is at work: nothing moves, and nobody knows who lives"


def status(*, json: Annotated[bool, Parameter(negative="", help="One JSON object.")] = False, where: Where = AS_SET) -> None:
    """Show the cluster, and from the log: nodes, owners and roles with their reasons, training, lag, dead letters.

    Exit code 10: it does not answer.
    """
    import anyio
    import orjson

    from infra.broker.admin import Admin
    from infra.cli.overview import gather
    from infra.cli.run import open_log

    connection = where.connection()
    admin = Admin(connection.address())
    topics = admin.topic_names(connection.namespace)
    cluster = {
        "bootstrap": connection.address(), "brokers": admin.broker_count(), "local_nodes": list(_local_nodes(connection)),
        "namespace": connection.namespace, "topics": topics,
    }  # fmt: skip
    overview = None
    if connection.namespace + "sessions" in topics:

        async def look() -> Overview:
            async with open_log(connection.address(), connection.namespace, "status") as log:
                return await gather(log)

        overview = anyio.run(look)
    said = {**cluster, **(described(overview) if overview else {})}
    print(orjson.dumps(said, option=orjson.OPT_INDENT_2).decode() if json else "\n".join(lines(said)))


def described(overview: Overview) -> dict[str, Any]:
    """An overview as plain data."""
    fleet, training = overview.fleet, overview.training
    return {
        "partitions": fleet.partitions,
        "scheduler": _scheduler(fleet),
        "paused": fleet.paused and fleet.paused._asdict(),
        "draining": {node: wished._asdict() for node, wished in fleet.draining.items()},
        "nodes": [_node(fleet, name) for name in sorted(fleet.nodes)],
        "owners": list(_owners(fleet)),
        "roles": [
            {"node": name, "role": each.role.role, "asleep": each.role.asleep, "word": each.word, "reason": each.role.reason,
             "offset": each.offset, "since_ms": each.at_ms}
            for name, each in sorted(fleet.roles.items())
        ],
        "training": {name: getattr(training, name) for name in ("run", "step", "version", "in_flight", "reward")},
        "decided": {**training.decided._asdict(), "dropped": dict(training.decided.dropped)},
        "lag": [{**each._asdict(), "behind": each.behind} for each in overview.lags],
        "retention": [{**each._asdict(), "line": each.line()} for each in overview.margins],
        "dead_letters": overview.dead_letters,
    }


def lines(said: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    for node in said["local_nodes"]:
        yield f"kafka        node {node['node']}: port {node['port']}, " + (f"pid {node['pid']}" if node["pid"] else "not running")
    yield f"cluster      {said['bootstrap']}: {said['brokers']} brokers answer"
    yield f"topics       {said['namespace']}: {', '.join(each.removeprefix(said['namespace']) for each in said['topics']) or 'none'}"
    if "nodes" not in said:
        return
    yield f"scheduler    {_scheduler_line(said)}"
    yield from (f"node         {_node_line(node)}" for node in said["nodes"])
    yield from (f"owner        {_owner_line(owner)}" for owner in said["owners"])
    yield from (f"role         {role['node']}: {role['word']}: {role['reason']}" for role in said["roles"])
    training = said["training"]
    reward = "" if training["reward"] is None else f", reward {training['reward']:.3f}"
    run = f"run {training['run']}: " if training["run"] else ""
    yield f"training     {run}step {training['step']}, version {training['version']}, {training['in_flight']} groups in flight{reward}"
    yield from _decided_lines(said["decided"])
    yield from (f"lag          {each['role']}: {each['behind']} behind {each['end']} in {each['topic']}" for each in said["lag"])
    yield from (f"retention    {each['line']}" for each in said["retention"])
    yield f"dead letters {said['dead_letters']}" + (": `seamlessflow deadletter list`" if said["dead_letters"] else "")


def ranges(numbers: Iterable[int]) -> str:
    """0,1,2,5 as "0-2 5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _local_nodes(connection: Connection) -> Iterator[dict[str, int | None]]:
    from infra.broker.cluster import LocalKafka

    local = None if connection.bootstrap else LocalKafka(connection.run_dir).state
    for number, node in enumerate(local.nodes if local else (), 1):
        yield {"node": number, "port": node.ports.client, "pid": node.process.pid if node.process and node.is_running else None}


def _scheduler(fleet: Fleet) -> dict[str, Any]:
    from infra.cli.peek import now_ms

    name = fleet.tick.scheduler if fleet.tick else None
    return {"name": name, "last_tick_ms": fleet.tick_at_ms, "is_silent": fleet.scheduler_is_silent(now_ms())}


def _node(fleet: Fleet, name: str) -> dict[str, Any]:
    from infra.cli.peek import now_ms

    status, at_ms, _ = fleet.nodes[name]
    return {
        "node": name, "life": fleet.life(name, now_ms()), "state": status.state, "tags": status.tags, "version": status.version,
        "partitions": status.partitions, "running": status.running, "waiting": status.waiting, "tokens": status.tokens,
        "own_s": status.own_s, "first_token_s": status.first_token_s,
        "incarnation": status.incarnation, "detail": status.detail, "last_status_ms": at_ms, "age_s": round((now_ms() - at_ms) / 1000, 1),
    }  # fmt: skip


def _owners(fleet: Fleet) -> Iterator[dict[str, Any]]:
    """Partitions that were granted or revoked for one reason, together."""
    alike: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for partition, granted in sorted(fleet.grants.items()):
        alike[granted.grant.node, granted.grant.cause, granted.grant.reason].append(partition)
    never = sorted(set(range(fleet.partitions)) - set(fleet.grants))
    if never:
        alike["", "", "never granted"] = never
    for (node, cause, reason), partitions in alike.items():
        epochs = [fleet.grants[partition].epoch for partition in partitions if partition in fleet.grants]
        yield {"node": node or None, "partitions": partitions, "cause": cause, "reason": reason, "epoch": max(epochs, default=None)}


def _scheduler_line(said: dict[str, Any]) -> str:
    wishes = [f"PAUSED ({said['paused']['reason'] or 'no reason given'})"] if said["paused"] else []
    wishes += [f"draining {node} ({wished['reason'] or 'no reason given'})" for node, wished in said["draining"].items()]
    word = SILENT if said["scheduler"]["is_silent"] else f"{said['scheduler']['name']} at work"
    return "; ".join([word, *wishes])


def _decided_lines(decided: dict[str, Any]) -> Iterator[str]:
    """Loss by design is visible: one line, once something was dropped."""
    dropped = decided["dropped"]
    if dropped:
        reasons = ", ".join(f"{reason} {count}" for reason, count in dropped.items())
        yield (
            f"loss         in the last {decided['steps']} steps {sum(dropped.values())} sessions were dropped ({reasons}) and "
            f"{decided['trained']} trained; tokens and lengths: `seamlessflow audit loss`"
        )


def _node_line(node: dict[str, Any]) -> str:
    states = node["life"] if node["life"] == node["state"] else f"{node['life']}, {node['state']}"
    version = f"version {node['version']}" if node["version"] >= 0 else "no version yet (a trainer begins the run with version 0)"
    head = f"{node['node']}: {states}, {version}"
    work = f", partitions {ranges(node['partitions']) or 'none'}, {node['running']} running, {node['waiting']} waiting"
    work += f", took them in {node['own_s']:.1f} s" if node["own_s"] else ""
    work += f" and {node['first_token_s']:.1f} s to the first token" if node["first_token_s"] else ""
    detail = f", {node['detail']}" if node["detail"] else ""
    return f"{head}{work if 'rollout' in node['tags'] else ''}{detail}; heard {node['age_s']} s ago, incarnation {node['incarnation']}"


def _owner_line(owner: dict[str, Any]) -> str:
    cause = f" ({owner['cause']})" if owner["cause"] else ""
    return f"{owner['node'] or 'nobody'}: partitions {ranges(owner['partitions'])}{cause}: {owner['reason']}"
