"""Running whole plans as code of an Arm CPU, under QEMU's user-mode emulator.

A plan's kernels are compiled for the CPU and linked with `ENTRY`, a program without a library under it: it maps
memory at a fixed address, reads an image of it from its input, runs every step of the plan, every worker of a step one
after the other, and writes the image to its output. The image holds the address table, the steps with their
descriptors, the operands, the results (poisoned) and the workspaces, all with the addresses that they have there.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import torch
from xdsl.dialects.builtin import StringAttr

from tessera.backend.contract import KernelObject
from tessera.backend.llvm import LLVMBackend
from tessera.compiler.bind.binding import bind
from tessera.compiler.bind.launches import Launch, Memory, PlanCompiler
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.graph.program import Program
from tessera.compiler.graph.programs import Programs
from tessera.handle import Tensor
from tessera.ir.tile.operations import find_kernel
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.structures.structure import Structure
from tessera.lazy.structures.symbolic import symbolic_form
from tessera.rewrite.passes import ALL_IDIOMS, graph_passes
from tessera.target import Target

EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
ASSEMBLER, LINKER = "aarch64-linux-gnu-as", "aarch64-linux-gnu-ld"

_BASE = 0x4000_0000
_CAPACITY = 64 << 20
_ALIGNMENT = 64
_POISON = 0xA5
_HEADER = struct.Struct("<4q")  # bytes of the image, address of the table, of the steps, number of steps
_STEP = struct.Struct("<4q")  # kernel, descriptors, workers, workspace

ENTRY = f"""
    .equ BASE, {_BASE:#x}
    .equ CAPACITY, {_CAPACITY:#x}
    .globl _start
_start:
    ldr x0, =BASE
    ldr x1, =CAPACITY
    mov x2, #3                  // readable and writable
    mov x3, #0x32               // private, fixed, anonymous
    mov x4, #-1
    mov x5, #0
    mov x8, #222
    svc #0
    mov x19, #63                // read
    mov x20, #0
    ldr x21, =CAPACITY
    bl transfer
    ldr x22, =BASE
    ldp x21, x23, [x22]         // bytes, table
    ldp x24, x25, [x22, #16]    // steps, how many are left
step:
    cbz x25, end
    ldr x26, [x24]              // number of the kernel
    ldr x27, =kernels
    ldr x26, [x27, x26, lsl #3]
    mov x28, #0                 // worker
worker:
    mov x0, x23
    ldr x1, [x24, #8]
    mov x2, x28
    ldr x3, [x24, #16]
    ldr x4, [x24, #24]
    blr x26
    add x28, x28, #1
    ldr x3, [x24, #16]
    cmp x28, x3
    b.lt worker
    add x24, x24, #32
    sub x25, x25, #1
    b step
end:
    mov x19, #64                // write
    mov x20, #1
    bl transfer
    mov x0, #0
    mov x8, #93
    svc #0
transfer:                       // x21 bytes at BASE, or up to the end of the input, by call x19 on file x20
    ldr x9, =BASE
    add x10, x9, x21
next:
    mov x0, x20
    mov x1, x9
    sub x2, x10, x9
    mov x8, x19
    svc #0
    cmp x0, #0
    b.le done
    add x9, x9, x0
    cmp x9, x10
    b.lt next
done:
    ret
    .ltorg
    .data
    .balign 8
kernels:
"""
"""Linux's system calls on AArch64: 63 read, 64 write, 93 exit, 222 mmap."""


def missing_tools() -> str | None:
    """What an emulation needs and this machine lacks, in words; None where all is there."""
    for names in (EMULATORS, (ASSEMBLER,), (LINKER,)):
        if not any(shutil.which(name) for name in names):
            return f"none of {', '.join(names)} is installed (Debian: qemu-user-static, binutils-aarch64-linux-gnu)"
    return None


class _EmulatedPlan(NamedTuple):
    """What `DeviceCompiler.plan` makes here: steps as objects for the CPU, and where their tensors lie."""

    steps: Sequence[tuple[KernelObject, Sequence[int], int]]
    memory: Memory


class ArmCompiler(DeviceCompiler):
    """A compiler whose plans hold objects for the CPU instead of loaded kernels."""

    def __init__(self, target: Target) -> None:
        super().__init__(target, LLVMBackend())

    def plan(self, launches: Sequence[Launch], memory: Memory) -> _EmulatedPlan:  # type: ignore[override]
        """The steps as objects; nothing is loaded."""
        steps: list[tuple[KernelObject, Sequence[int], int]] = []
        for launch in launches:
            words: list[int] = []
            for view, own in launch.call.arguments:
                words.append(view.storage.slot)
                if not view.is_scalar:
                    words += [view.storage.offset + view.offset_bytes, *own]
            module = self.tile_ir(launch.choice.subject, launch.choice.schedule)
            find_kernel(module).attributes["sym_name"] = StringAttr(f"kernel{len(steps)}")
            kernel = self.backend.compile(module, self.target, keep=False)
            steps.append((kernel, words, launch.choice.workers))
        return _EmulatedPlan(steps, memory)


def new_program(structure: Structure) -> Program:
    """The program of a structure, shared with no other target: a program keeps what is compiled of it."""
    return Programs(symbolic_form(structure), lambda most: graph_passes(idioms=most)).with_idioms(ALL_IDIOMS)


def emulated(node: Tensor, target: Target, folder: Path) -> torch.Tensor:
    """The value of a node, computed by code for `target`. `folder` takes the program."""
    structure, leaves = node.state
    compiler = cast("PlanCompiler[_EmulatedPlan]", ArmCompiler(target))
    plan, _ = bind(new_program(structure), structure.post_order(), compiler)
    image = _Image()
    table = [image.place_slot(kind, number, leaves, plan.memory) for kind, number in plan.memory.slots]
    steps = b"".join(
        _STEP.pack(
            number,
            image.words(words),
            workers,
            image.reserve(kernel.workspace_bytes + _ALIGNMENT),
        )
        for number, (kernel, words, workers) in enumerate(plan.steps)
    )
    addresses = image.words(table), image.place(steps), len(plan.steps)
    memory = _run(_link([kernel for kernel, _, _ in plan.steps], target, folder), image.finished(*addresses))
    (output,) = plan.memory.outputs
    assert output.structure is not None
    start = image.results[output.number] - _BASE
    return _tensor(memory[start:], output.structure)


class _Image:
    """Memory as the program finds it, filled from its start."""

    def __init__(self) -> None:
        self.data = bytearray(_HEADER.size)
        self.results: dict[int, int] = {}
        self._arena: int | None = None

    def reserve(self, nbytes: int) -> int:
        """The address of so many poisoned bytes."""
        return self.place(bytes([_POISON]) * nbytes)

    def place(self, data: bytes) -> int:
        """The address of a copy of these bytes."""
        self.data += bytes(-len(self.data) % _ALIGNMENT)
        address = _BASE + len(self.data)
        self.data += data
        return address

    def words(self, words: Sequence[int]) -> int:
        """The address of these 64-bit words."""
        return self.place(b"".join((word & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little") for word in words))

    def place_slot(self, kind: str, number: int, leaves: Sequence[Leaf], memory: Memory) -> int:
        """The word of the address table for a slot."""
        if kind == "leaf":
            leaf = leaves[number]
            first, end = leaf.span()
            if leaf.structure.kind == "scalar":
                return leaf.address
            return self.place(ctypes.string_at(first, end - first))
        if kind == "result":
            self.results[number] = self.reserve(memory.results[number])
            return self.results[number]
        if self._arena is None:
            self._arena = self.reserve(memory.arena_bytes)
        return self._arena

    def finished(self, table: int, steps: int, count: int) -> bytes:
        """The image with its header."""
        _HEADER.pack_into(self.data, 0, len(self.data), table, steps, count)
        assert len(self.data) <= _CAPACITY, "the operands of an emulated plan must be small"
        return bytes(self.data)


def _link(kernels: Sequence[KernelObject], target: Target, folder: Path) -> Path:
    """The program of some kernels."""
    names = [kernel.entry for kernel in kernels]
    source, entry = folder / "entry.s", folder / "entry.o"
    source.write_text(ENTRY + "".join(f"    .quad {name}\n" for name in names))
    _call([ASSEMBLER, "-o", str(entry), str(source)])
    objects = []
    for name, kernel in zip(names, kernels, strict=True):
        objects.append(folder / f"{name}.o")
        objects[-1].write_bytes(kernel.code)
    program = folder / "program"
    _call([LINKER, "-static", "-o", str(program), str(entry), *map(str, objects)])
    return program


def _run(program: Path, image: bytes) -> bytes:
    emulator = next(path for path in map(shutil.which, EMULATORS) if path)
    done = subprocess.run([emulator, str(program)], input=image, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, f"the emulated program ended with {done.returncode}: {done.stderr.decode()}"
    assert len(done.stdout) == len(image)
    return done.stdout


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _tensor(data: bytes, result: Structure) -> torch.Tensor:
    """The result that lies at the start of `data`, in the order of dimensions that the plan chose for it."""
    count = torch.Size(result.shape).numel()
    elements = torch.frombuffer(bytearray(data[: count * result.dtype.itemsize]), dtype=result.dtype.torch)
    return elements.as_strided(result.shape, result.strides)
