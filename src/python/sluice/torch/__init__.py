"""Sluice for PyTorch: modules, and optimizers, whose states rest on device, host and drives.

    Engine          a module's parameters, gradients and optimizer state, by a plan
    AdamW, ...      an optimizer alone, whose state rests in host memory or on drives
    init            builds a module that is larger than memory
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("sluice.torch needs PyTorch: pip install torch") from error

from ._engine import Engine
from ._init import init
from ._optimizers import Adagrad, AdamW, Lion, Muon

__all__ = ["Adagrad", "AdamW", "Engine", "Lion", "Muon", "init"]
