"""Where snapshots are kept: files by fsspec, in a folder or a bucket, and one announcement a partition in Kafka.

The announcement is a committed offset, as a Position is: the offset up to which the snapshot folds, with the file's digest, size and name
as its metadata, under the group of its readers and `.snapshots`. It needs no topic of its own, and the newest one is found in one question.

Invariants:
- a snapshot is announced after its file is complete; what is read is used only if size, digest, form and place are those announced;
- nothing here ends a role: a store that is away, slow or full costs time only, and is reported. Readers begin at their Position then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

import anyio
import fsspec
import structlog

from schemas.errors import BrokerError, CorruptRecord
from schemas.topics import SESSIONS
from streams.log import Log
from workers.snapshot import Backlog, Snapshot, digest, encode, read

__all__ = ["SnapshotKeeper", "SnapshotStore"]

ANSWER_S = 20.0
"""Longest wait for the store. A fold from the Position takes over then."""

KEPT_FILES = 2
"""By partition: the announced one, and the one before it, which a reader may have been told of."""

_METADATA = re.compile(r"^sha256=([0-9a-f]{64}) bytes=(\d+) file=([^ ;]+);$")

logger = structlog.get_logger()


class _Announcement(NamedTuple):
    """`offset`: the snapshot folds everything below. `file` is a name in the partition's folder."""

    offset: int
    sha256: str
    size_bytes: int
    file: str

    def metadata(self) -> str:
        return f"sha256={self.sha256} bytes={self.size_bytes} file={self.file};"

    @classmethod
    def parse(cls, offset: int, metadata: str) -> Self | None:
        match = _METADATA.match(metadata)
        return None if match is None else cls(offset, match[1], int(match[2]), match[3])


@dataclass(frozen=True, slots=True)
class SnapshotStore:
    """The snapshots of one kind of reader, `group`: owners' and assemblers' folds end sessions at different moments.

    `url` is a folder or any URL that fsspec knows; empty: nothing is kept and nothing is found.
    """

    log: Log
    url: str
    group: str

    async def keep(self, snapshot: Snapshot) -> int | None:
        """Write, announce, and remove what it replaces; answers its size in bytes, None where that did not work (it was reported)."""
        content = encode(snapshot)
        sha256 = digest(content)
        said = _Announcement(snapshot.next, sha256, len(content), f"{snapshot.next:020d}-{sha256[:12]}.snapshot")
        place = self.log.place(SESSIONS, snapshot.partition)
        try:
            with anyio.fail_after(ANSWER_S):
                await anyio.to_thread.run_sync(_write, self._folder(snapshot.partition), said.file, content, abandon_on_cancel=True)
                await self.log.broker.commit(self._announcements(), {place: (said.offset, said.metadata())})
        except Exception as error:  # each store raises its own client's errors, and none is worth a role: a snapshot is never needed
            logger.warning("a snapshot could not be kept: takeovers read more", partition=snapshot.partition, error=repr(error))
            return None
        logger.info("snapshot kept", partition=snapshot.partition, offset=said.offset, size_bytes=said.size_bytes)
        return said.size_bytes

    async def find(self, partitions: Iterable[int]) -> dict[int, Snapshot]:
        """The announced snapshots of these partitions, verified; those that cannot be had are absent (and reported)."""
        places = {self.log.place(SESSIONS, partition): partition for partition in partitions}
        if not self.url or not places:
            return {}
        found: dict[int, Snapshot] = {}

        async def fetch(partition: int, said: _Announcement) -> None:
            snapshot = await self._fetch(partition, said)
            if snapshot is not None:
                found[partition] = snapshot

        try:
            committed = await self.log.broker.committed(self._announcements(), list(places))
        except BrokerError as error:
            logger.warning("snapshots could not be asked for: the log is read from the Positions", error=str(error))
            return {}
        async with anyio.create_task_group() as tasks:
            for place, kept in committed.items():
                said = _Announcement.parse(*kept)
                if said is not None:
                    tasks.start_soon(fetch, places[place], said)
        return found

    async def _fetch(self, partition: int, said: _Announcement) -> Snapshot | None:
        try:
            with anyio.fail_after(ANSWER_S):
                path = f"{self._folder(partition)}/{said.file}"
                content = await anyio.to_thread.run_sync(_content, path, abandon_on_cancel=True)
            return _verified(content, said, self.log.name(SESSIONS), partition)
        except Exception as error:  # as above: the Position serves
            logger.warning("a snapshot cannot be used: the log is read from the Position", partition=partition, error=repr(error))
            return None

    def _announcements(self) -> str:
        return self.log.group(f"{self.group}.snapshots")

    def _folder(self, partition: int) -> str:
        return f"{self.url.rstrip('/')}/{self.log.name(SESSIONS)}/{self.group}/{partition}"


class SnapshotKeeper:
    """Keeps snapshots beside its role's own work: one at a time, so that no more than one is held in memory."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._taken: tuple[Snapshot, Backlog] | None = None
        self._woken = anyio.Event()

    @property
    def is_free(self) -> bool:
        """It may take one now."""
        return bool(self._store.url) and self._taken is None

    def take(self, snapshot: Snapshot, backlog: Backlog) -> None:
        """Keep this one; `backlog` is told what it weighs."""
        backlog.taken()
        self._taken = snapshot, backlog
        self._woken.set()

    async def run(self) -> None:
        """Keep what is taken, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken = anyio.Event()
            if self._taken is not None:
                snapshot, backlog = self._taken
                backlog.weighs(await self._store.keep(snapshot) or 0)
                self._taken = None


def _verified(content: bytes, said: _Announcement, topic: str, partition: int) -> Snapshot:
    if (len(content), digest(content)) != (said.size_bytes, said.sha256):
        raise CorruptRecord(f"{said.file} has {len(content)} bytes and another digest than the {said.size_bytes} that were announced")
    snapshot = read(content, topic, partition)
    if snapshot.next != said.offset:
        raise CorruptRecord(f"{said.file} folds up to {snapshot.next}, {said.offset} was announced")
    return snapshot


def _write(folder: str, name: str, content: bytes) -> None:
    """No rename: a torn file is told by its digest, and an announcement comes after this returns.

    What is named above the new file is of another log, under the same name once: in one log offsets grow. (Or a slower owner removes a
    younger one's file: that partition is read from its Position until the next snapshot.)
    """
    store, path = fsspec.url_to_fs(folder)
    store.makedirs(path, exist_ok=True)
    store.pipe_file(f"{path}/{name}", content)
    stored = {each.rpartition("/")[2]: each for each in store.ls(path, detail=False) if each.endswith(".snapshot")}
    older = sorted(each for each in stored if each <= name)
    for each in stored.keys() - set(older[-KEPT_FILES:]):
        store.rm_file(stored[each])


def _content(path: str) -> bytes:
    with fsspec.open(path, "rb") as file:
        content: bytes = file.read()
        return content
