"""What a visitor reads at the end: before and after, three answers, the audit, and what to try next."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from infra.demo.cast import Plan
from infra.demo.evaluations import Answered, Evaluations
from infra.demo.next_letter import answer
from models.chat import Chat, load_chat
from schemas.settings import Connection

SAMPLES = 3


def print_ending(
    console: Console, report: dict[str, Any], evaluations: Evaluations, plan: Plan, connection: Connection, *, own_kafka: bool
) -> None:
    """Print it all. `own_kafka`: the run folder's own broker, which commands find by themselves."""
    console.print(_samples(evaluations, load_chat(plan.model_dir)))
    console.print(
        f"held-out reward {_number(report['heldout_before'])} → {_number(report['heldout_after'])} in {report['steps']} steps, "
        f"{report['episodes']} episodes, {report['tokens']} tokens, {report['wall_s']} s",
        highlight=False,
    )
    console.print(
        f"lost requests {report['lost_requests']}, tokens trained twice {report['trained_twice']}, "
        f"requests resumed {report['resumed_requests']}, takeover {report['takeover_s']} s, "
        f"staleness at most {report['staleness_max']} of {report['staleness_bound']}",
        highlight=False,
    )
    console.print(f"the audit {'found nothing wrong' if report['audit_ok'] else 'FOUND VIOLATIONS: ' + '; '.join(report['violations'])}")
    if "recomputed_equal" in report:
        equal = "equal, bit for bit" if report["recomputed_equal"] else "NOT those of the log: see `audit recompute`"
        console.print(f"weights of {report['recomputed_versions']} versions made again by another process: {equal}", highlight=False)
    console.print(f"report: {plan.run_dir / 'report.json'}\n\nKafka and its data stay. Try next:")
    flags = f"--run-dir {plan.run_dir}" + ("" if own_kafka else f" --bootstrap {connection.address()}")
    flags += "" if connection.namespace == "seamlessflow." else f" --namespace {connection.namespace}"
    for command in ("status", "tail training -o -2 -e", "tail sessions -o -20 -e", "audit verify", *(["down"] if own_kafka else [])):
        console.print(f"  .venv/bin/seamlessflow {command} {flags}", highlight=False, soft_wrap=True)


def _samples(evaluations: Evaluations, chat: Chat) -> Table:
    versions = [version for version, _ in evaluations.curve()]
    table = Table("word", "right answer", "before", "after", title="held-out words")
    if len(versions) > 1:
        pairs = zip(evaluations.answers(versions[0]), evaluations.answers(versions[-1]), strict=False)
        for before, after in list(pairs)[:SAMPLES]:
            word = before.payload["word"]
            table.add_row(word, answer(word), _said(before, chat), _said(after, chat))
    return table


def _said(answered: Answered, chat: Chat) -> str:
    return f"{chat.decode(answered.tokens)} ({answered.reward:.1f})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
