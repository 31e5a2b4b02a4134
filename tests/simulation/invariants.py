"""What must hold of every schedule's log, and of what its agents were shown. Each check says in words what it found.

P1 every training session that ended is in exactly one Step or Drops; P2 no token is trained twice; P3 every trained token carries the
version that sampled it; P4 the weights of every Step are those that its predecessors and its own plan make; P5 no agent was shown a token
that did not stand in the log at that moment.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from schemas.arrays import unpack_i4
from schemas.training import Drops, Place, Step, WeightVersion
from schemas.trajectory import Node, Trajectory
from tests.simulation.network import Shown
from tests.simulation.reading import Key, Reading, RequestSeen, SessionSeen
from tests.simulation.trainee import INITIAL, after
from workers.rollout.engines.paced import TOKENS_PER_VERSION

TRAINED_ENDS = ("stop", "length")


def violations_of(reading: Reading, shown: Sequence[Shown], staleness_bound: int) -> list[str]:
    """All that does not hold."""
    return [
        *_sessions(reading), *_claims(reading), *_trajectories(reading), *_tasks(reading), *_once(reading),
        *_tokens(reading, staleness_bound), *_weights(reading), *_answers(reading, shown),
    ]  # fmt: skip


def _sessions(reading: Reading) -> Iterator[str]:
    """P3 and R2: token i of a request that version v sampled is v * 10,000 + i, and no owner ever contradicts what stands."""
    if reading.dead_letters:
        yield f"{reading.dead_letters} dead letters"
    for partition, seen in reading.sessions.items():
        yield from (f"partition {partition}: {oddity}" for oddity in seen.oddities)
        for session in seen.sessions.values():
            if session.was_running:
                yield f"the Close at {partition}-{session.closed_at} says idle, and a request ran"
            for offset, request in session.requests.items():
                said = [version * TOKENS_PER_VERSION + index for index, version in enumerate(request.versions)]
                if request.tokens != said:
                    yield f"request {partition}-{offset} has tokens {request.tokens} of versions {request.versions}"
                if len(request.tokens) > request.record.sampling.max_tokens:
                    yield f"request {partition}-{offset} has {len(request.tokens)} tokens, more than were asked for"


def _claims(reading: Reading) -> Iterator[str]:
    """A Claim's epoch is the Grant that its owner got."""
    for partition, seen in reading.sessions.items():
        for claim in seen.claims:
            grant = reading.grants.get(claim.epoch)
            if grant is None or (grant.partition, grant.incarnation) != (partition, claim.incarnation):
                yield f"partition {partition}: {claim.node} claims under epoch {claim.epoch}, which is {grant}"


def _trajectories(reading: Reading) -> Iterator[str]:
    """One Trajectory that counts for each session that a Close ended, and it says what the records say."""
    counted = reading.counted()
    for key, (offset, trajectory) in counted.items():
        session = reading.sessions[key[0]].sessions.get(key[1])
        if session is None or session.closed_at != trajectory.close:
            yield f"the Trajectory at {key[0]}-{offset} is of session {key[1]} and Close {trajectory.close}, which do not stand"
        else:
            yield from _nodes(key, session, trajectory)
    for partition, seen in reading.sessions.items():
        for number, session in seen.sessions.items():
            if session.closed_at is not None and (partition, number) not in counted:
                yield f"session {partition}-{number} ended and has no Trajectory that counts"


def _nodes(key: Key, session: SessionSeen, trajectory: Trajectory) -> Iterator[str]:
    if [node.request for node in trajectory.nodes] != list(session.requests):
        yield f"the Trajectory of session {key} has nodes of {[node.request for node in trajectory.nodes]}, not of {list(session.requests)}"
        return
    for node, request in zip(trajectory.nodes, session.requests.values(), strict=True):
        if _of_node(node) != _of_request(request):
            yield f"the Trajectory of session {key} says {_of_node(node)} of request {node.request}, the records say {_of_request(request)}"


def _of_node(node: Node) -> tuple[Any, ...]:
    prompt = node.prompt
    return node.end, unpack_i4(node.tokens)[prompt:], unpack_i4(node.versions)[prompt:], list(node.mask)[prompt:], sum(node.mask[:prompt])


def _of_request(request: RequestSeen) -> tuple[Any, ...]:
    return request.end, request.tokens, request.versions, [int(request.end in TRAINED_ENDS)] * len(request.tokens), 0


def _tasks(reading: Reading) -> Iterator[str]:
    """Tasks are numbered without a gap, and a group is decided once."""
    numbers = sorted(task.record.number for task in reading.tasks)
    if numbers != list(range(len(numbers))):
        yield f"tasks are numbered {numbers}"
    twice = [group for group, count in Counter(reading.groups_decided()).items() if count > 1]
    if twice:
        yield f"groups {twice} are decided twice"


def _once(reading: Reading) -> Iterator[str]:
    """P1, and a member is trained once."""
    counted = {(key[0], offset): trajectory for key, (offset, trajectory) in reading.counted().items()}
    decisions: Counter[Key] = Counter()
    members: Counter[tuple[int, int | None]] = Counter()
    for entry in reading.training:
        if not isinstance(entry.record, Step | Drops):
            continue
        for place in _places(entry.record):
            decisions[place.partition, place.session] += 1
            trajectory = counted.get((place.partition, place.offset))
            if trajectory is None or trajectory.session != place.session or trajectory.purpose != "train":
                yield f"the record at {entry.offset} decides {place}, where no training session stands"
        if isinstance(entry.record, Step):
            trained = [counted.get((place.partition, place.offset)) for place in entry.record.plan.places]
            members.update((each.group, each.member) for each in trained if each is not None and each.group is not None)
    yield from (f"session {key} is decided {count} times" for key, count in decisions.items() if count > 1)
    yield from (f"member {member} is trained {count} times" for member, count in members.items() if count > 1)
    for (partition, _), trajectory in counted.items():
        if trajectory.purpose == "train" and not decisions[partition, trajectory.session]:
            yield f"session {partition}-{trajectory.session} is in no Step or Drops"


def _places(record: Step | Drops) -> list[Place]:
    trained = record.plan.places if isinstance(record, Step) else []
    return [*trained, *(dropped.place for dropped in record.drops)]


def _tokens(reading: Reading, staleness_bound: int) -> Iterator[str]:
    """P2, and no trained token is older than the bound or newer than the step."""
    at = _at_places(reading)
    times: Counter[tuple[int, int, int, int]] = Counter()
    for step in _steps(reading):
        for row in step.plan.rows:
            place = step.plan.places[row.place]
            sequence = _sequence(at[place.partition, place.offset], row.nodes, row.stops)
            for begin, end in zip(row.train_from, row.train_to, strict=True):
                for node, index, version, mask in sequence[begin:end]:
                    times[place.partition, place.session, node, index] += 1
                    if not mask or not step.version - staleness_bound <= version <= step.version:
                        yield f"step {step.step} from version {step.version} trains a token of version {version}, mask {mask}"
    twice = [key for key, count in times.items() if count > 1]
    if twice:
        yield f"{len(twice)} tokens are trained twice: {twice[:3]}"


def _sequence(trajectory: Trajectory, nodes: list[int], stops: list[int]) -> list[tuple[int, int, int, int]]:
    """(node, index in it, version, mask) of each token of a path."""
    found: list[tuple[int, int, int, int]] = []
    for node, stop in zip(nodes, stops, strict=True):
        said = trajectory.nodes[node]
        versions = unpack_i4(said.versions)
        found += [(node, index, versions[index], said.mask[index]) for index in range(stop)]
    return found


def _weights(reading: Reading) -> Iterator[str]:
    """P4: steps are numbered from 1, and their digests recomputed from the log; versions go up by one and have those of their steps."""
    at, weights, newest = _at_places(reading), INITIAL, -1
    for number, step in enumerate(_steps(reading), start=1):
        weights = after(weights, step.plan, [at[place.partition, place.offset] for place in step.plan.places])
        if (step.step, step.weights_sha256) != (number, weights):
            yield f"step {step.step} where {number} is expected, or its weights are not those of its plan"
    digests = {0: INITIAL} | {step.step: step.weights_sha256 for step in _steps(reading)}
    for entry in reading.training:
        if isinstance(entry.record, WeightVersion):
            newest += 1
            if entry.record.version != newest or entry.record.weights_sha256 != digests.get(entry.record.step or 0):
                yield f"version {entry.record.version} of step {entry.record.step} where {newest} is expected, or with other weights"
        elif isinstance(entry.record, Step) and entry.record.version != newest:
            yield f"step {entry.record.step} starts from version {entry.record.version}, the newest is {newest}"


def _steps(reading: Reading) -> Iterator[Step]:
    return (entry.record for entry in reading.training if isinstance(entry.record, Step))


def _at_places(reading: Reading) -> defaultdict[Key, Trajectory]:
    empty = Trajectory(session=-1, close=-1)
    found = {(partition, entry.offset): entry.record for partition, entries in reading.trajectories.items() for entry in entries}
    return defaultdict(lambda: empty, found)


def _answers(reading: Reading, shown: Sequence[Shown]) -> Iterator[str]:
    """P5: what an agent was shown was accepted before that moment, in its order."""
    so_far: defaultdict[int, str] = defaultdict(str)
    for each in shown:
        for said in _documents(each.body):
            if "choices" not in said:
                continue
            for choice in said["choices"]:
                text = (choice.get("message") or choice["delta"]).get("content") or ""
                so_far[each.exchange] += text
            yield from _answer(reading, said["id"], [int(token) for token in so_far[each.exchange].split()], each.ends)


def _answer(reading: Reading, name: str, tokens: list[int], ends: dict[int, int]) -> Iterator[str]:
    partition, number = map(int, name.split("-")[1:])
    requests = [session.requests[number] for session in reading.sessions[partition].sessions.values() if number in session.requests]
    if not requests:
        yield f"an agent was answered as request {partition}-{number}, which does not stand in the log"
        return
    stood = max((count for offset, count in requests[0].grown if offset < ends[partition]), default=0)
    if tokens != requests[0].tokens[: len(tokens)] or len(tokens) > stood:
        yield f"an agent was shown {tokens} of request {partition}-{number}, of which {requests[0].tokens[:stood]} stood in the log"


_EVENT = re.compile(rb"^data: (\{.*\})$", re.MULTILINE)


def _documents(body: bytes) -> list[dict[str, Any]]:
    """The JSON objects of a whole answer, or of a part of a stream."""
    return [orjson.loads(text) for text in (_EVENT.findall(body) if body.startswith((b"data:", b":")) else [body] if body else [])]
