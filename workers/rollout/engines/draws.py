"""The random numbers of a request: a pure function of (seed, index of the token). No torch, no state that could be lost.

Number i is word i mod 4 of the Philox4x64-10 block with counter i div 4 (Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", 2011), its upper 53 bits as a fraction in [0, 1). So a request draws the same numbers alone or in a batch, on any owner,
and after it was continued from its emitted tokens.
"""

from __future__ import annotations

from numpy.random import Philox

from workers.rollout.engines.base import Job

__all__ = ["Draws", "draws_of"]

_WORD = 2**64
_WORDS_PER_BLOCK = 4
_BLOCKS_PER_FILL = 8


class Draws:
    """Random access to one request's numbers, computed 32 at a time. `key` is Philox's: two words of 64 bits."""

    __slots__ = ("_first", "_key", "_numbers")

    def __init__(self, key: tuple[int, int]) -> None:
        self._key = key
        self._first = 0
        self._numbers: list[float] = []

    def at(self, index: int) -> float:
        """The number of the token with this index in its request, counted from 0."""
        place = index - self._first
        if not 0 <= place < len(self._numbers):
            self._fill(index // _WORDS_PER_BLOCK)
            place = index - self._first
        return self._numbers[place]

    def _fill(self, block: int) -> None:
        # numpy counts up before it computes a block, hence the counter before the one that is wanted.
        generator = Philox(key=self._key[0] + self._key[1] * _WORD, counter=(block - 1) % 2**256)
        words = generator.random_raw(_BLOCKS_PER_FILL * _WORDS_PER_BLOCK).tolist()
        self._numbers = [(word >> 11) * 2.0**-53 for word in words]
        self._first = block * _WORDS_PER_BLOCK


def draws_of(job: Job) -> Draws:
    """The numbers of a job: keyed by its seed, or, where it has none, by its partition and request, whatever the epoch."""
    if job.sampling.seed is not None:
        return Draws((job.sampling.seed % _WORD, 0))
    return Draws((job.id.request, job.id.partition + 1))
