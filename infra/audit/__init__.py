"""The audit: a second, naive reading of the log that trusts nothing which the system computed.

It shares no fold, no codec and no client with the processes that it judges: bytes come through confluent-kafka, records through plain
msgpack. Where the two readings differ, one of them is wrong.

One part is different: whether weights are a function of the log (`recompute`) can only be said by the arithmetic that made them. It shares
that with the trainer, and its way through the log, and nothing of what it starts from and compares with.
"""
