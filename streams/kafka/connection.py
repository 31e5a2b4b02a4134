"""A connection of aiokafka that says of a closed transport what it says of a broken one.

uvloop refuses a write to a transport that the other side has just closed with RuntimeError, which aiokafka takes for a defect of its own:
its background tasks die of it, and so would the role.
"""

from __future__ import annotations

import asyncio

from aiokafka import conn
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError


class GuardedConnection(AIOKafkaConnection):  # type: ignore[misc]
    """Between the end of a connection and the turn of the loop in which its reader notices, `send` fails as it does afterwards."""

    def send(self, request: object, expect_response: bool = True) -> asyncio.Future[object]:
        """See aiokafka.

        :raises KafkaConnectionError: there is no connection any more.
        """
        try:
            return super().send(request, expect_response)  # type: ignore[no-any-return]
        except RuntimeError as error:
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"Connection at {self.host}:{self.port} broken: {error}") from error


def guard_connections() -> None:
    """Let aiokafka make its connections so, in this process. Doing it twice changes nothing."""
    conn.AIOKafkaConnection = GuardedConnection
