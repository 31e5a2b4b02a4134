"""The double of Kafka: the whole contract of `streams.broker` in one process, for tests and simulations.

It has no threads, no randomness and no clock of its own (`clock` gives the timestamps), so a run is a function of the order in which tasks
take their turns. Held to the same suite as `streams.kafka`; what it models on purpose:
- a transaction ends in a marker that takes an offset in every partition it wrote; `committed` readers stop before the first open one;
- beginning a transaction aborts and fences the older one of its id;
- a change of a group's members is a new generation: every partition starts again at its committed offset, as with eager rebalances.

Faults are the caller's choice, never chance. While `MemoryBroker.held` is set, sends wait in `MemoryBroker.outboxes`: land them in any
order that keeps a producer's order per partition, let them land after their producer died, or lose them as a suffix. `commit_faults`
decides about commits, `truncate` is retention. Not modelled: compaction, bounds on memory.
"""

from streams.memory.broker import CommitFault, MemoryBroker, MemoryMember, MemoryTransaction
from streams.memory.outbox import Outbox

__all__ = ["CommitFault", "MemoryBroker", "MemoryMember", "MemoryTransaction", "Outbox"]
