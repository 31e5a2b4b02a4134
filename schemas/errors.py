"""One tree of errors. Each class says whether trying again may help, with what code a process exits, and what the operator does.

    SeamlessFlowError                 1   see the message
    ├── UsageError                    2   correct the command, setting or file that is named
    ├── BrokerError                  10   look at the broker
    │   ├── BrokerUnavailable        10   start it, or correct the address (retriable)
    │   ├── OutcomeUnknown           10   the write may or may not stand: run the same write again (retriable)
    │   ├── RetentionPassed          11   records that a reader needs are gone: raise retention
    │   └── TopicMismatch            12   create or correct the topics
    ├── LogError                     20   a record cannot be used
    │   ├── CorruptRecord            20   goes to the dead letters
    │   ├── UnknownRecord            21   written by newer software: upgrade this process
    │   └── MissingBlob              22   bring the blob back
    ├── BlobStoreUnavailable         23   bring the store back (retriable)
    ├── Superseded                   30   another process does this work now: nothing to do
    ├── NoProgress                   40   see the cause; a supervised process is started again
    ├── EndedUnasked                 41   see its log; a supervised process is started again
    ├── EngineError                  50   look at the engine
    └── SetupError                   60   install or free what is named

A retry policy reads `retriable` and nothing else. tests/meta/test_project.py compares this drawing with the classes.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BlobStoreUnavailable",
    "BrokerError",
    "BrokerUnavailable",
    "CorruptRecord",
    "EndedUnasked",
    "EngineError",
    "LogError",
    "MissingBlob",
    "NoProgress",
    "OutcomeUnknown",
    "RetentionPassed",
    "SeamlessFlowError",
    "SetupError",
    "Superseded",
    "TopicMismatch",
    "UnknownRecord",
    "UsageError",
]


class SeamlessFlowError(Exception):
    """The root. `str()` is one line for the operator: what happened, then what to do."""

    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1
    remedy: ClassVar[str] = "see the message"

    def __str__(self) -> str:
        said = super().__str__()
        return f"{said} ({self.remedy})" if self.remedy and self.remedy != "see the message" else said


class UsageError(SeamlessFlowError):
    """A command, setting or file is wrong."""

    exit_code = 2
    remedy = ""


class BrokerError(SeamlessFlowError):
    """Kafka did not do what was asked."""

    exit_code = 10
    remedy = "look at the broker"


class BrokerUnavailable(BrokerError):
    """No answer from the broker within the deadline."""

    retriable = True
    remedy = "start it with `seamlessflow up --only kafka`, or correct SEAMLESSFLOW_BOOTSTRAP"


class OutcomeUnknown(BrokerError):
    """A write was sent and its answer never came: it may stand in the log."""

    retriable = True
    remedy = "the same write may be run again; readers ignore doubles"


class RetentionPassed(BrokerError):
    """A reader's position lies before the first record that is left."""

    exit_code = 11
    remedy = "raise the topic's retention; what was lost is reported"


class TopicMismatch(BrokerError):
    """A topic is missing or is not as the topic table says."""

    exit_code = 12
    remedy = "run `seamlessflow topics --create`"


class LogError(SeamlessFlowError):
    """A record cannot be used."""

    exit_code = 20
    remedy = "see `seamlessflow deadletter list`"


class CorruptRecord(LogError):
    """Bytes that are no record: a dead letter, and the reader goes on."""


class UnknownRecord(LogError):
    """A type or major that this software does not know. A reader of `sessions` stops: skipping would make folds disagree (R4)."""

    exit_code = 21
    remedy = "upgrade this process"


class MissingBlob(LogError):
    """A record points to a payload that is not in the blob store."""

    exit_code = 22
    remedy = "bring the blob back, or let every process reach the store that `blobs` names; then start again"


class BlobStoreUnavailable(SeamlessFlowError):
    """The blob store does not answer, or takes nothing."""

    retriable = True
    exit_code = 23
    remedy = "bring the store back, or correct `blobs` in [connection]"


class Superseded(SeamlessFlowError):
    """The log shows that another process took over what this one did."""

    exit_code = 30
    remedy = "nothing to do: the other one goes on"


class NoProgress(SeamlessFlowError):
    """Something was waited for and did not come within its deadline (R10)."""

    exit_code = 40
    remedy = "a supervised process is started again"


class EndedUnasked(SeamlessFlowError):
    """A role ended that works until it is stopped, and nobody had stopped it."""

    exit_code = 41
    remedy = "its log may say why; a supervised process is started again"


class EngineError(SeamlessFlowError):
    """The inference engine failed, or its weights are not what the log says."""

    exit_code = 50
    remedy = "look at the engine's log"


class SetupError(SeamlessFlowError):
    """The machine lacks something: Java, Kafka's jars, a free port, disk."""

    exit_code = 60
    remedy = ""
