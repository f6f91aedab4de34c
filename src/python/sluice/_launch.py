"""The ranks of torchrun: how they learn where they meet. Those of mpirun and srun learn it by MPI."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Callable, List, Optional

from ._errors import Failed, WrongJob

_store: Any = None  # torchrun's; it is kept, since rank 0 may be the one that serves it
_count = 0  # runs whose ranks this process has met


def _share(key: str, data: bytes, seconds: float) -> bytes:
    """Returns rank 0's data, for which it waits. torchrun keeps its store when it starts the ranks
    again, so the other ranks may get what rank 0 gave before that; they then ask again."""
    global _store
    import torch.distributed as distributed

    if not distributed.is_available():
        raise WrongJob(
            "torchrun started this process as one of several ranks, and this PyTorch is built "
            "without torch.distributed: start it with mpirun -np N python ..."
        )
    timeout = timedelta(seconds=seconds)
    try:
        if _store is None:
            from torch.distributed.rendezvous import rendezvous

            _store = next(rendezvous("env://", timeout=timeout))[0]
        if os.environ["RANK"] == "0":
            _store.set(key, data)
            return data
        _store.set_timeout(timeout)
        found: bytes = _store.get(key)
        return found
    except RuntimeError as error:
        raise Failed(
            f"rank {os.environ['RANK']} and the others do not meet: torchrun's store does not give "
            f"or take the place of rank 0 within {seconds:.0f} s ({error}); see whether all ranks "
            "have started, or set comm.timeout_seconds"
        ) from None


def share_of_launcher() -> Optional[Callable[[bytes, float], bytes]]:
    """What the extension calls to give all ranks rank 0's bytes; None: torchrun has not started
    this process. All ranks open the same runs, one after the other."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return None
    key: List[str] = []

    def share(data: bytes, seconds: float) -> bytes:
        global _count
        if not key:  # a run counts when its ranks meet: an opening may fail before that in one rank
            _count += 1
            key.append(f"sluice/{run}/{_count}")
        return _share(key[0], data, seconds)

    return share
