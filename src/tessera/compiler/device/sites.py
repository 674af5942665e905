"""Launch sites on GPUs: what one call of a plan passes to one printed kernel, and what that kernel may rely on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from xdsl.dialects.builtin import ModuleOp

from tessera.backend.contract import GpuParameter
from tessera.compiler.bind.arrays import View
from tessera.compiler.bind.launches import Launch
from tessera.errors import UnsupportedTargetError
from tessera.ir.tile.divisors import Divisors, described_arguments, divisors_of, free_words, promising
from tessera.ir.tile.grid import Extents, Programs
from tessera.ir.tile.operations import find_kernel
from tessera.runtime.devices.device import Grid, Loaded
from tessera.runtime.plans.gpu_plan import ALIGNMENT, DeviceStep, Hole
from tessera.system.caching import cached_property

T = TypeVar("T")

DIVISOR = 16
"""Triton compiles a kernel of its own for addresses, extents and strides that this divides: it makes wide loads
possible.
"""
LARGEST = (1 << 31) - 1
"""The largest extent, which a kernel takes in 32 bits, and the most programs along the first axis of a grid ("CUDA C++
Programming Guide", technical specifications). Strides and offsets have 64 bits.
"""


class Lowered:
    """A subject under a schedule: its Tile IR and the size of its grid."""

    def __init__(self, module: ModuleOp, programs: Programs) -> None:
        self.module, self.programs = module, programs
        self.kernels: dict[Divisors, Loaded] = {}
        """The loaded kernel for each of what it may rely on."""
        kernel = find_kernel(module)
        self.divisors = None if kernel.divisors is None else divisors_of(kernel)
        """What the schedule relies on, whatever the call; None where a call says."""
        self.free = [free_words(argument.type) for argument in kernel.body.block.args]
        self.described = described_arguments(kernel)


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
    def key(self) -> tuple[int, Divisors]:
        """What tells compiled kernels apart; whoever keeps it keeps what is lowered alive."""
        return id(self.lowered), self.divisors

    @property
    def extents(self) -> Extents:
        """The extents of each argument."""
        return [words[: len(words) // 2] for _, words in self.launch.call.arguments]

    @cached_property
    def programs(self) -> int:
        """The size of the grid."""
        return self.lowered.programs(self.extents)

    @cached_property
    def divisors(self) -> Divisors:
        """What the kernel may rely on: what its schedule does, else what `DIVISOR` divides in this call."""
        if self.lowered.divisors is not None:
            return self.lowered.divisors
        arguments = zip(self.launch.call.arguments, self.lowered.free, strict=True)
        return tuple([() if free is None else self._divisors(view, words, free) for (view, words), free in arguments])

    @property
    def aligned_slots(self) -> set[int]:
        """The slots whose addresses have to be multiples of `ALIGNMENT` for this."""
        arguments = zip(self.launch.call.arguments, self.divisors, strict=True)
        return {
            view.storage.slot
            for number, ((view, _), divisors) in enumerate(arguments)
            if number in self.lowered.described or (divisors and divisors[0] > 1)
        }

    @property
    def module(self) -> ModuleOp:
        """What is compiled."""
        return promising(self.lowered.module, self.divisors, f"schedule: {self.launch.schedule}")

    @property
    def grid(self) -> Grid:
        """The programs along x, y and z."""
        return (self.programs, 1, 1)

    def arguments(
        self, parameters: Sequence[GpuParameter], operand: Callable[[View, str], T], times: int = 0
    ) -> list[int | T]:
        """The arguments of the launch in the order of the compiled kernel's parameters; `operand` gives that for an
        address or a scalar: a view, and the name of the parameter's type. `times` is the address of the memory to
        which a timed kernel's tiles write.
        """
        found: list[int | T] = []
        for parameter in parameters:
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
        kernel = self.lowered.kernels[self.divisors]
        listed = self.arguments(kernel.kernel.parameters, _hole, times)
        holes = tuple([hole._replace(position=at) for at, hole in enumerate(listed) if isinstance(hole, Hole)])
        numbers = tuple([0 if isinstance(each, Hole) else each for each in listed])
        return DeviceStep(kernel, self.grid, numbers, holes)

    def _divisors(self, view: View, words: Sequence[int], free: Sequence[bool]) -> tuple[int, ...]:
        """What the code may rely on of one buffer; what its type promises needs no divisor."""
        start = view.storage.offset + view.offset_bytes
        is_aligned = view.storage.slot not in self.unaligned and start % ALIGNMENT == 0
        pairs = zip(words, free, strict=True)
        numbers = [DIVISOR if is_free and word % DIVISOR == 0 else 1 for word, is_free in pairs]
        return (DIVISOR if is_aligned else 1, *numbers)

    def _described(self, parameter: GpuParameter) -> list[int]:
        """The extents and strides of a descriptor, in the order that it walks them; its last stride is 1."""
        _, words = self.launch.call.arguments[parameter.argument]
        extents, strides = words[: len(words) // 2], words[len(words) // 2 :]
        return [*(extents[dim] for dim in parameter.order), *(strides[dim] for dim in parameter.order[:-1]), 1]

    def _word(self, parameter: GpuParameter) -> int:
        """The extent or stride that a parameter has."""
        _, words = self.launch.call.arguments[parameter.argument]
        return words[parameter.dim + (len(words) // 2 if parameter.role == "stride" else 0)]


def _hole(view: View, kind: str) -> Hole:
    """What fills the place of a view among the arguments; its position is not known here."""
    storage = view.storage
    if view.is_scalar:
        return Hole(-1, storage.slot, 0, kind)
    return Hole(-1, storage.slot, storage.offset + view.offset_bytes)
