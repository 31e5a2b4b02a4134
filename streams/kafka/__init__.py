"""Apache Kafka behind the contract of `streams.broker`, and the only place that imports aiokafka.

aiokafka carries the records (`producer`, `transaction`, `reader`, `group`), librdkafka's admin client all that is not a stream (`admin`).
The traps of aiokafka are handled here, once, so that nobody above meets them:
- no call waits past a deadline, whatever the broker does; a client that does not end within one is dropped, with its tasks and sockets;
- clients close in a shielded scope: a cancelled role still leaves its group and flushes;
- after one failed batch a producer sends nothing more: what follows a hole must not land;
- offsets move by explicit commits only, and a lost position is an error, never a jump.
"""

from streams.kafka.broker import KafkaBroker

__all__ = ["KafkaBroker"]
