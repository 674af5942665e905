"""What the compiler's tests share: expressions as the compiler sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from tessera.compiler import planning
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.bind.launches import Launch
from tessera.compiler.device import compilers
from tessera.compiler.graph.program import Program
from tessera.handle import Tensor

ProgramOf: TypeAlias = Callable[[Tensor], Program]
LaunchesOf: TypeAlias = Callable[[Tensor], list[Launch]]


@pytest.fixture
def program_of() -> ProgramOf:
    """The program that a pending tensor is compiled to."""
    return lambda tensor: planning.program_of(tensor.structure)


@pytest.fixture
def launches() -> LaunchesOf:
    """The launches that a plan of a pending tensor has."""

    def bound(tensor: Tensor) -> list[Launch]:
        program = planning.program_of(tensor.structure)
        return launches_of(program, tensor.structure, compilers.kernel_compiler())

    return bound
