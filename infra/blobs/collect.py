"""Which blobs no record refers to any more, and their removal.

Invariants:
- a blob to which any retained record of any topic refers, or the original of any retained dead letter, is kept; records of open and aborted
  transactions count, too;
- a blob younger than the grace time is kept: its writer may not have sent the record yet. Names are never written again after their hour
  (`streams.blobstore`), so nothing that is removed can come to be referred to;
- nothing is removed before the whole log was read, or if a topic is missing, or if a reference cannot be understood.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from schemas.deadletter import DeadLetter
from schemas.errors import BrokerUnavailable, CorruptRecord, LogError, RetentionPassed, TopicMismatch
from schemas.topics import DEADLETTER, TOPICS, Topic
from streams.blobs import has_reference, reference_in
from streams.blobstore import Stored, name_of
from streams.broker import Message, Place, Reader
from streams.codec import decode
from streams.log import Log

__all__ = ["GRACE_S", "Holders", "collect", "garbage", "holders"]

GRACE_S = 24 * 3600.0
"""Longer than any process hesitates, or is frozen, between a blob and its record."""
READ_S = 5.0
SILENT_READS = 6
"""So many reads without a message, before the end of a topic, are too many."""
ORDER = ([DEADLETTER], [topic for topic in TOPICS.values() if topic is not DEADLETTER], [DEADLETTER])
"""A dead letter may be written while its record expires, and a record be driven again while its dead letter does: hence twice."""

Holders = dict[str, Place]
"""By name of a blob: where a message stands that refers to it."""
Progress = Callable[[str, int], None]
"""Told what is read, and how many messages of it were."""


def garbage(stored: Sequence[Stored], held: Mapping[str, object], now_s: float, grace_s: float) -> list[Stored]:
    """What may go."""
    return [blob for blob in stored if blob.name not in held and blob.written_before_s + grace_s <= now_s]


async def collect(log: Log, now_s: float, grace_s: float, progress: Progress, *, dry_run: bool = False) -> list[Stored]:
    """Remove what may go; answers it. Running it again, or beside running roles, does no harm.

    :raises TopicMismatch: a topic is missing.
    :raises UnknownRecord: newer software wrote a reference.
    :raises BlobStoreUnavailable: the store does not answer.
    """
    old = garbage(await log.blobs.find(), {}, now_s, grace_s)
    if not old:
        return []
    found = garbage(old, await holders(log, progress), now_s, grace_s)
    for count, blob in enumerate([] if dry_run else found, 1):
        await log.blobs.remove(blob)
        progress("blobs", count)
    return found


async def holders(log: Log, progress: Progress) -> Holders:
    """Read the whole log for references.

    :raises TopicMismatch: a topic is missing.
    :raises UnknownRecord: newer software wrote a reference.
    """
    held: Holders = {}
    for topics in ORDER:
        await _read_topics(log, topics, held, progress)
    return held


async def _read_topics(log: Log, topics: Sequence[Topic], held: Holders, progress: Progress) -> None:
    by_name = {log.name(topic): topic for topic in topics}
    places = [place for topic in topics for place in await _places(log, topic)]
    starts, ends = await log.broker.starts(places), await log.broker.ends(places)
    filled = {place: start for place, start in starts.items() if start < ends[place]}
    count, silent = 0, 0
    async with log.broker.reader(filled) as reader:
        while left := [place for place in filled if reader.position(place) < ends[place]]:
            messages = await _read(log, reader, left)
            silent = 0 if messages else silent + 1
            if silent == SILENT_READS:
                raise BrokerUnavailable(f"the end of {left[0].topic} did not come within {SILENT_READS * READ_S:.0f} s")
            for message in messages:
                await _note(log, by_name[message.topic], message, held)
            count += len(messages)
            progress("the log" if len(topics) > 1 else topics[0].name, count)


async def _note(log: Log, topic: Topic, message: Message, held: Holders) -> None:
    for name in await _names(log, topic, message):
        held.setdefault(name, Place(topic.name, message.partition))


async def _places(log: Log, topic: Topic) -> list[Place]:
    places = await log.places(topic)
    if not places:
        raise TopicMismatch(f"{log.name(topic)} does not exist: nothing is removed while what refers to blobs is not known")
    return places


async def _read(log: Log, reader: Reader, places: Sequence[Place]) -> list[Message]:
    """The next messages; where retention passed the reader meanwhile, it goes on with what is left."""
    try:
        return await reader.read(timeout_s=READ_S)
    except RetentionPassed:
        starts = await log.broker.starts(places)
        reader.add({place: max(start, reader.position(place)) for place, start in starts.items()})
        return []


async def _names(log: Log, topic: Topic, message: Message) -> list[str]:
    """The blobs that a message refers to: in place of its value, and as a dead letter of one that does."""
    original = await _original(log, message) if topic is DEADLETTER else None
    return [*_own_name(message), *(_own_name(original) if original is not None else ())]


async def _original(log: Log, message: Message) -> Message | None:
    """What a dead letter is about; None where it cannot be read: nobody can drive that again."""
    with suppress(LogError):
        letter = decode(DEADLETTER, await log.blobs.check_out(message)).record
        if isinstance(letter, DeadLetter):
            headers = tuple(letter.original_headers.items())
            return Message(letter.topic, letter.partition, letter.offset, 0, None, letter.original_value, headers)
    return None


def _own_name(message: Message) -> Iterator[str]:
    """Bytes that are no reference hold nothing: nobody can follow them."""
    if has_reference(message):
        with suppress(CorruptRecord):
            yield name_of(reference_in(message).uri)
