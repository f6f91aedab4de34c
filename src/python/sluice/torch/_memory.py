"""Memory of the library as tensors, and what stands in a parameter's place while its values are
elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from typing import Any

import torch

from ._units import Slot


class _DeviceMemory:
    """Memory of a GPU, as torch.as_tensor takes it. It is gone when the run is closed."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def plainly() -> Any:
    """The context in which parameters get their memory. Within torch.inference_mode() they would
    become tensors that no later step can learn."""
    context = contextlib.ExitStack()
    if torch.is_inference_mode_enabled():
        context.enter_context(torch.inference_mode(False))
        context.enter_context(torch.no_grad())
    return context


def return_free_memory() -> None:
    """Gives the heap's free memory back to the system. A recording leaves holes there, where each
    unit's parameters and activations have been."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(ctypes.c_size_t(0))


def as_tensor(
    owner: Any, address: int, elems: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor over `elems` elements at the address. It and its views refer to the memory's owner."""
    size_bytes = elems * dtype.itemsize
    if device.type == "cuda":
        memory: Any = _DeviceMemory(address, size_bytes)
        return torch.as_tensor(memory, device=device).view(dtype)
    buffer = (ctypes.c_char * size_bytes).from_address(address)
    buffer.owner = owner  # type: ignore[attr-defined]
    return torch.frombuffer(buffer, dtype=dtype)


def placeholder_of(slot: Slot) -> torch.Tensor:
    """One element that is not a number, seen as the parameter's shape. The shape stays right, and a
    value that is used all the same shows in the loss."""
    if slot.placeholder is None:
        parameter = slot.parameter
        one = torch.full((1,), float("nan"), dtype=parameter.dtype, device=parameter.device)
        slot.placeholder = one.expand(slot.shape) if slot.shape else one[0]
    return slot.placeholder
