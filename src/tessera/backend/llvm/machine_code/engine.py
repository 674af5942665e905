"""llvmlite: from LLVM IR text to assembly and objects.

LLVM's mid-level passes are not run: the emitter has done already what they would do to index arithmetic. On matrix
products and row kernels O3's passes were measured to double the time of compilation and to change no kernel by 1 %.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm

from tessera.errors import CompileError
from tessera.system import forks
from tessera.target import Target

_LEVEL = 1
"""How much code generation reorders, of 0 to 3. The emitter has put instructions where they belong; LLVM moves them
from level 2 on. Level 3 takes a tenth more time to compile; its code took, side by side on Zen 4, 1.6 times as long for
a product of one row and for sums of rows, 1.2 times for sums of two bf16 tensors, 0.95 times for gelu.
"""

lock = forks.awaited_lock()
"""Held around all work of LLVM, to the disposal of what it made: a fork in the middle of that, by another thread, would
have LLVM locked for ever.
"""


@lru_cache(maxsize=1)
def initialize() -> None:
    """Makes LLVM's code generator for this machine known; `lock` is held."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """LLVM's names of the features this CPU has."""
    with lock:
        return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def llvm_version() -> str:
    """LLVM's version, as "20.1.8"."""
    return ".".join(map(str, llvm.llvm_version_info))


def feature_string(features: frozenset[str], is_host: bool = True) -> str:
    """LLVM's way to say that a CPU has these features and, of this machine's architecture, none of the others it knows
    of here.
    """
    known = sorted(llvm.get_host_cpu_features()) if is_host else []
    return ",".join(f"{'+' if name in features else '-'}{name}" for name in [*known, *sorted(features - {*known})])


_ARM = frozenset(("aarch64", "arm64"))
_ARM_TRIPLE = "aarch64-unknown-linux-gnu"


def _is_foreign(target: Target) -> bool:
    """Whether this is an Arm CPU and the machine is none; all else is taken for what this machine runs."""
    return target.machine in _ARM and platform.machine() not in _ARM


@lru_cache(maxsize=8)
def _machine(arch: str, features: frozenset[str]) -> Any:
    initialize()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=arch, features=feature_string(features), opt=_LEVEL, jit=True)


@lru_cache(maxsize=8)
def _foreign_machine(arch: str, features: frozenset[str]) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(_ARM_TRIPLE)
    wanted = feature_string(features, is_host=False)
    return target.create_target_machine(cpu=arch, features=wanted, opt=_LEVEL, reloc="static", codemodel="small")


@contextmanager
def _prepared(text: str, target: Target) -> Iterator[tuple[Any, Any]]:
    """LLVM's module of a text, which is gone afterwards, and a machine that generates its code; `lock` is held."""
    foreign = _is_foreign(target)
    machine = (_foreign_machine if foreign else _machine)(target.arch, target.features)
    try:
        module = llvm.parse_assembly(text)
    except RuntimeError as error:
        raise CompileError(f"LLVM refuses the generated code: {error}") from error
    with module:
        module.triple = _ARM_TRIPLE if foreign else llvm.get_process_triple()
        module.data_layout = str(machine.target_data)
        yield module, machine


def assembly(text: str, target: Target) -> str:
    """The assembly of LLVM IR text. Raises CompileError when LLVM refuses it."""
    with lock, _prepared(text, target) as (module, machine):
        return str(machine.emit_assembly(module))


def compile_object(text: str, target: Target) -> bytes:
    """The relocatable object of LLVM IR text. Raises CompileError when LLVM refuses it."""
    with lock, _prepared(text, target) as (module, machine):
        return bytes(machine.emit_object(module))


@lru_cache(maxsize=1)
def host() -> tuple[str, str]:
    """Name and features of this CPU, in LLVM's words."""
    with lock:
        return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def compile_helper(text: str) -> bytes:
    """The relocatable object of LLVM IR text that a person wrote, for this CPU.

    Raises RuntimeError (from LLVM) when the text does not parse or verify.
    """
    name, features = host()
    with lock:
        initialize()
        target = llvm.Target.from_default_triple()
        with (
            target.create_target_machine(cpu=name, features=features, opt=2, jit=True) as machine,
            llvm.parse_assembly(text) as module,
        ):
            module.triple = llvm.get_process_triple()
            module.data_layout = str(machine.target_data)
            module.verify()
            return bytes(machine.emit_object(module))


class LoadedCode:
    """An object linked by LLVM, for machines that `backend/elf.py` does not link for. Addresses stay valid as long as
    this object lives.
    """

    __slots__ = ("_engine",)

    def __init__(self, code: bytes) -> None:
        with lock:
            initialize()
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _load_machine())
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            with lock:
                engine.close()

    def address(self, name: str) -> int:
        """The address of a function or variable of the code. Raises KeyError where it has none of that name."""
        with lock:
            found = int(self._engine.get_function_address(name)) or int(self._engine.get_global_value_address(name))
        if not found:
            raise KeyError(name)
        return found


def _load_machine() -> Any:
    """A machine of its own for each engine, which takes possession of it."""
    return llvm.Target.from_default_triple().create_target_machine(jit=True)
