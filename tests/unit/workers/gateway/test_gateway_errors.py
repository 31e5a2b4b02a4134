"""Whatever is wrong with an HTTP request, the answer is a 4xx in OpenAI's shape, and the gateway goes on."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import anyio
import pytest

from schemas.deadletter import DeadLetter
from schemas.errors import UnknownRecord
from schemas.topics import DEADLETTER, SESSIONS
from streams.blobs import Blobs
from streams.broker import Outgoing
from streams.log import Log
from streams.memory import MemoryBroker
from streams.service import Watch
from tests.unit.workers.gateway.scripted_owner import always, gateway, owned, settings_for
from tests.unit.workers.running import memory_log, records, until
from workers.gateway.service import role

pytestmark = pytest.mark.anyio

USER = b'{"messages": [{"role": "user", "content": "%s"}]}'
CHAT_PATH = "/s/{session}/v1/chat/completions"


async def answered(http: aiohttp.ClientSession, method: str, url: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    async with http.request(method, url, data=None if body is None else io.BytesIO(body)) as response:
        assert response.headers["content-type"].startswith("application/json")
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", CHAT_PATH, b"{", 400, "invalid_json"),
        ("POST", CHAT_PATH, b"\xff\xfe", 400, "invalid_json"),
        ("POST", CHAT_PATH, b"", 400, "invalid_json"),
        ("POST", CHAT_PATH, USER % b"HELLO", 400, "invalid_value"),
        ("POST", CHAT_PATH, USER % (b"a" * 3000), 400, "context_length_exceeded"),
        ("POST", CHAT_PATH, b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 2047}', 400, "context_length_exceeded"),
        ("POST", CHAT_PATH, b'{"messages": [{"role": "user", "content": "a"}], "top_p": 0.5}', 400, "unsupported_parameter"),
        ("POST", CHAT_PATH, b" " * (4 << 20) + b"{}", 413, "body_too_large"),
        ("POST", "/s/nonsense/v1/chat/completions", USER % b"a", 404, "session_not_found"),
        ("POST", "/s/0-99-abcdef/v1/chat/completions", USER % b"a", 404, "session_not_found"),
        ("POST", "/v1/chat/completions", USER % b"a", 400, "session_required"),
        ("GET", CHAT_PATH, None, 405, "invalid_request"),
        ("GET", "/nowhere", None, 404, "not_found"),
        ("POST", "/v1/sessions", b"{", 400, "invalid_json"),
        ("POST", "/v1/sessions", b'{"grop": 1}', 400, "invalid_value"),
        ("POST", "/v1/sessions", b'{"group": "a"}', 400, "invalid_value"),
        ("POST", "/v1/sessions", b'{"purpose": "play"}', 400, "invalid_value"),
        ("POST", "/v1/sessions", b'{"partition": 2}', 400, "invalid_value"),
        ("POST", "/v1/sessions", b'{"payload": {"a": "' + b"a" * (512 << 10) + b'"}}', 413, "body_too_large"),
        ("POST", "/v1/sessions/{session}/close", b'{"reward": "good"}', 400, "invalid_value"),
        ("GET", "/v1/sessions/0-99-abcdef", None, 404, "session_not_found"),
    ],
)
async def test_an_error_is_a_4xx_in_openais_shape(
    tmp_path: Path, method: str, path: str, body: bytes | None, status: int, code: str
) -> None:
    log = await memory_log()
    async with gateway(log, tmp_path) as base, aiohttp.ClientSession() as http:
        _, opened = await answered(http, "POST", f"{base}/v1/sessions")
        found, content = await answered(http, method, base + path.format(session=opened["id"]), body)
        assert (found, content["error"]["code"]) == (status, code)
        assert content["error"].keys() == {"message", "type", "param", "code"}
        assert (await answered(http, "GET", f"{base}/readyz"))[0] == 200


async def test_bytes_that_are_no_http_are_400(tmp_path: Path) -> None:
    log = await memory_log()
    async with gateway(log, tmp_path) as base:
        host, _, port = base.removeprefix("http://").partition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(b"\x00\x01 nonsense\r\n\r\n")
            assert (await stream.receive()).startswith(b"HTTP/1.1 400")


async def test_models_and_health(tmp_path: Path) -> None:
    log = await memory_log()
    async with gateway(log, tmp_path, model="mine") as base, aiohttp.ClientSession() as http:
        status, models = await answered(http, "GET", f"{base}/v1/models")
        assert (status, [model["id"] for model in models["data"]]) == (200, ["mine"])
        assert await answered(http, "GET", f"{base}/healthz") == (200, {"status": "ok"})
        assert await answered(http, "GET", f"{base}/readyz") == (200, {"ready": True, "partitions": 2, "claimed": 0, "calls": 0})


def put_raw(log: Log, value: bytes, kind: bytes) -> None:
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    broker.append(Outgoing(log.name(SESSIONS), 0, b"k", value, (("type", kind), ("schema", b"1.0"))))


async def test_corrupt_bytes_are_buried_and_the_gateway_goes_on(tmp_path: Path) -> None:
    log = await memory_log()
    async with gateway(log, tmp_path) as base, aiohttp.ClientSession() as http:
        put_raw(log, b"\xc1", b"Open")
        await until(lambda: records(log, DEADLETTER, DeadLetter), "the dead letter")
        assert (await answered(http, "POST", f"{base}/v1/sessions", b'{"partition": 0}'))[0] == 201


async def test_an_unknown_type_stops_the_gateway(tmp_path: Path) -> None:
    log = await memory_log()
    put_raw(log, b"\x80", b"Hologram")
    with anyio.fail_after(20), pytest.raises(ExceptionGroup) as caught:
        await role(settings_for(tmp_path))(log, Watch(), task_status=anyio.TASK_STATUS_IGNORED)
    assert caught.group_contains(UnknownRecord, match="Hologram")


async def test_a_blob_store_that_does_not_answer_is_503_for_the_large_prompt_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> NoReturn:
        raise ConnectionError("no store")

    monkeypatch.setattr("streams.blobstore.BlobStore.write", down)
    log = replace(await memory_log(), blobs=Blobs(f"memory://{tmp_path.name}", patience_s=0.05))
    async with owned(log, always("ab")), gateway(log, tmp_path, context_tokens=200_000) as base, aiohttp.ClientSession() as http:
        _, opened = await answered(http, "POST", f"{base}/v1/sessions")
        path = f"{base}/s/{opened['id']}/v1/chat/completions"
        large, small = (b'{"messages": [{"role": "user", "content": "%s"}]}' % (b"a" * count) for count in (140_000, 1))
        status, content = await answered(http, "POST", path, large)
        assert (status, content["error"]["code"]) == (503, "unavailable")
        assert "the prompt could not be stored" in content["error"]["message"]
        assert (await answered(http, "POST", path, small))[0] == 200


async def test_a_fault_of_the_gateway_itself_is_500_in_openais_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("workers.gateway.sessions.place", broken)
    log = await memory_log()
    async with gateway(log, tmp_path) as base, aiohttp.ClientSession() as http:
        status, content = await answered(http, "POST", f"{base}/v1/sessions")
    assert (status, content["error"]["code"], content["error"]["type"]) == (500, "internal_error", "server_error")
