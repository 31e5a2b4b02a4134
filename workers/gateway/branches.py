"""The conversation tree of one session: which recorded request shares the longest prefix with a prompt. Pure.

A radix tree over tokens: a path from the root is a token sequence that some request has (its prompt and what was accepted for it), and
each sequence is one `Point`. A conversation that only grows is a single run, so a turn costs what it adds, not what it has.

Invariants: `base_at(walk(root, prompt))` is the longest common prefix of the prompt with any request taken in; the base that it names
reaches at least that far, and is the request that added the last shared token; a point means the same tokens for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from schemas.arrays import WIDTH_BYTES
from workers.ledger import RequestState, SessionState


@dataclass(slots=True, eq=False)
class Run:
    """Tokens without a branch among them. `start` is how many bytes precede them; `request` has a sequence that reaches their end."""

    parent: Run | None
    start: int
    tokens: bytearray
    request: RequestState | None
    children: dict[bytes, Run]

    @property
    def end(self) -> int:
        """How many bytes the path to the end of this run has."""
        return self.start + len(self.tokens)


class Point(NamedTuple):
    """The first `size_bytes` bytes of tokens on the path to the end of `run`."""

    run: Run
    size_bytes: int


class Branches:
    """The tree. `take` it up to date before asking."""

    def __init__(self) -> None:
        self._root = Run(None, 0, bytearray(), None, {})
        self._prompts: dict[int, Point] = {}
        self._ends: dict[int, Point] = {}
        self._by_size: dict[int, list[RequestState]] = {}
        self._growing: dict[int, RequestState] = {}
        self._newest = -1

    @property
    def root(self) -> Point:
        """The empty sequence."""
        return Point(self._root, 0)

    def take(self, session: SessionState) -> None:
        """Take in what the fold has gained since the last time."""
        for request in list(self._growing.values()):
            self._grow(request)
        unseen = []
        for offset in reversed(session.requests):
            if offset <= self._newest:
                break
            unseen.append(session.requests[offset])
        for request in reversed(unseen):
            self._add(request)

    def walk(self, point: Point, tokens: bytes) -> tuple[Point, int]:
        """Follow `tokens` (int32) from a point as far as the tree goes; answers where that is, and how many bytes were followed."""
        run, at = _settle(point)
        done = 0
        while done < len(tokens):
            if at == run.end:
                child = run.children.get(tokens[done : done + WIDTH_BYTES])
                if child is None:
                    break
                run = child
            shared = _shared(run.tokens, at - run.start, tokens, done)
            at, done = at + shared, done + shared
            if at < run.end:
                break
        return Point(run, at), done

    def base_at(self, point: Point) -> tuple[RequestState | None, int]:
        """The request to build upon, and how many tokens of its sequence lead to this point."""
        run, at = _settle(point)
        request, count = run.request, at // WIDTH_BYTES
        if count == 0 or request is None:
            return None, 0
        while request.base is not None and count <= request.record.base_length:
            request = request.base
        return request, count

    def prompted_at(self, point: Point) -> list[RequestState]:
        """The requests whose prompt is the sequence of this point, oldest first."""
        point = _settle(point)
        return [request for request in self._by_size.get(point.size_bytes, ()) if _settle(self._prompts[request.offset]) == point]

    def end_of(self, request: RequestState) -> Point:
        """The whole sequence of a request, as far as it was taken in."""
        return self._ends[request.offset]

    def before_prompt_end(self, request: RequestState, tokens: int) -> Point:
        """The prompt of a request without its last `tokens` tokens."""
        run, size_bytes = self._prompts[request.offset]
        return Point(run, size_bytes - tokens * WIDTH_BYTES)

    def knows(self, request: RequestState) -> bool:
        """Whether this request was taken in."""
        return request.offset in self._ends

    def _add(self, request: RequestState) -> None:
        self._newest = request.offset
        if not request.is_rooted:
            return
        start = self.root if request.base is None else Point(self._ends[request.base.offset].run, request.record.base_length * WIDTH_BYTES)
        prompt = self._extend(start, request.record.tokens, request)
        self._prompts[request.offset] = self._ends[request.offset] = prompt
        self._by_size.setdefault(prompt.size_bytes, []).append(request)
        self._grow(request)

    def _grow(self, request: RequestState) -> None:
        end = self._ends[request.offset]
        taken = end.size_bytes - self._prompts[request.offset].size_bytes
        self._ends[request.offset] = self._extend(end, bytes(request.tokens[taken:]), request)
        if request.end is None:
            self._growing[request.offset] = request
        else:
            self._growing.pop(request.offset, None)

    def _extend(self, point: Point, tokens: bytes, request: RequestState) -> Point:
        """Make sure that the tree holds `tokens` after a point."""
        (run, at), done = self.walk(point, tokens)
        rest = tokens[done:]
        if not rest:
            return Point(run, at)
        if at < run.end:
            run = _split(run, at)
        if run.children or run.parent is None:
            child = Run(run, at, bytearray(rest), request, {})
            run.children[rest[:WIDTH_BYTES]] = child
            run = child
        else:
            run.tokens += rest
            run.request = request
        return Point(run, at + len(rest))


def _settle(point: Point) -> Point:
    """The same point, named by the run that holds its last token: runs are split after a point was named."""
    run = point.run
    while run.parent is not None and point.size_bytes <= run.start:
        run = run.parent
    return Point(run, point.size_bytes)


def _split(run: Run, at: int) -> Run:
    """Cut a run in two; answers the upper part. The lower part stays the same object, so points beyond the cut stand."""
    assert run.parent is not None
    cut = at - run.start
    lower_key = bytes(run.tokens[cut : cut + WIDTH_BYTES])
    upper = Run(run.parent, run.start, run.tokens[:cut], run.request, {lower_key: run})
    run.parent.children[bytes(upper.tokens[:WIDTH_BYTES])] = upper
    run.parent, run.start, run.tokens = upper, at, run.tokens[cut:]
    return upper


def _shared(run: bytearray, begin: int, tokens: bytes, done: int) -> int:
    """How many bytes `run[begin:]` and `tokens[done:]` share from their starts, in whole tokens."""
    size = min(len(run) - begin, len(tokens) - done)
    if run[begin : begin + size] == tokens[done : done + size]:
        return size
    low, high = 0, size // WIDTH_BYTES
    while low < high:  # the first `low` tokens are equal, the first `high` are not, or may not be
        middle = (low + high + 1) // 2
        span = middle * WIDTH_BYTES
        if run[begin : begin + span] == tokens[done : done + span]:
            low = middle
        else:
            high = middle - 1
    return low * WIDTH_BYTES
