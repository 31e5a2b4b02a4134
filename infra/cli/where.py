"""The flags that every command shares: which cluster, which names, which run folder, which blob store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from schemas.settings import Connection


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """Flags above file and environment; what is left out comes from there."""

    bootstrap: Annotated[str | None, Parameter(help="Kafka's address, host:port[,…]; default: the run folder's local Kafka.")] = None
    namespace: Annotated[str | None, Parameter(help="Prefix of all names; default seamlessflow.")] = None
    run_dir: Annotated[Path | None, Parameter(help="Folder of the run; default runs/default.")] = None
    blobs: Annotated[str | None, Parameter(help="Store of large payloads: a folder or URL; default: blobs in the run folder.")] = None
    config: Annotated[Path | None, Parameter(help="Settings file; default seamlessflow.toml.")] = None

    def connection(self) -> Connection:
        """The connection in force.

        :raises UsageError: a setting is wrong.
        """
        return self.explained()[0]

    def explained(self) -> tuple[Connection, dict[str, str]]:
        """The connection in force, and the source of each of its values."""
        from schemas.settings import CONNECTION, Connection, load_settings

        return load_settings(Connection, CONNECTION, self.flags(), file=self.file())

    def flags(self) -> dict[str, object]:
        """What was given on the command line."""
        return {"bootstrap": self.bootstrap, "namespace": self.namespace, "run_dir": self.run_dir, "blobs": self.blobs}

    def file(self) -> Path:
        """The settings file. One that is named must be there; the default may be missing.

        :raises UsageError: it is not.
        """
        from schemas.errors import UsageError
        from schemas.settings import FILE

        if self.config is not None and not self.config.exists():
            raise UsageError(f"the settings file {self.config} does not exist")
        return self.config or FILE


AS_SET = Where()
"""No flag given: everything from file and environment."""
