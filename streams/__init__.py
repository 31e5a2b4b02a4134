"""Typed streams over Kafka: three ways to read (log, group, table), two ways to write (writer, cas), and the role runner."""
