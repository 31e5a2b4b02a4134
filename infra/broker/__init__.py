"""A real Apache Kafka on loopback: what it needs (`java`, `jars`), how it is set (`properties`), and its life (`cluster`)."""
