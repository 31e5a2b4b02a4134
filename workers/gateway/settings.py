"""Settings of a gateway."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class GatewaySettings(BaseModel):
    """One HTTP server for agents. Any number of gateways serve the same sessions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("gateway-0", description="Name of this gateway; it stands in the Opens that it writes.")
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    address_file: Path | None = Field(None, description="File that gets the base address (http://host:port) once the gateway listens.")
    public_url: str = Field("", description="Base address that agents are told, without a slash at the end; empty: as they called.")
    model_dir: Path = Field(Path("runs/default/model"), description="Model folder: the tokenizer and the chat template.")
    model: str = Field("policy", description="Name of the model in answers and in /v1/models; agents may ask for it by any name.")
    snapshots: str = Field("runs/default/snapshots", description="Folder or URL (fsspec) that all roles share; empty: no snapshots.")
    context_tokens: int = Field(2048, ge=2, description="Longest sequence: prompt and answer.")
    default_max_tokens: int = Field(512, ge=1, description="Budget of a call that names none, bounded by the context.")
    hold_s: float = Field(600.0, gt=0, description="How long a call is held without a new token before it is answered with 503.")
    answer_s: float = Field(30.0, gt=0, description="How long opening or closing a session may take before it is answered with 503.")
    keepalive_s: float = Field(15.0, gt=0, description="Silence on a stream after which a comment keeps the connection open.")
    max_calls: int = Field(1024, ge=1, description="Calls in flight; beyond, 429.")
    max_calls_bytes: int = Field(64 << 20, ge=1, description="Bytes of the bodies of the calls in flight; beyond, 429.")
    max_body_bytes: int = Field(4 << 20, ge=1, description="Largest body of one call; beyond, 413.")
    ended_sessions: int = Field(100_000, ge=1, description="How many ended sessions are remembered, to be answered with 410.")
    drain_s: float = Field(3.0, ge=0, description="How long a gateway that is asked to stop lets the calls in flight end.")
