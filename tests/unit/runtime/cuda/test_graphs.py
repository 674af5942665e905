"""Graphs of straight lines of launches over a fake library: nodes, edges, updates, and what is destroyed."""

from __future__ import annotations

import gc
import struct

import pytest

from tessera.backend.contract import GpuParameter, LaunchFacts
from tessera.errors import ArgumentError, DeviceFaultError, DriverError
from tessera.runtime.cuda import structures as cuda
from tessera.runtime.cuda.graphs import CudaGraph
from tessera.runtime.devices.device import LaunchOf
from tests.unit.runtime.cuda.fake import FakeCuda, HostAllocator, driver, kernel

POINTER = GpuParameter("x", "*fp32", 0, divisor=16)
SIZE = GpuParameter("n", "i32", 0, "size")
SIZES = (8, 4, 8, 8)


def line(
    fake: FakeCuda, count: int, allocator: HostAllocator | None = None, launch: LaunchFacts | None = None
) -> CudaGraph:
    """A graph of `count` launches of two kernels in turn, launch i with grid (i + 1, 2, 3) and arguments (16 i, i)."""
    device = driver(fake, allocator)
    loaded = [device.load(kernel(POINTER, SIZE, entry=name, launch=launch)) for name in ("even", "odd")]
    return device.record([LaunchOf(loaded[i % 2], (i + 1, 2, 3), (16 * i, i)) for i in range(count)])


def test_a_graph_is_a_line_of_kernel_nodes() -> None:
    fake = FakeCuda(SIZES)
    graph = line(fake, 5)
    assert len(graph) == 5
    nodes = [fake.nodes[handle] for handle in fake.order]  # the fake checks each edge
    assert [node.grid for node in nodes] == [(i + 1, 2, 3) for i in range(5)]
    assert [node.parameters[:2] for node in nodes] == [
        [struct.pack("<Q", 16 * i), struct.pack("<i", i)] for i in range(5)
    ]
    assert nodes[0].function == nodes[2].function != nodes[1].function
    assert {(node.block, node.shared) for node in nodes} == {((128, 1, 1), 1024)}
    assert not fake.problems


def test_no_stream_is_captured() -> None:
    fake = FakeCuda(SIZES)
    line(fake, 3).launch(0)
    assert not [name for name in fake.names() if "Capture" in name]


def test_launching_a_thousand_kernels_is_one_call() -> None:
    fake = FakeCuda(SIZES)
    graph = line(fake, 1000)
    before = len(fake.calls)
    graph.launch(17)
    (context, launched) = fake.calls[before:]
    assert context[0] == "cuCtxGetCurrent"
    (executable,) = [given[0] for name, given in fake.calls if name == "cuGraphInstantiateWithFlags"]
    assert executable
    assert launched[0] == "cuGraphLaunch"
    assert launched[1][1] == 17


def test_an_update_changes_one_node_and_nothing_else() -> None:
    fake = FakeCuda(SIZES)
    graph = line(fake, 4)
    before = dict(fake.nodes)
    calls = len(fake.calls)
    graph.update(2, (9, 1, 1), (0x4000, 77))
    changed = fake.order[2]
    assert fake.nodes[changed].grid == (9, 1, 1)
    assert fake.nodes[changed].parameters[:2] == [struct.pack("<Q", 0x4000), struct.pack("<i", 77)]
    assert {handle: node for handle, node in fake.nodes.items() if handle != changed} == {
        handle: node for handle, node in before.items() if handle != changed
    }
    assert [name for name, _ in fake.calls[calls:] if "Graph" in name] == ["cuGraphExecKernelNodeSetParams_v2"]


@pytest.mark.parametrize(
    ("grid", "arguments"),
    [((1, 1, 1), (16,)), ((1, 1, 1), (8, 1)), ((1, 1, 1), (16, 2**31)), ((1, 70_000, 1), (16, 1))],
)
def test_a_refused_update_leaves_the_graph_as_it_was(grid: tuple[int, int, int], arguments: tuple[int, ...]) -> None:
    fake = FakeCuda(SIZES)
    graph = line(fake, 2)
    before = dict(fake.nodes)
    with pytest.raises(ArgumentError):
        graph.update(1, grid, arguments)
    assert fake.nodes == before


def test_a_launch_without_programs_is_switched_off_and_on_again() -> None:
    fake = FakeCuda(SIZES)
    device = driver(fake)
    loaded = device.load(kernel(POINTER, SIZE))
    graph = device.record([LaunchOf(loaded, (2, 1, 1), (0, 1)), LaunchOf(loaded, (0, 1, 1), (0, 0))])
    assert fake.disabled == {fake.order[1]}
    graph.update(1, (4, 1, 1), (16, 1))
    assert fake.disabled == set()
    graph.update(0, (0, 5, 1), (16, 1))
    assert fake.disabled == {fake.order[0]}


def test_clusters_are_attributes_of_nodes_and_dependent_launches_are_not() -> None:
    fake = FakeCuda(SIZES)
    _graph = line(fake, 1, launch=LaunchFacts(clusters=2, cooperative=True, dependent=True))
    node = fake.nodes[fake.order[0]]
    assert node.grid == (2, 2, 3)
    assert struct.unpack_from("<III", node.attributes[cuda.ATTRIBUTE_CLUSTER_DIMENSION]) == (2, 1, 1)
    assert node.attributes.keys() == {
        cuda.ATTRIBUTE_COOPERATIVE,
        cuda.ATTRIBUTE_CLUSTER_DIMENSION,
        cuda.ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
    }


def test_scratch_memory_is_the_graphs_own_and_grows_with_the_grid() -> None:
    fake, allocator = FakeCuda(SIZES), HostAllocator()
    graph = line(fake, 1, allocator, LaunchFacts(scratch_bytes=128, scratch_alignment=128))
    needed = 6 * 128 + 128
    assert allocator.given == [(needed, None)]
    first = fake.nodes[fake.order[0]].parameters[2]
    graph.update(0, (1, 2, 3), (16, 1))
    assert fake.nodes[fake.order[0]].parameters[2] == first
    graph.update(0, (2, 2, 3), (16, 1))
    assert allocator.given[1:] == [(2 * 6 * 128 + 128, None)]
    graph.launch(23)
    del graph
    gc.collect()
    # What a launch under way may still use is given back behind it, the outgrown memory included.
    assert [stream for _, stream in allocator.kept] == [23, 23]


def test_a_graph_is_destroyed_with_its_object() -> None:
    fake = FakeCuda(SIZES)
    graph = line(fake, 2)
    del graph
    gc.collect()
    assert [name for name in fake.names() if "Destroy" in name] == ["cuGraphExecDestroy", "cuGraphDestroy"]


def test_a_graph_that_cannot_be_made_leaves_nothing_behind() -> None:
    fake = FakeCuda(SIZES)
    fake.results["cuGraphInstantiateWithFlags"] = 801
    with pytest.raises(DriverError, match="cuGraphInstantiateWithFlags: CUDA_ERROR_NOT_SUPPORTED"):
        line(fake, 2)
    gc.collect()
    assert [name for name in fake.names() if "Destroy" in name] == ["cuGraphDestroy"]


def test_a_fault_at_a_launch_of_a_graph_is_said() -> None:
    fake = FakeCuda(SIZES)
    graph = line(fake, 3)
    fake.results["cuGraphLaunch"] = 700
    with pytest.raises(DeviceFaultError, match="launching a graph of 3 kernels: CUDA_ERROR_ILLEGAL_ADDRESS"):
        graph.launch(0)


def test_an_empty_graph_can_be_launched() -> None:
    fake = FakeCuda(SIZES)
    graph = driver(fake).record([])
    graph.launch(1)
    assert fake.names()[-1] == "cuGraphLaunch"
