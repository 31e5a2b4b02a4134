"""The numerics key: all that decides the last bits of training, besides what the log holds (R7).

Equal keys promise equal weights; under another key `audit recompute` reports the largest difference instead.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

__all__ = ["numerics_key", "settle"]

_ENVIRONMENT = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG")
"""Variables that choose kernels. Thread variables are not here: the number of threads in force is."""


def settle(threads: int = 1, *, device: str = "cpu") -> None:
    """Make this process compute the same bits every time. Before the first tensor; once is enough.

    One thread by default: sums are split by the number of threads, and the demo shares two cores. On a CPU that is all: torch's
    deterministic mode changes no bit there, and switching it on imports its compiler, 8 seconds of CPU at every start.
    """
    torch.set_num_threads(threads)
    if device != "cpu":
        torch.use_deterministic_algorithms(True)


def numerics_key(*, dtype: torch.dtype = torch.float32, device: str = "cpu", world_size: int = 1) -> dict[str, str]:
    """What a Step records. Values are text, compared for equality and never parsed."""
    key = {
        "torch": str(torch.__version__),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "attention": "sdpa per segment",
        "dtype": str(dtype).removeprefix("torch."),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()).lower(),
        "mkl": str(torch.backends.mkl.is_available()).lower(),  # type: ignore[no-untyped-call]
        "onednn": str(torch.backends.mkldnn.enabled).lower(),
        "world_size": str(world_size),
    }
    return key | {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def _processor() -> str:
    """Architecture and model: math libraries choose kernels by both."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{platform.machine()} {models[0] if models else platform.processor()}".strip()
