"""Code for Arm CPUs: what is emitted and assembled on any machine."""

from __future__ import annotations

import pytest
import torch

from tessera import errors, op, target
from tessera.backend.llvm import LLVMBackend
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.handle import Tensor
from tests.arm.emulation import new_program

_MACHINE_AARCH64 = 183  # e_machine in the header of an ELF file (ELF for the Arm 64-bit Architecture, 5.2)


def emitted(node: Tensor, cpu: target.Target, timed: bool = False) -> list[tuple[str, bytes]]:
    """Assembly and object code of each kernel of a node."""
    compiler = DeviceCompiler(cpu, LLVMBackend())
    structure, _ = node.state
    found = []
    for launch in launches_of(new_program(structure), structure, compiler):
        module = compiler.tile_ir(launch.subject, launch.schedule, timed)
        text = compiler.backend.emit(module, cpu, "asm")
        assert isinstance(text, str)
        found.append((text, compiler.backend.compile(module, cpu, keep=False).code))
    return found


@pytest.mark.parametrize("name", target.ARM_CPUS)
def test_a_product_is_made_of_fused_multiply_adds_of_whole_vectors(name: str) -> None:
    a, b = op.tensor(torch.randn(64, 64)), op.tensor(torch.randn(64, 64))
    ((text, code),) = emitted(op.relu(op.matmul(a, b)), target.arm_cpu(name))
    assert text.count("fmla\tv") > 50
    assert "ymm" not in text
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == _MACHINE_AARCH64


def test_accumulators_of_a_product_stay_in_registers() -> None:
    a, b = op.tensor(torch.randn(512, 512)), op.tensor(torch.randn(512, 512))
    ((text, _),) = emitted(op.matmul(a, b), target.arm_cpu("neoverse-n1"))
    lines = text.splitlines()
    loops = [index for index, line in enumerate(lines) if "fmla" in line]
    inner = lines[loops[0] : loops[0] + 60]
    assert not any("Folded Spill" in line or "Folded Reload" in line for line in inner)


def test_a_normalization_uses_vectors() -> None:
    ((text, _),) = emitted(op.layer_norm(op.tensor(torch.randn(30, 100))), target.arm_cpu("neoverse-n1"))
    assert ".4s" in text


def test_an_unknown_cpu_is_refused_with_the_known_ones() -> None:
    with pytest.raises(errors.UnsupportedTargetError, match="no known CPU") as caught:
        target.arm_cpu("neoverse-z9")
    assert "neoverse-n1" in str(caught.value)


def test_known_cpus_have_vectors_of_128_bits() -> None:
    facts = {(cpu.vector_bits, cpu.vector_registers, cpu.unsupported_reason()) for cpu in target.ARM_CPUS.values()}
    assert facts == {(128, 32, None)}


@pytest.mark.parametrize("name", target.ARM_CPUS)
def test_timed_builds_read_the_counter_that_programs_may_read(name: str) -> None:
    product = op.matmul(op.tensor(torch.randn(64, 64)), op.tensor(torch.randn(64, 64)))
    ((timed, code),) = emitted(product, target.arm_cpu(name), timed=True)
    assert timed.lower().count("cntvct_el0") == 2
    assert code[:4] == b"\x7fELF"
    ((usual, _),) = emitted(product, target.arm_cpu(name))
    assert "cntvct_el0" not in usual.lower()
