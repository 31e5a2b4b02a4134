"""The file map of ARCHITECTURE.md: each module with the first line of its docstring. Run it to write the map anew."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "streams", "models", "workers", "trainer", "infra")
BEGIN, END = "<!-- file map: python -m tests.meta.file_map -->", "<!-- end of file map -->"


def first_line(file: Path) -> str:
    """What a module says of itself."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n", 1)[0]


def file_map() -> str:
    """One table per package, packages in the order of the data flow."""
    return "\n".join(_table(package) for package in PACKAGES)


def written() -> str:
    """The map as it stands in ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return text.partition(BEGIN + "\n")[2].partition(END)[0]


def _table(package: str) -> str:
    files = sorted(path for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py")
    rows = [f"| `{path.relative_to(ROOT).as_posix()}` | {first_line(path)} |" for path in files]
    head = [f"### {package}", "", first_line(ROOT / package / "__init__.py"), "", "| file | what it is |", "| --- | --- |"]
    return "\n".join([*head, *rows, ""])


def main() -> None:
    """Write the map into ARCHITECTURE.md."""
    file = ROOT / "ARCHITECTURE.md"
    text = file.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    file.write_text(before + BEGIN + "\n" + file_map() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
