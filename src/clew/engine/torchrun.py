"""What torchrun says about this process; known before PyTorch is imported."""

import os


def count_processes() -> int:
    """The number that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def is_first_process() -> bool:
    """Whether this is the process that writes; known before the processes are connected."""
    return count_processes() == 1 or os.environ.get("RANK", "0") == "0"


def count_restarts() -> int:
    """How often torchrun has started these processes again (`--max-restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
