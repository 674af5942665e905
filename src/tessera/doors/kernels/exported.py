"""Runs what `kernel.export` has written: without the function, a compiler or a cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tessera.compiler.trace.arguments import key_of, parts_of
from tessera.compiler.trace.parameters import LEFT_OUT, Fixed, Parameters, Static
from tessera.compiler.trace.traces import Key
from tessera.doors.protocols import pickling as _pickling  # noqa: F401 - gives results methods and protocols
from tessera.dtypes import dtype_of
from tessera.errors import ArtefactError, UnsupportedTargetError
from tessera.handle import Tensor
from tessera.lazy import evaluation
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Leaf, scalar_leaf
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import Node, leaf_node
from tessera.lazy.promise import settle
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure
from tessera.runtime.plans import native
from tessera.runtime.plans.artefact_file import ArtefactReader, check_place
from tessera.runtime.plans.stored_plan import StoredCopy, StoredKernels, plan_of, structure_of
from tessera.runtime.plans.stored_tensors import tensor_of


def load_kernel(path: str | os.PathLike[str]) -> ExportedKernel:
    """The kernel in a file that `export` of a kernel wrote.

    The file is machine code: load only what you would run. Raises ArtefactError (E_ARTEFACT), with what differs, for a
    file that is damaged or was made for another machine, and OSError for no file.
    """
    return ExportedKernel(Path(path))


class ExportedKernel:
    """A kernel that was compiled before. A call computes at once, and gives Tessera tensors; it takes the arguments of
    the function, of the shapes and dtypes that were exported. Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        reader = ArtefactReader(path)
        header = reader.header
        if "kernel" not in header:
            raise ArtefactError(f"{path} is no kernel", hints=["programs of torch: tessera.torch.load"])
        check_place(path, header)
        native.provide_driver(bytes(reader.blob(header["driver"]["blob"])), header["driver"]["openmp"])
        self._path = path.absolute()
        self._parameters = Parameters.from_plain(header["kernel"], header["parameters"])
        kernels, copies = StoredKernels(lambda number: bytes(reader.blob(number))), _Copies(reader)
        try:
            variants = [_Variant(plain, kernels, copies.of, reader) for plain in header["variants"]]
        except UnsupportedTargetError as error:
            raise ArtefactError(f"{path}: {error.message}", hints=["export it on this machine"]) from error
        self._variants: dict[Key, _Variant] = {variant.key: variant for variant in variants}

    @property
    def calls(self) -> list[str]:
        """The calls that are possible, in words."""
        return [_call_in_words(key) for key in self._variants]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function's result. Raises ArtefactError (E_ARTEFACT) for a call that was not exported, and what a kernel
        raises for wrong arguments.
        """
        if keywords:
            arguments = self._parameters.bind(arguments, keywords)
        self._parameters.refuse_too_many(arguments)
        parts = parts_of(arguments)
        operands = [part for part in parts if isinstance(part, Node)]
        evaluation.evaluate(operands)
        variant, leaves = self._variants.get(key_of(parts)), [node.leaves[0] for node in operands]
        if variant is None:
            variant, leaves = self._over_copies(parts, leaves)
        evaluation.check_versions(leaves)
        settle(leaves)
        return variant(leaves)

    def _over_copies(self, parts: Sequence[Node | Fixed], leaves: Sequence[Leaf]) -> tuple[_Variant, list[Leaf]]:
        """The call over operands that lie as they were exported. Raises ArtefactError where none of that shape were."""
        wanted = _roughly(key_of(parts))
        for key, variant in self._variants.items():
            if _roughly(key) == wanted:
                structures = [part for part in key if isinstance(part, Structure)]
                return variant, [_lying(leaf, structure) for leaf, structure in zip(leaves, structures, strict=True)]
        raise ArtefactError(
            f"{self._parameters.function} was not exported for {_call_in_words(key_of(parts))}",
            hints=[f"exported are {'; '.join(self.calls)}", "export(path, calls=[...]) names those that are wanted"],
        )

    def __reduce__(self) -> tuple[Callable[[Path], ExportedKernel], tuple[Path]]:
        """By the file, which has to be there where it is unpickled, too."""
        return load_kernel, (self._path,)

    def __repr__(self) -> str:
        return f"<exported kernel {self._parameters.function}({self._parameters})>"


class _Copies:
    """Copies of constants, each made once."""

    def __init__(self, reader: ArtefactReader) -> None:
        self._reader = reader
        self._made: dict[int, StoredCopy] = {}

    def of(self, number: int) -> StoredCopy:
        if number not in self._made:
            self._made[number] = StoredCopy(self._reader.blob(number))
        return self._made[number]


class _Variant:
    """One call: its arguments, and the plan of its results."""

    def __init__(
        self,
        plain: Mapping[str, Any],
        kernels: StoredKernels,
        copy: Callable[[int], StoredCopy],
        reader: ArtefactReader,
    ) -> None:
        self.key: Key = tuple([_part(argument) for argument in plain["arguments"]])
        self._single: bool = plain["single"]
        self._numbers = [(index, dtype_of(name)) for index, name in plain["numbers"]]
        self._plan = None if plain["plan"] is None else plan_of(plain["plan"], kernels, copy)
        self._leaves = [_Source(each, reader) for each in plain["leaves"]]
        self._results = [None if each is None else _Source(each, reader) for each in plain["results"]]

    def __call__(self, operands: list[Leaf]) -> Any:
        for index, dtype in self._numbers:
            operands[index] = scalar_leaf(operands[index].owner, dtype)
        computed: list[Leaf] = []
        if self._plan is not None:
            if evaluation.before_run is not None:
                evaluation.before_run()
            computed = list(self._plan.run(tuple([source.of(operands) for source in self._leaves])))
        made = iter(computed)
        results: list[Tensor] = [
            leaf_node(next(made) if source is None else source.of(operands)) for source in self._results
        ]
        return results[0] if self._single else tuple(results)


class _Source:
    """Where a leaf comes from: an operand of the call, or the file."""

    def __init__(self, plain: Mapping[str, Any] | None, reader: ArtefactReader) -> None:
        self._operand: int | None = None if plain is None else plain.get("operand")
        self._leaf: Any = None  # a plan never looks at those that it reads copies of
        if plain is not None and "scalar" in plain:
            self._leaf = Leaf(interning.scalar(dtype_of(plain["scalar"])), plain["word"], None)
        elif plain is not None and "tensor" in plain:
            self._leaf = from_torch(tensor_of(plain["tensor"], reader.blob))

    def of(self, operands: Sequence[Leaf]) -> Leaf:
        leaf: Leaf = self._leaf if self._operand is None else operands[self._operand]
        return leaf


def _part(plain: Mapping[str, Any]) -> Structure | Fixed:
    if "lies" in plain:
        return structure_of(plain["lies"])
    if "scalar" in plain:
        return interning.scalar(dtype_of(plain["scalar"]))
    return Static(plain["static"]) if "static" in plain else LEFT_OUT


def _roughly(key: Key) -> tuple[object, ...]:
    """A key without the strides of its operands."""
    return tuple([(part.kind, part.shape, part.dtype) if isinstance(part, Structure) else part for part in key])


def _lying(leaf: Leaf, structure: Structure) -> Leaf:
    """The leaf, or one of a copy that lies as the structure says."""
    if leaf.structure is structure or structure.kind == "scalar":
        return leaf
    copy = torch.empty_strided(structure.shape, structure.strides, dtype=structure.dtype.torch, device="cpu")
    return from_torch(copy.copy_(to_torch(leaf)))


def _call_in_words(key: Key) -> str:
    return f"({', '.join(map(_in_words, key))})"


def _in_words(part: Structure | Fixed) -> str:
    if not isinstance(part, Structure):
        return str(part)
    return f"a number of {part.dtype}" if part.kind == "scalar" else f"{part.dtype}{list(part.shape)}"
