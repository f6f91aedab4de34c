"""Sluice: trains transformer models whose states are larger than the memory of all devices."""

from __future__ import annotations

from ._errors import Error, Failed, NoFit, Stopped, WrongJob
from ._load import native as _native
from ._session import Info, Session, Step, open

__version__: str = _native.version()

__all__ = [
    "Error",
    "Failed",
    "Info",
    "NoFit",
    "Session",
    "Step",
    "Stopped",
    "WrongJob",
    "__version__",
    "open",
]
