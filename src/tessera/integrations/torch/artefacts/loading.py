"""Runs what `aot_compile` has written: without torch.compile, LLVM or a cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tessera.dtypes import dtype_of
from tessera.errors import ArtefactError, UnsupportedTargetError
from tessera.integrations.torch.artefacts.values import call_of, value_of
from tessera.integrations.torch.graphs.execution import CallStep, Execution
from tessera.integrations.torch.partitions.layouts import Layout
from tessera.integrations.torch.partitions.outputs import Computed, Given, Outputs
from tessera.lazy import evaluation
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.structures.interning import scalar
from tessera.lazy.structures.structure import Structure
from tessera.runtime.plans import native
from tessera.runtime.plans.artefact_file import ArtefactReader, check_place
from tessera.runtime.plans.plan import layout_of
from tessera.runtime.plans.stored_plan import StoredCopy, StoredKernels, plan_of, structure_of
from tessera.runtime.plans.stored_tensors import tensor_of

Shape = tuple[int, ...]


def load(path: str | os.PathLike[str]) -> LoadedProgram:
    """The program in a file that `aot_compile` wrote, as a function of the exported module's arguments.

    The file is machine code: load only what you would run. Raises ArtefactError (E_ARTEFACT), with what differs, for a
    file that is damaged or that was made for another version of torch or another CPU, and OSError for no file.
    """
    return LoadedProgram(Path(path))


class LoadedProgram:
    """A compiled program. It holds its own buffers; parameters are what they were when it was compiled."""

    def __init__(self, path: Path) -> None:
        reader = ArtefactReader(path)
        header = reader.header
        if "in_spec" not in header:
            raise ArtefactError(f"{path} is no program of torch", hints=["kernels: tessera.load_kernel"])
        check_place(path, header)
        native.provide_driver(bytes(reader.blob(header["driver"]["blob"])), header["driver"]["openmp"])
        self._header, self._reader = header, reader
        self._kernels = StoredKernels(lambda number: bytes(reader.blob(number)))
        self._copies: dict[int, StoredCopy] = {}
        self._constants = [(slot, tensor_of(given, reader.blob)) for slot, given in header["constants"]]
        self._in_spec = pytree.treespec_loads(header["in_spec"])
        self._out_spec = pytree.treespec_loads(header["out_spec"])
        self._inputs: list[dict[str, Any]] = header["inputs"]
        self._input_count = max([each["slot"] + 1 for each in self._inputs], default=0)
        try:
            self._executions = {
                tuple(map(tuple, variant["shapes"])): self._execution(variant) for variant in header["variants"]
            }
        except UnsupportedTargetError as error:
            raise ArtefactError(f"{path}: {error.message}", hints=["compile it on this machine"]) from error

    @property
    def shapes(self) -> list[list[Shape]]:
        """The shapes of a call's tensors, for each call that is possible."""
        return [list(each) for each in self._executions]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the exported module gives. Raises ArtefactError (E_ARTEFACT) for other arguments than it takes."""
        names = self._in_spec.child(1).context
        if kwargs.keys() == set(names):
            kwargs = {name: kwargs[name] for name in names}
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._in_spec:
            raise ArtefactError(
                "the arguments are put together otherwise than the exported program's",
                hints=[f"they were {self._in_spec}, and are {spec}"],
            )
        slots: list[Any] = [None] * self._input_count
        shapes = []
        for value, described in zip(flat, self._inputs, strict=True):
            if "dtype" in described:
                _check(value, described)
                shapes.append(tuple(value.shape))
            elif value != value_of(described["value"]):
                raise ArtefactError(
                    f"the argument {described['name']} is {value!r}, and was {value_of(described['value'])!r}"
                )
            slots[described["slot"]] = value
        execution = self._executions.get(tuple(shapes))
        if execution is None:
            raise self._unknown(shapes)
        with torch.no_grad():
            return pytree.tree_unflatten(execution(slots), self._out_spec)

    def _unknown(self, shapes: Sequence[Shape]) -> ArtefactError:
        """Why there is nothing for these shapes."""
        ranges: Mapping[str, tuple[int, int | None]] = self._header["ranges"]
        known: dict[str, int] = {}
        for shape, described in zip(shapes, (each for each in self._inputs if "dtype" in each), strict=True):
            for extent, wanted in zip(shape, described["shape"], strict=True):
                if not isinstance(wanted, str):
                    continue
                least, greatest = ranges.get(wanted, (0, None))
                if extent < least or (greatest is not None and extent > greatest):
                    end = "or more" if greatest is None else f"to {greatest}"
                    return ArtefactError(
                        f"{described['name']} is {list(shape)}: {wanted} is {extent}, exported for {least} {end}"
                    )
                if known.setdefault(wanted, extent) != extent:
                    return ArtefactError(f"{wanted} is {known[wanted]} and {extent} in one call")
        compiled = ", ".join(str(list(map(list, each))) for each in self._executions)
        return ArtefactError(
            f"shapes {list(map(list, shapes))} were not compiled",
            hints=[f"compiled are {compiled}", "aot_compile(program, path, shapes=...) names those that are wanted"],
        )

    def _execution(self, variant: Mapping[str, Any]) -> Execution:
        partitions = iter(variant["partitions"])
        steps = []
        for given in self._header["steps"]:
            function: Callable[..., Any]
            function = call_of(given["call"]) if "call" in given else self._partition(next(partitions))
            steps.append(CallStep(function, tuple(given["inputs"]), tuple(given["outputs"]), given["several"], ()))
        results = value_of(self._header["results"])
        return Execution(steps, results, self._input_count, self._header["slots"], self._constants)

    def _partition(self, given: Mapping[str, Any]) -> StoredPartition:
        return StoredPartition(given, self._kernels, self._copy, dict(self._constants), self._reader)

    def _copy(self, number: int) -> StoredCopy:
        if number not in self._copies:
            self._copies[number] = StoredCopy(self._reader.blob(number))
        return self._copies[number]


def _check(value: Any, described: Mapping[str, Any]) -> None:
    """Raises ArtefactError for an argument that is no tensor of the exported dtype and extents."""
    name = described["name"]
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
        raise ArtefactError(f"the argument {name} is no dense tensor on the CPU")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype != described["dtype"]:
        raise ArtefactError(f"{name} is of {dtype}, and was exported for {described['dtype']}")
    wanted = described["shape"]
    if len(wanted) != value.dim() or any(
        isinstance(size, int) and size != extent for size, extent in zip(wanted, value.shape, strict=True)
    ):
        raise ArtefactError(f"{name} is {list(value.shape)}, and was exported for {wanted}".replace("'", ""))


class StoredPartition:
    """A plan with its leaves and outputs, for one layout of its inputs."""

    def __init__(
        self,
        given: Mapping[str, Any],
        kernels: StoredKernels,
        copy: Callable[[int], StoredCopy],
        constants: Mapping[int, torch.Tensor],
        reader: ArtefactReader,
    ) -> None:
        self._plan = None if given["plan"] is None else plan_of(given["plan"], kernels, copy)
        self._fixed: list[Leaf | None] = []
        self._reads: list[tuple[int, int, Structure]] = []
        for number, leaf in enumerate(given["leaves"]):
            self._fixed.append(None if leaf is None else _fixed(leaf, constants, reader))
            if leaf is not None and "input" in leaf:
                self._reads.append((number, leaf["input"], structure_of(leaf["lies"])))
        self._outputs = Outputs([_output(each) for each in given["outputs"]])

    def __call__(self, *values: Any) -> list[torch.Tensor]:
        """The outputs, of the inputs' values."""
        if self._plan is None:
            return self._outputs(values, ())
        if evaluation.before_run is not None:
            evaluation.before_run()
        leaves: list[Any] = list(self._fixed)
        for number, place, structure in self._reads:
            leaf = from_torch(values[place])
            if leaf.structure is not structure and layout_of(leaf.structure) != layout_of(structure):
                leaf = _as_compiled(values[place], structure)
            leaves[number] = leaf
        return self._outputs(values, self._plan.run(leaves))


def _fixed(leaf: Mapping[str, Any], constants: Mapping[int, torch.Tensor], reader: ArtefactReader) -> Leaf | None:
    if "constant" in leaf:
        return from_torch(constants[leaf["constant"]])
    if "tensor" in leaf:
        return from_torch(tensor_of(leaf["tensor"], reader.blob))
    return Leaf(scalar(dtype_of(leaf["scalar"])), leaf["word"], None) if "scalar" in leaf else None


def _as_compiled(tensor: torch.Tensor, structure: Structure) -> Leaf:
    """The leaf of a copy that lies as the plan reads it. Raises ArtefactError for another shape."""
    if tuple(tensor.shape) != structure.shape:
        raise ArtefactError(
            f"a tensor of {list(tensor.shape)} in the program, where {list(structure.shape)} was compiled",
            hints=["extents that depend on values are not for artefacts"],
        )
    copy = torch.empty_strided(structure.shape, structure.strides, dtype=tensor.dtype, device="cpu").copy_(tensor)
    return from_torch(copy)


def _output(given: Mapping[str, Any]) -> Computed | Given:
    lies = given["layout"]
    layout = None if lies is None else Layout(*(tuple(each) for each in lies))
    if "given" in given:
        assert layout is not None
        return Given(given["given"], layout, given["target"])
    order = given["order"]
    return Computed(given["computed"], None if order is None else tuple(order), layout, given["target"])
