"""CUDA graphs of straight lines of launches, built node by node: no stream is captured, so nothing else that runs
meanwhile can end up in a graph or break its recording.

Launching a graph is one call of the driver, however many kernels it has. A launch that changes is updated in the
executable graph; launches that are already under way keep what they were started with.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from ctypes import addressof, byref, c_void_p

from tessera.errors import TesseraError
from tessera.runtime.cuda import structures as cuda
from tessera.runtime.cuda.context import Context
from tessera.runtime.cuda.kernels import CudaKernel, NodeSite
from tessera.runtime.cuda.memory import DeviceAllocator, DeviceBytes
from tessera.runtime.cuda.parameters import Number
from tessera.runtime.cuda.results import SUCCESS
from tessera.runtime.devices.device import Grid

_NOTHING: Grid = (1, 1, 1)
"""The grid of a node that is switched off, because its launch has no programs: CUDA has no empty grids."""


class _Node:
    """A launch in a graph: its site, its handle in the graph, its scratch memory, and whether it runs at all."""

    def __init__(self, kernel: CudaKernel) -> None:
        self.site = NodeSite(kernel)
        self.handle = 0
        self.enabled = True
        self.scratch: DeviceBytes | None = None


class CudaGraph:
    """See `runtime.device.Graph`. Thread-safe. The memory that arguments point to is its user's to keep."""

    def __init__(
        self,
        context: Context,
        allocator: DeviceAllocator,
        launches: Sequence[tuple[CudaKernel, Grid, Sequence[Number]]],
    ) -> None:
        self._allocator = allocator
        self._last_stream = 0
        self._outgrown: list[DeviceBytes] = []
        self._nodes = [_Node(kernel) for kernel, _, _ in launches]
        self._context = context
        self._library = context.library
        self._lock = threading.Lock()
        self._launch_graph = self._library.function("cuGraphLaunch")
        self._set_parameters = self._library.function("cuGraphExecKernelNodeSetParams_v2")
        for node, (_, grid, arguments) in zip(self._nodes, launches, strict=True):
            self._describe(node, grid, arguments)
        with context.entered():
            graph = self._library.handle("cuGraphCreate", 0)
            self._executable = 0
            handles = {"graph": graph}
            # CUDA takes its graphs down itself at exit, before or after Python gets there.
            weakref.finalize(self, _destroy, context, handles).atexit = False
            self._add_nodes(graph)
            self._executable = self._library.handle("cuGraphInstantiateWithFlags", graph, 0)
            handles["executable"] = self._executable
            for node in self._nodes:
                if not node.enabled:
                    self._library.call("cuGraphNodeSetEnabled", self._executable, node.handle, 0)

    def __len__(self) -> int:
        return len(self._nodes)

    def launch(self, stream: int) -> None:
        """Runs all launches in order on a stream. Raises what the driver reports."""
        with self._lock:
            self._last_stream = stream
            code = self._context.run(self._launch_graph, self._executable, stream)
        if code != SUCCESS:
            self._library.fail(code, f"launching a graph of {len(self._nodes)} kernels")

    def update(self, index: int, grid: Grid, arguments: Sequence[Number]) -> None:
        """Changes the grid and all arguments of launch number `index` for later launches of the graph.

        Raises ArgumentError for arguments that the kernel does not take; then the graph is as it was.
        """
        node = self._nodes[index]
        with self._lock:
            enabled = node.enabled
            self._describe(node, grid, arguments)
            site, executable = node.site, self._executable
            code = self._context.run(self._set_parameters, executable, node.handle, site.node_parameters)
            if code == SUCCESS and node.enabled != enabled:
                switch = self._library.function("cuGraphNodeSetEnabled")
                code = self._context.run(switch, executable, node.handle, int(node.enabled))
        if code != SUCCESS:
            self._library.fail(code, f"updating launch {index}, kernel {site.kernel.kernel.entry}, of a graph")

    def __del__(self) -> None:
        for memory in (*self._outgrown, *(node.scratch for node in self._nodes if node.scratch is not None)):
            self._allocator.keep_for(memory, self._last_stream)

    def _describe(self, node: _Node, grid: Grid, arguments: Sequence[Number]) -> None:
        """Writes a launch into its node's site, and finds it scratch memory."""
        kernel = node.site.kernel
        empty = 0 in grid
        wanted = 0 if empty else kernel.scratch_bytes(grid)
        if wanted and (node.scratch is None or node.scratch.nbytes < wanted):
            if node.scratch is not None:
                self._outgrown.append(node.scratch)  # a launch under way may still use it
            node.scratch = self._allocator.allocate(wanted)
        scratch = node.scratch
        node.site.fill(arguments, kernel.aligned(scratch.address) if scratch is not None else 0)
        node.site.aim(_NOTHING if empty else grid)
        node.enabled = not empty

    def _add_nodes(self, graph: int) -> None:
        before = c_void_p()
        for number, node in enumerate(self._nodes):
            handle = c_void_p()
            self._library.call(
                "cuGraphAddKernelNode_v2",
                byref(handle),
                graph,
                byref(before) if number else None,
                min(number, 1),
                node.site.node_parameters,
            )
            node.handle, before = handle.value or 0, handle
            for attribute in node.site.kernel.attributes:
                # Dependent launches are overlapped by edges of their own kind; these edges order kernels completely.
                if attribute.id != cuda.ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
                    value = addressof(attribute.value)
                    self._library.call("cuGraphKernelNodeSetAttribute", node.handle, attribute.id, value)


def _destroy(context: Context, handles: dict[str, int]) -> None:
    # After a fault nothing can be destroyed any more, and nothing needs to be.
    with suppress(TesseraError), context.entered():
        if "executable" in handles:
            context.library.call("cuGraphExecDestroy", handles["executable"])
        context.library.call("cuGraphDestroy", handles["graph"])
