"""`seamlessflow`: the table of commands, and the edge where an error becomes one line and an exit code.

Invariants: `--help` imports none of torch, transformers, confluent_kafka and pydantic; a SeamlessFlowError never shows a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from infra.simulate.formulas import FORMULAS
from schemas.errors import SeamlessFlowError, UsageError

app = App(
    name="seamlessflow",
    help="Reinforcement learning of language-model agents over Kafka: every step, span and weight version is a record.",
    help_format="plaintext",  # a Markdown reader costs a quarter of a second
    help_epilogue="`seamlessflow errors` lists exit codes and what to do.",
    version="0.1.0",
    exit_on_error=False,
    result_action="return_value",
)

COMMANDS = {
    "demo": ("infra.demo.command:demo", "Train a small model through Kafka, with faults, and audit the log."),
    "up": ("infra.cli.up:up", "Run the whole pipeline here until Ctrl-C, or start Kafka alone."),
    "down": ("infra.cli.local:down", "Stop what runs in the run folder: roles that were left behind, and Kafka; its data stays."),
    "status": ("infra.cli.status:status", "Show the cluster, nodes, who owns what and why, training, lag."),
    "pause": ("infra.cli.control:pause", "Take every partition from its owner; calls are held."),
    "resume": ("infra.cli.control:resume", "End a pause."),
    "drain": ("infra.cli.control:drain", "Move everything away from a node."),
    "undrain": ("infra.cli.control:undrain", "Let a drained node have partitions again."),
    "bench": ("infra.bench.command:bench", "Measure what the log costs on this machine: streams, calls, trajectories."),
    "simulate": ("infra.simulate.command:simulate", f"Compare scheduling policies on a workload, in virtual time.\n\n{FORMULAS}"),
    "fetch": ("infra.cli.local:fetch", "Fetch what a local Kafka needs into the user's cache."),
    "topics": ("infra.cli.topics:topics", "Compare the topics of the table with the cluster, or create them."),
    "tail": ("infra.cli.tail:tail", "Print the records of a topic as they come."),
    "run": ("infra.cli.run:run", "Run one role in this process."),
    "errors": ("infra.cli.listing:errors", "List exit codes, what each means, and what to do."),
}
"""Name, place and one line of each command; its module is imported when it is asked for."""

for _name, (_place, _help) in COMMANDS.items():
    app.command(_place, name=_name, help=_help)

config = App(name="config", help="Look at settings.")
config.command("infra.cli.listing:show", name="show")
app.command(config)

deadletter = App(name="deadletter", help="What could not be used: list, show, re-drive, discard.")
deadletter.command("infra.cli.deadletter:list_letters", name="list")
deadletter.command("infra.cli.deadletter:show", name="show")
deadletter.command("infra.cli.deadletter:redrive", name="redrive")
deadletter.command("infra.cli.deadletter:discard", name="discard")
app.command(deadletter)

blobs = App(name="blobs", help="Look after the store of large payloads.")
blobs.command("infra.blobs.command:show", name="list")
blobs.command("infra.blobs.command:collect_garbage", name="collect")
app.command(blobs)

audit = App(name="audit", help="Check the log against its rules.")
audit.command("infra.audit.command:verify", name="verify", help="Check every rule over the whole log; exit code 1 at a violation.")
audit.command("infra.audit.loss_command:loss", name="loss", help="Where sampled tokens went, by reason; and length bias.")
audit.command("infra.audit.recompute_command:recompute", name="recompute", help="Make the weights of all versions again, and compare.")
app.command(audit)


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: run a command and end the process with its exit code."""
    sys.exit(execute(arguments))


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run a command; answers the exit code. Errors are one line on standard error."""
    try:
        answer = app(arguments)
    except CycloptsError:
        return UsageError.exit_code  # the line was printed
    except SeamlessFlowError as error:
        print(f"seamlessflow: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains while it flushes
        return 0
    return answer if isinstance(answer, int) else 0


if __name__ == "__main__":
    main()
