"""Calls of libraries in plans for other sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.compiler.bind.arrays import View
from tessera.compiler.bind.launches import LibraryLaunch
from tessera.compiler.bind.library_calls import label
from tessera.compiler.device.cpu_planner import call_step
from tessera.compiler.rebind.choices import Number, view_with
from tessera.lazy.symbols.integers import is_symbolic, symbolic_in
from tessera.lazy.threads import worker_count
from tessera.runtime.libraries.library import LibraryKernel, LibraryOperand
from tessera.runtime.plans.frames import Step


class CallTemplate:
    """A call of a library but for its numbers."""

    def __init__(self, launch: LibraryLaunch) -> None:
        self._launch, self._name = launch, label(launch)
        self._moving = [name for name, value in launch.attributes.items() if any(symbolic_in((value,)))]
        self.numbers = (
            tuple([_place(view) for view in launch.inputs]),
            tuple([_place(view) for view in launch.outputs]),
            tuple([launch.attributes[name] for name in self._moving]),
        )
        """What `step` needs, which may be symbolic."""

    def step(self, numbers: Any, number: Number) -> Step:
        """The step for other sizes, of `numbers` as they are for these; `number` gives any other."""
        launch = self._launch
        if launch.operator.by_planes:  # what runs there depends on sizes
            return call_step(library_with_numbers(launch, number))
        inputs, outputs, moved = numbers
        attributes: Mapping[str, Any] = launch.attributes
        if moved:
            attributes = {**attributes, **dict(zip(self._moving, moved, strict=True))}
        kernel = LibraryKernel(
            self._name,
            launch.operator.library,
            _operands(launch.inputs, inputs),
            _operands(launch.outputs, outputs),
            attributes,
            launch.operator.native,
        )
        return Step(kernel, kernel.descriptors, threads=worker_count())


def _place(view: View) -> tuple[Any, ...]:
    return view.storage.offset + view.offset_bytes, view.shape, view.strides


def _operands(views: Sequence[View], places: Sequence[Any]) -> list[LibraryOperand]:
    return [
        LibraryOperand(view.storage.slot, offset, view.dtype.torch, shape, strides)
        for view, (offset, shape, strides) in zip(views, places, strict=True)
    ]


def library_with_numbers(launch: LibraryLaunch, number: Callable[[int], int]) -> LibraryLaunch:
    """The call of a library with its numbers as `number` gives them."""
    inputs, outputs = (tuple([view_with(view, number) for view in views]) for views in (launch.inputs, launch.outputs))
    attributes = {name: _with_numbers(value, number) for name, value in launch.attributes.items()}
    return LibraryLaunch(launch.operator, attributes, inputs, outputs)


def _with_numbers(value: Any, number: Number) -> Any:
    if isinstance(value, tuple | list):
        return type(value)([_with_numbers(each, number) for each in value])
    return number(value) if is_symbolic(value) else value
