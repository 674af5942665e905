"""Plans over the CUDA driver, whose library is a fake: kernels are compiled for sm_90, and every byte that a launch
passes is looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tessera import op
from tessera.compiler import pipeline
from tessera.dtypes import bf16, fp32
from tessera.handle import Tensor
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import contiguous_strides
from tessera.runtime.cuda.driver import CudaDriver
from tessera.runtime.devices.device import use_driver
from tessera.runtime.plans.gpu_plan import DevicePlan
from tests.unit.runtime.cuda.fake import FakeCuda, driver

SIZES = {"i32": 4, "i64": 8, "fp32": 4}
FORMATS = {"i32": "<i", "i64": "<q", "fp32": "<f"}
ROWS, COLUMNS, DEPTH = 96, 80, 64


@pytest.fixture
def cuda() -> Iterator[tuple[FakeCuda, CudaDriver]]:
    """A fake CUDA library, and the driver over it as the device cuda:0."""
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    fake = FakeCuda()
    opened = driver(fake)
    before = use_driver("cuda:0", opened)
    yield fake, opened
    use_driver("cuda:0", before)
    pipeline.forget_plans()


POINTERS = {**dict.fromkeys(("a_indexing", "b_indexing", "out_indexing"), "pointer"), "grid": "flat"}


def tensor(address: int, *shape: int, dtype: object = bf16) -> Tensor:
    strides = contiguous_strides(shape)
    leaf = Leaf(interning.buffer(shape, strides, dtype, "cuda:0"), address, object())  # type: ignore[arg-type]
    made: Tensor = leaf_node(leaf)
    return made


def test_a_fused_product_from_the_expression_to_the_bytes_of_its_launches(cuda: tuple[FakeCuda, CudaDriver]) -> None:
    fake, _ = cuda
    a, b, bias = (1 << 20), (1 << 21), (1 << 22)
    product = op.matmul(tensor(a, ROWS, DEPTH), tensor(b, DEPTH, COLUMNS))
    result = op.relu((product + tensor(bias, COLUMNS, dtype=fp32)) * 1.75).pin(**POINTERS)
    plan = pipeline.plan(result.structure)
    assert isinstance(plan, DevicePlan)
    (step,) = plan.steps
    assert step.kernel.kernel.image.startswith(b"\x7fELF")
    parameters = step.kernel.kernel.parameters
    fake.sizes = [SIZES.get(p.kind, 8) for p in parameters] + [8, 8]  # and two pointers to scratch memory

    (found,) = plan.run(result.leaves)
    (launched,) = fake.launched
    assert launched.grid == step.grid
    assert launched.block == (step.kernel.kernel.threads, 1, 1)
    assert launched.stream == 7
    passed = {
        p.name: struct.unpack(FORMATS.get(p.kind, "<Q"), data)[0]
        for p, data in zip(parameters, launched.parameters, strict=False)
    }
    pointers = {value for name, value in passed.items() if name.endswith("_ptr")}
    assert pointers == {a, b, bias, found.address}
    assert 1.75 in passed.values()
    assert {ROWS, COLUMNS, DEPTH} >= {value for name, value in passed.items() if "_size_" in name}
    assert found.structure.device == "cuda:0"

    plan.run(result.leaves)
    (node,) = fake.nodes.values()
    assert "cuGraphInstantiateWithFlags" in fake.names()
    pairs = zip(parameters, node.parameters, launched.parameters, strict=False)
    assert all(now == then for p, now, then in pairs if not p.name.startswith("out"))
    assert len(fake.launched) == 1
    assert fake.names().count("cuGraphLaunch") == 1


def test_a_leaf_that_starts_anywhere_gets_a_kernel_that_promises_nothing_of_it(
    cuda: tuple[FakeCuda, CudaDriver],
) -> None:
    fake, _ = cuda
    result = op.exp(tensor((1 << 20) + 2, 64, 64)) * 0.5
    plan = pipeline.plan(result.structure)
    assert isinstance(plan, DevicePlan)
    relied = [p.divisor for p in plan.steps[0].kernel.kernel.parameters if p.kind.startswith("*")]
    assert relied == [16, 16]
    fake.sizes = [SIZES.get(p.kind, 8) for p in plan.steps[0].kernel.kernel.parameters] + [8, 8]
    plan.run(result.leaves)
    loaded = [call for call in fake.names() if call == "cuModuleLoadData"]
    assert len(loaded) == 2
    (launched,) = fake.launched
    assert struct.unpack("<Q", launched.parameters[0])[0] == (1 << 20) + 2
