"""A write to a connection that has just ended, on uvloop, where roles run."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from aiokafka import conn
from aiokafka.conn import create_conn
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from schemas.errors import SetupError
from streams.kafka.connection import guard_connections
from tests.chaos.mock import open_mock


async def write_after_the_end(bootstrap: str) -> None:
    """The transport is closed, and the connection's reader had no turn to notice."""
    host, _, port = bootstrap.rpartition(":")
    connection = await create_conn(host, int(port))
    connection._writer.transport.abort()
    await asyncio.sleep(0)
    try:
        await connection.send(MetadataRequest([]))
    finally:
        connection.close()


def test_a_connection_that_just_ended_is_an_error_of_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conn, "AIOKafkaConnection", conn.AIOKafkaConnection)
    guard_connections()
    try:
        with open_mock() as mock, pytest.raises(KafkaConnectionError, match="broken"):
            uvloop.run(write_after_the_end(mock.bootstrap))
    except SetupError as hidden:
        pytest.skip(str(hidden))
