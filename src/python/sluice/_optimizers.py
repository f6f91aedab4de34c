"""Optimizers as numbers: what the job's key `optimizer` says of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Mapping, Tuple

from ._errors import WrongJob
from ._job import as_number


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    lr: float = 1e-3
    betas: Tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2


@dataclass(frozen=True)
class Lion:
    """Lion (Chen et al., 2023): one moment, and steps of one size."""

    lr: float = 1e-4
    betas: Tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Adagrad:
    """Adagrad (Duchi et al., 2011): the sum of squared gradients."""

    lr: float = 1e-2
    eps: float = 1e-10
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Muon:
    """Muon (Jordan et al., 2024) for matrices within blocks, Adam for everything else."""

    lr: float = 2e-2
    momentum: float = 0.95
    weight_decay: float = 0.0


def as_numbers(numbers: Mapping[str, Any], what: str) -> Dict[str, Any]:
    """The numbers of an optimizer: betas as a list of two, all others as they are named."""
    found: Dict[str, Any] = {}
    for key, value in numbers.items():
        name = f"{what} {key}"
        if key != "betas":
            found[key] = as_number(value, name)
        elif isinstance(value, (tuple, list)) and len(value) == 2:
            found[key] = [as_number(beta, name) for beta in value]
        else:
            raise WrongJob(f"{name} is {value!r}, and must be two numbers")
    return found


def optimizer_block(optimizer: Any) -> Dict[str, Any]:
    """The job's optimizer block for one of the classes above."""
    name = type(optimizer).__name__
    return {"type": name, "params": as_numbers(asdict(optimizer), f"{name}:")}
