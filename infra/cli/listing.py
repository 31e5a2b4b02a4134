"""`errors` and `config show`: what the operator may look up."""

from __future__ import annotations

from collections.abc import Iterator

from infra.cli.where import AS_SET, Where
from schemas.errors import SeamlessFlowError


def errors() -> None:
    """List the exit codes, what each means, and what to do. 0 is success, 130 means interrupted from the keyboard."""
    kinds = sorted(_tree(SeamlessFlowError), key=lambda kind: kind.exit_code)
    for kind in kinds:
        again = "  may be tried again" if kind.retriable else ""
        print(f"{kind.exit_code:3}  {kind.__name__:21} {(kind.__doc__ or '').splitlines()[0]} {kind.remedy}{again}".rstrip())


def show(role: str | None = None, /, *, where: Where = AS_SET) -> None:
    """Show each setting in force with its source: of the connection and, if named, of one role.

    Parameters
    ----------
    role
        A role, such as gateway; default: the connection alone.
    """
    from infra.cli.roles import entry, known_sections
    from schemas.settings import CONNECTION, load_settings, require_sections

    require_sections(where.file(), known_sections())
    loaded = [(CONNECTION, *where.explained())]
    rows = [(f"{section}.{name}", getattr(value, name), sources[name]) for section, value, sources in loaded for name in sources]
    if role is not None:
        settings, sources = load_settings(entry(role).settings(), role, file=where.file())
        rows += [(f"{role}.{name}", getattr(settings, name), sources[name]) for name in sources]
    for name, value, source in rows:
        print(f"{name:36} {value!s:28} {source}")


def _tree(kind: type[SeamlessFlowError]) -> Iterator[type[SeamlessFlowError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)
