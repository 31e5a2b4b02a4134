"""The owner of partitions: reads requests, generates, writes spans."""
