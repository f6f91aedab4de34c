"""The ranks of torchrun: how they learn where they meet. Those of mpirun and srun learn it by MPI."""

from __future__ import annotations

import os
from typing import Any, Callable, Optional

from ._errors import WrongJob

_store: Any = None  # torchrun's; it is kept, since rank 0 may be the one that serves it
_count = 0  # runs that this process has opened


def _share(data: bytes) -> bytes:
    """Returns rank 0's data on all ranks, which make this call equally often."""
    global _store, _count
    import torch.distributed as distributed

    if not distributed.is_available():
        raise WrongJob(
            "torchrun started this process as one of several ranks, and this PyTorch is built "
            "without torch.distributed: start it with mpirun -np N python ..."
        )
    if _store is None:
        _store = next(distributed.rendezvous("env://"))[0]
    # torchrun starts ranks again after a failure, with the same store
    key = f"sluice/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_count}"
    _count += 1
    if os.environ["RANK"] == "0":
        _store.set(key, data)
        return data
    found: bytes = _store.get(key)  # waits for it
    return found


def share_of_launcher() -> Optional[Callable[[bytes], bytes]]:
    """What the extension calls to give all ranks rank 0's bytes; None: torchrun has not started
    this process."""
    return _share if "TORCHELASTIC_RUN_ID" in os.environ else None


def count_ranks() -> int:
    """How many processes the launcher has started, by its environment."""
    names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        names.append("WORLD_SIZE")
    if "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_PROCID"):
        names.append("SLURM_STEP_NUM_TASKS")
    return max(int(os.environ.get(name) or 1) for name in names)
