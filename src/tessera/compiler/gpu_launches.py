"""Launch sites on GPUs: what one call of a plan passes to one printed kernel, and what that kernel may rely on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from xdsl.dialects.builtin import ModuleOp

from tessera.backend.triton.kernel import Parameter
from tessera.backend.triton.static import Candidate
from tessera.compiler.arrays import View
from tessera.compiler.launches import Launch
from tessera.errors import UnsupportedTargetError
from tessera.ir.grid import Extents, Programs
from tessera.runtime.device import Grid, Loaded
from tessera.runtime.gpu_plan import ALIGNMENT, DeviceStep, Hole

T = TypeVar("T")

DIVISOR = 16
"""Triton compiles a kernel of its own for addresses, extents and strides that this divides: it makes wide loads
possible.
"""
LARGEST = (1 << 31) - 1
"""The largest extent, which a kernel takes in 32 bits, and the most programs along the first axis of a grid ("CUDA C++
Programming Guide", technical specifications). Strides and offsets have 64 bits.
"""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A subject under a schedule: its Tile IR, the parameters of its printed kernel, and the size of its grid."""

    module: ModuleOp
    parameters: Sequence[Parameter]
    programs: Programs
    kernels: dict[frozenset[str], Loaded]
    """The loaded kernel for each set of parameters that it may rely on."""


class Site:
    """One launch of a plan. `unaligned` are the slots whose addresses may be anything."""

    def __init__(self, launch: Launch, lowered: Lowered, unaligned: frozenset[int]) -> None:
        self.launch, self.lowered, self.unaligned = launch, lowered, unaligned
        self._refuse_large()

    def _refuse_large(self) -> None:
        for view, words in self.launch.call.arguments:
            extents = words[: len(words) // 2]
            if extents and max(extents) > LARGEST:
                raise UnsupportedTargetError(
                    f"{self.name}: {max(extents)} elements along one axis of a tensor of shape {view.shape}; kernels "
                    f"of GPUs take at most {LARGEST}",
                    hints=["split the tensor"],
                )
        if self.programs > LARGEST:
            raise UnsupportedTargetError(
                f"{self.name}: {self.programs} programs, where a grid has at most {LARGEST}", hints=["split the tensor"]
            )

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.launch.call.item.name

    @property
    def extents(self) -> Extents:
        """The extents of each argument."""
        return [words[: len(words) // 2] for _, words in self.launch.call.arguments]

    @cached_property
    def programs(self) -> int:
        """The size of the grid."""
        return self.lowered.programs(self.extents)

    @cached_property
    def promised(self) -> frozenset[str]:
        """The parameters that are multiples of `DIVISOR` in every call."""
        return frozenset([parameter.name for parameter in self._of_arguments if self._is_promised(parameter)])

    @property
    def _of_arguments(self) -> list[Parameter]:
        """The parameters that say something of an argument."""
        return [parameter for parameter in self.lowered.parameters if parameter.role != "times"]

    @property
    def aligned_slots(self) -> set[int]:
        """The slots whose addresses have to be multiples of `ALIGNMENT` for this."""
        arguments = self.launch.call.arguments
        return {
            arguments[parameter.argument][0].storage.slot
            for parameter in self._of_arguments
            if parameter.role == "descriptor"
            or (parameter.kind.startswith("*") and (parameter.name in self.promised or (parameter.divisor or 1) > 1))
        }

    @property
    def candidate(self) -> Candidate:
        """What is compiled."""
        pointers = [parameter.name for parameter in self.lowered.parameters if parameter.kind.startswith("*")]
        return Candidate(
            self.lowered.module,
            sorted(self.promised.difference(pointers)),
            f"schedule: {self.launch.schedule}",
            [name for name in pointers if name not in self.promised],
        )

    @property
    def grid(self) -> Grid:
        """The programs along x, y and z."""
        return (self.programs, 1, 1)

    def arguments(self, operand: Callable[[View, str], T], times: int = 0) -> list[int | T]:
        """The arguments of the launch in order; `operand` gives that for an address or a scalar: a view, and Triton's
        name of the parameter's type. `times` is the address of the memory to which a timed kernel's tiles write.
        """
        found: list[int | T] = []
        for parameter in self.lowered.parameters:
            if parameter.role == "times":
                found.append(times)
                continue
            view, _ = self.launch.call.arguments[parameter.argument]
            if parameter.role in ("size", "stride"):
                found.append(self._word(parameter))
                continue
            found.append(operand(view, parameter.kind))
            if parameter.role == "descriptor":
                found += self._described(parameter)
        return found

    def step(self, times: int = 0) -> DeviceStep:
        """The launch, its kernel loaded; `times` as for `arguments`."""
        listed = self.arguments(_hole, times)
        holes = tuple([hole._replace(position=at) for at, hole in enumerate(listed) if isinstance(hole, Hole)])
        numbers = tuple([0 if isinstance(each, Hole) else each for each in listed])
        return DeviceStep(self.lowered.kernels[self.promised], self.grid, numbers, holes)

    def _is_promised(self, parameter: Parameter) -> bool:
        view, _ = self.launch.call.arguments[parameter.argument]
        if parameter.role in ("size", "stride"):
            return self._word(parameter) % DIVISOR == 0
        if view.is_scalar or view.storage.slot in self.unaligned:
            return False
        return (view.storage.offset + view.offset_bytes) % ALIGNMENT == 0

    def _described(self, parameter: Parameter) -> list[int]:
        """The extents and strides of a descriptor, in the order that it walks them; its last stride is 1."""
        _, words = self.launch.call.arguments[parameter.argument]
        extents, strides = words[: len(words) // 2], words[len(words) // 2 :]
        return [*(extents[dim] for dim in parameter.order), *(strides[dim] for dim in parameter.order[:-1]), 1]

    def _word(self, parameter: Parameter) -> int:
        """The extent or stride that a parameter has."""
        _, words = self.launch.call.arguments[parameter.argument]
        return words[parameter.dim + (len(words) // 2 if parameter.role == "stride" else 0)]


def _hole(view: View, kind: str) -> Hole:
    """What fills the place of a view among the arguments; its position is not known here."""
    storage = view.storage
    if view.is_scalar:
        return Hole(-1, storage.slot, 0, kind)
    return Hole(-1, storage.slot, storage.offset + view.offset_bytes)
