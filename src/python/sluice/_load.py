"""Loads the extension, with the settings that its OpenMP runtime reads as it is loaded."""

from __future__ import annotations

import os

# Idle OpenMP threads spin for this many rounds (some 0.1 ms) before they sleep, as in the command
# `sluice`: with GCC's default of milliseconds they hold cores that copies and I/O need.
_SPIN_COUNT = "3000"
_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

_is_set_by_user = any(name in os.environ for name in _SETTINGS)
if not _is_set_by_user:
    os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT
try:
    from . import _native as native
finally:
    if not _is_set_by_user:
        del os.environ["GOMP_SPINCOUNT"]  # not for other libraries and processes

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
native.set_data_directory(os.path.join(_PACKAGE, "share", "sluice"))

__all__ = ["native"]
