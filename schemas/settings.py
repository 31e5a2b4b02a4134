"""Settings: one frozen typed model per process, merged from four layers; every value knows where it came from.

defaults < TOML file (`seamlessflow.toml`: one table per role, `[connection]` for what all share) < environment < flags.
Environment: `SEAMLESSFLOW_BOOTSTRAP` for `[connection]` fields, `SEAMLESSFLOW_GATEWAY_PORT` for a role's.

Invariants: an unknown key in any layer is an error that names it and what there is; a layer that says nothing about a key leaves it to the
layer below; a model is frozen, and reads nothing by itself.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

from schemas.errors import UsageError

FILE = Path("seamlessflow.toml")
CONNECTION = "connection"
PREFIX = "SEAMLESSFLOW_"
LOCAL_STATE = Path("kafka/state.json")
"""Where a local Kafka writes its address, below the run folder."""


class Connection(BaseModel):
    """What every process shares: which cluster, which names, which run folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap: str | None = Field(None, description="Kafka's address, host:port[,host:port]; default: the local Kafka of the run folder")
    namespace: str = Field("seamlessflow.", description="prefix of all topic, group and transactional names")
    session_partitions: int = Field(64, ge=1, le=10_000, description="partitions of sessions, trajectories and scores, when created")
    audit_retention_days: float = Field(7.0, gt=0, description="how long sessions, trajectories and scores are kept, when created")
    run_dir: Path = Field(Path("runs/default"), description="folder of the run: local Kafka, weights, checkpoints, reports")
    blobs: str | None = Field(
        None, description="store of payloads over 512 KiB: a folder, or a URL such as s3://bucket/prefix; default: RUN/blobs"
    )

    def blob_root(self) -> str:
        """Where this namespace's blobs are: in the given store, else below the run folder. Every process must reach it by this name."""
        return f"{(self.blobs or str(self.run_dir / 'blobs')).rstrip('/')}/{self.namespace.strip('.') or 'blobs'}"

    def address(self) -> str:
        """The cluster's address: the given one, else that of the run folder's local Kafka.

        :raises UsageError: neither is there.
        """
        if self.bootstrap:
            return self.bootstrap
        state = self.run_dir / LOCAL_STATE
        try:
            return str(json.loads(state.read_text(encoding="utf-8"))["bootstrap"])
        except FileNotFoundError:
            raise UsageError(f"no Kafka: set SEAMLESSFLOW_BOOTSTRAP, or run `seamlessflow up --only kafka` ({state} is missing)") from None
        except (ValueError, KeyError, TypeError) as failure:
            raise UsageError(f"{state} is not the state of a local Kafka: remove it, or set SEAMLESSFLOW_BOOTSTRAP") from failure


Model = TypeVar("Model", bound=BaseModel)
"""A frozen pydantic model that forbids unknown keys."""


class Loaded(NamedTuple):
    """A settings model's values by name, with the source of each: `default`, the file, an environment variable, or `flag`."""

    values: dict[str, Any]
    sources: dict[str, str]


def load_settings(
    model: type[Model],
    section: str,
    flags: Mapping[str, Any] | None = None,
    *,
    file: Path = FILE,
    environment: Mapping[str, str] | None = None,
) -> tuple[Model, dict[str, str]]:
    """A model's instance from all four layers, and the source of each of its fields.

    `section` is the file's table and, upper-cased, the environment's middle part. Flags that are None are not given.

    :raises UsageError: an unknown key, or a value that does not fit; names the key and its source.
    """
    variables = os.environ if environment is None else environment
    layers = (_from_file(model, section, file), _from_environment(model, section, variables), _from_flags(model, flags or {}))
    values: dict[str, Any] = {}
    sources = dict.fromkeys(model.model_fields, "default")
    for layer in layers:
        values |= layer.values
        sources |= layer.sources
    try:
        return model(**values), sources
    except ValidationError as failure:
        raise UsageError(_explain(failure, section, sources)) from failure


def read_toml(file: Path) -> dict[str, dict[str, Any]]:
    """The file's tables; none where the file does not exist.

    :raises UsageError: it is not TOML, or has a key outside a table.
    """
    try:
        with file.open("rb") as handle:
            tables = tomllib.load(handle)
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as failure:
        raise UsageError(f"{file} cannot be read: {failure}") from failure
    loose = [key for key, value in tables.items() if not isinstance(value, dict)]
    if loose:
        raise UsageError(f"{file}: {', '.join(loose)} must stand in a table, such as [{CONNECTION}]")
    return tables


def require_sections(file: Path, known: Collection[str]) -> None:
    """Check that every table of the file belongs to somebody.

    :raises UsageError: one does not.
    """
    unknown = sorted(set(read_toml(file)) - set(known))
    if unknown:
        raise UsageError(f"{file}: unknown table {', '.join(unknown)}; there are {', '.join(known)}")


def variable(section: str, field: str) -> str:
    """The environment variable of a field."""
    return _prefix(section) + field.upper()


def _prefix(section: str) -> str:
    return PREFIX if section == CONNECTION else f"{PREFIX}{section.upper()}_"


def _from_file(model: type[BaseModel], section: str, file: Path) -> Loaded:
    table = read_toml(file).get(section, {})
    _require_known(model, table, f"{file} [{section}]")
    return Loaded(table, dict.fromkeys(table, str(file)))


def _from_environment(model: type[BaseModel], section: str, environment: Mapping[str, str]) -> Loaded:
    prefix = _prefix(section)
    if section != CONNECTION:  # its prefix begins every other section's names, too
        given = [name.removeprefix(prefix).split("__")[0].lower() for name in environment if name.startswith(prefix)]
        _require_known(model, given, f"environment {prefix}…")
    try:
        values = _EnvironmentLayer(model, prefix, environment)()
    except SettingsError as failure:
        raise UsageError(f"environment {prefix}…: {failure}: lists and tables are written as JSON") from failure
    return Loaded(values, {name: variable(section, name) for name in values})


def _from_flags(model: type[BaseModel], flags: Mapping[str, Any]) -> Loaded:
    given = {name: value for name, value in flags.items() if value is not None}
    _require_known(model, given, "flags")
    return Loaded({name: _from_text(model, name, value) for name, value in given.items()}, dict.fromkeys(given, "flag"))


def _from_text(model: type[BaseModel], name: str, value: Any) -> Any:
    """Lists and tables are written as JSON where a flag has only text."""
    if not isinstance(value, str) or value[:1] not in ("{", "[") or model.model_fields[name].annotation is str:
        return value
    try:
        return json.loads(value)
    except ValueError as failure:
        raise UsageError(f"flag {name}: {failure}: lists and tables are written as JSON") from failure


class _EnvironmentLayer(EnvSettingsSource):
    """pydantic-settings' reading of the environment (JSON for lists and tables), on a mapping that is handed in."""

    def __init__(self, model: type[BaseModel], prefix: str, environment: Mapping[str, str]) -> None:
        self._environment = environment
        described = cast("type[BaseSettings]", model)  # the source asks for its fields only
        super().__init__(described, case_sensitive=False, env_prefix=prefix, env_nested_delimiter="__")

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environment.items()}


def _require_known(model: type[BaseModel], names: Iterable[str], place: str) -> None:
    unknown = sorted(set(names) - set(model.model_fields))
    if unknown:
        raise UsageError(f"{place}: unknown key {', '.join(unknown)}; there are {', '.join(model.model_fields)}")


def _explain(failure: ValidationError, section: str, sources: Mapping[str, str]) -> str:
    lines = []
    for error in failure.errors():
        path = ".".join(str(part) for part in error["loc"])
        source = sources.get(str(error["loc"][0]), "default") if error["loc"] else "default"
        lines.append(f"{section}.{path} (from {source}): {error['msg']}, not {error['input']!r}")
    return "; ".join(lines)
