"""The tuner of this process; kernels that are bound ask it for their schedules."""

from __future__ import annotations

from typing import Final

from tessera.tuning.autotuner import Autotune

autotune: Final = Autotune()
"""`entry.py` says what gives it the compiler, and `pipeline.py` what it tells of changes, when these are loaded."""
