"""Printed kernels run by Triton's interpreter, on CPU memory: program after program, in numpy. Slow, and the way to
check GPU kernels without a GPU.

Triton decides when it is imported whether its functions are interpreted. The interpreter is therefore a second import
of Triton's Python modules, which nobody else in this process sees: whoever imports Triton gets the compiler, before and
after. Written against Triton 3.6.
"""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import numpy
from xdsl.dialects.builtin import ModuleOp

from tessera.backend.gpu_objects import GpuKernelObject, GpuParameter, LaunchFacts
from tessera.backend.interpreter.interpreted_functions import clock_functions, library, widen_products
from tessera.backend.interpreter.interpreted_reductions import reduce_by_halves, remember_dtypes
from tessera.backend.triton.compilation.static import gpu_parameters, triton_version
from tessera.backend.triton.printing.float8 import for_interpreter
from tessera.backend.triton.printing.kernel import generate, parameters_of
from tessera.errors import CompileError
from tessera.target import Target

_lock = threading.RLock()
"""The interpreter keeps the program that runs in module variables."""

VARIABLE = "TRITON_INTERPRET"


def interpreted_objects(modules: Sequence[ModuleOp], target: Target) -> list[GpuKernelObject | CompileError]:
    """Kernel objects without machine code, for the interpreter; what `static.kernel_objects` gives for a GPU."""
    version = triton_version()
    assert target.gpu is not None
    return [_object(module, target, version, target.gpu.warp_size) for module in modules]


def _object(given: ModuleOp, target: Target, version: str, warp_size: int) -> GpuKernelObject | CompileError:
    try:
        module = for_interpreter(given)
        text = generate(module, target)
        name, printed, options = parameters_of(module)
    except CompileError as error:
        return error
    return GpuKernelObject(
        image=b"",
        entry=name,
        source=text,
        arch=target.arch,
        threads=options.get("num_warps", 4) * warp_size,
        shared_bytes=0,
        parameters=gpu_parameters(printed),
        launch=LaunchFacts(),
        compiler=f"Triton {version}",
        registers=0,
        spill_bytes=0,
    )


_modules: dict[str, ModuleType] = {}
"""Triton's modules as the interpreter has them."""


def _is_ours(name: str) -> bool:
    """Whether a module is one of those that there are two of; the native library is shared."""
    return (name == "triton" or name.startswith("triton.")) and not name.startswith("triton._C")


@contextmanager
def _interpreting() -> Iterator[None]:
    """Inside, `import triton` gives the interpreter: also the imports in Triton's own functions."""
    with _lock:
        outside = {name: module for name, module in sys.modules.items() if _is_ours(name)}
        variable = os.environ.get(VARIABLE)
        _swap(outside, _modules)
        os.environ[VARIABLE] = "1"
        try:
            yield
        finally:
            _modules.update({name: module for name, module in sys.modules.items() if _is_ours(name)})
            _swap(_modules, outside)
            if variable is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = variable


def _swap(gone: Mapping[str, ModuleType], come: Mapping[str, ModuleType]) -> None:
    for name in list(gone):
        sys.modules.pop(name, None)
    sys.modules.update(come)


@cache
def interpreter() -> Any:
    """Triton's interpreter. Raises UnsupportedTargetError where Triton is not installed."""
    triton_version()
    with _interpreting():
        from triton.runtime import interpreter as found
    widen_products(found)
    reduce_by_halves(found)
    remember_dtypes(found)
    return found


class InterpretedKernel:
    """A printed kernel, ready to run."""

    def __init__(self, kernel: GpuKernelObject) -> None:
        self.kernel = kernel
        self._run: Callable[..., Any] = _function(kernel)

    def run(self, grid: tuple[int, int, int], arguments: Sequence[int | float]) -> None:
        """Runs all programs of the grid in turn. `arguments` as `runtime.device.LaunchOf` has them.

        Raises CompileError for what the interpreter does not know.
        """
        found = interpreter()
        with _interpreting(), numpy.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the interpreter's own numpy calls
            values = dict(_values(found, self.kernel.parameters, arguments))
            scope = found._patch_lang(self._run)
            try:
                found.interpreter_builder.set_grid_dim(*grid)
                for x, y, z in numpy.ndindex(*grid):
                    found.interpreter_builder.set_grid_idx(x, y, z)
                    self._run(**values)
            except (found.InterpreterError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
                raise CompileError(f"Triton's interpreter does not run {self.kernel.entry}: {error!r}") from error
            finally:
                scope.restore()


_numbers = itertools.count(1)


def _function(kernel: GpuKernelObject) -> Callable[..., Any]:
    """The kernel's function as the interpreter rewrites it, from source that lies in no file."""
    found = interpreter()
    with _interpreting():
        name = f"<tessera kernel {kernel.entry} {next(_numbers)}>"
        lines = kernel.source.splitlines(keepends=True)
        linecache.cache[name] = (len(kernel.source), None, lines, name)
        namespace: dict[str, Any] = {"__name__": name}
        exec(compile(kernel.source, name, "exec"), namespace)
        namespace["libdevice"] = library(found)
        namespace.update(clock_functions(found))
        made: Callable[..., Any] = namespace[kernel.entry].rewrite()
    assert isinstance(namespace[kernel.entry], found.InterpretedFunction)
    return made


def _values(
    found: Any, parameters: Sequence[GpuParameter], arguments: Sequence[int | float]
) -> Iterator[tuple[str, Any]]:
    """The arguments of the kernel's function by name."""
    numbers = iter(arguments)
    for parameter in parameters:
        if parameter.block is None:
            yield parameter.name, _tensor(found, parameter.kind, next(numbers))
            continue
        rank = len(parameter.block)
        address = next(numbers)
        extents, strides = ([int(next(numbers)) for _ in range(rank)] for _ in range(2))
        yield parameter.name, _descriptor(found, parameter, address, extents, strides)


def _tensor(found: Any, kind: str, value: int | float) -> Any:
    """A scalar or a pointer of Triton's type `kind`."""
    tl = found.tl
    element = tl.str_to_ty(kind, None)
    data = numpy.array([value], dtype=numpy.uint64 if kind.startswith("*") else found._get_np_dtype(element))
    return tl.tensor(found.TensorHandle(data, element), element)


def _descriptor(
    found: Any, parameter: GpuParameter, address: int | float, extents: Sequence[int], strides: Sequence[int]
) -> Any:
    """A tensor descriptor that the host makes."""
    tl = found.tl
    element = parameter.kind.removeprefix("tensordesc<").split("[")[0]
    semantic = found.TritonSemantic(found.interpreter_builder)
    return semantic.make_tensor_descriptor(
        base=_tensor(found, f"*{element}", address),
        shape=[_tensor(found, "i32", extent) for extent in extents],
        strides=[*(_tensor(found, "i64", stride) for stride in strides[:-1]), tl.constexpr(1)],
        block_shape=[tl.constexpr(size) for size in parameter.block or ()],
        padding_option="zero",
    )
