"""Meshes: devices in a grid whose axes have names."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from tessera.errors import AbstractMeshError, MeshError, NotInMeshError
from tessera.lazy.layouts import MeshShape
from tessera.sharding.exchange.communicator import StartingCommunicator
from tessera.sharding.job import is_rank

if TYPE_CHECKING:  # loading it takes a while, and most programs need none
    from torch.distributed.device_mesh import DeviceMesh

State: TypeAlias = Literal["running", "emulated", "abstract"]
"""Whether each device is a rank of the job, all are in this process, or none is there."""

BACKENDS: Final = ("auto", "emulated")


class MeshJob(Protocol):
    """The ranks of a job, as one of them sees it."""

    @property
    def rank(self) -> int:
        """This process's rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def communicator(self, ranks: tuple[int, ...]) -> StartingCommunicator:
        """The communicator of these ranks, of which this is one."""

    def spans_hosts(self, ranks: tuple[int, ...]) -> bool:
        """Whether these ranks run on several hosts."""

    def device_mesh(self, ranks: tuple[int, ...], axes: tuple[tuple[str, int], ...]) -> DeviceMesh:
        """Torch's mesh of all ranks, in this order, with these axes; all ranks ask for it."""


class Alone:
    """The job of a process that no launcher started: one rank, which exchanges nothing."""

    rank: Final = 0
    size: Final = 1

    def communicator(self, ranks: tuple[int, ...]) -> StartingCommunicator:
        """Nobody asks for one: along an axis of one device nothing moves."""
        raise AssertionError("a job of one rank exchanges nothing")

    def spans_hosts(self, ranks: tuple[int, ...]) -> bool:
        """No."""
        return False

    def device_mesh(self, ranks: tuple[int, ...], axes: tuple[tuple[str, int], ...]) -> DeviceMesh:
        """Nobody asks for one."""
        raise AssertionError("a process that is no rank has no process groups")


def current_job() -> MeshJob:
    """The job that this process is a rank of, which it joins where it has not yet; one of its own where nobody started
    it as a rank. Raises what `join` raises.
    """
    if not is_rank():
        return Alone()
    from tessera.sharding.job import join

    return join()


class Mesh:
    """Devices in a grid with named axes, of which the last counts fastest.

    `state` is "running" where every device is a rank of the job, "emulated" where all are in this process, and
    "abstract" where there are more devices than ranks: such a mesh plans and explains, and evaluates nothing. Without
    `devices` they are the ranks of the job; without `shape` axes are as even as they can be, the largest first. Meshes
    of equal axes, devices and state are equal; running ones, where ranks of one job exchange.

    Raises MeshError (E_MESH) for axes that make no grid of the devices.
    """

    def __init__(
        self,
        axes: Sequence[str],
        devices: Iterable[int] | None = None,
        *,
        shape: Sequence[int] | None = None,
        topology: str | None = None,
        backend: str = "auto",
        job: MeshJob | None = None,
    ) -> None:
        if backend not in BACKENDS:
            raise MeshError(f"backend={backend!r}", hints=[f"one of {', '.join(BACKENDS)}"])
        self.job: Final[MeshJob] = job or current_job()
        names = _axis_names(axes)
        extents = None if shape is None else _integers(shape, "the shape of a mesh")
        self.devices: Final = _devices(devices, self.job, extents if backend == "emulated" else None)
        if extents is None:
            extents = as_even_as_possible(len(self.devices), len(names))
        _check_grid(names, extents, len(self.devices))
        self.grid: Final = MeshShape(tuple(zip(names, extents, strict=True)))
        self.topology: Final = topology
        self.state: Final[State] = _state(self.devices, self.job, backend)
        exchanging = self.job if self.state == "running" and self.job.size > 1 else None
        self._value: Final = (self.grid, self.devices, self.state, exchanging)
        self.has_messages: Final = self.state == "emulated" or (
            exchanging is not None and exchanging.spans_hosts(self.devices)
        )
        """Whether devices exchange by messages, which travel while ranks do something else: those of several hosts do.
        On emulated meshes programs are as they are there.
        """
        self._hash: Final = hash(self._value)  # every evaluation looks programs up by their mesh

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes, in order."""
        return tuple(name for name, _ in self.grid.axes)

    @property
    def shape(self) -> Mapping[str, int]:
        """The number of devices along each axis."""
        return MappingProxyType(dict(self.grid.axes))

    @property
    def coordinates(self) -> dict[str, int]:
        """The place of this process along each axis; of the first device on a mesh that is not running. Raises
        NotInMeshError (E_NOT_IN_MESH) on a rank that the mesh has no device of.
        """
        return self.grid.coordinates(self.places[0] if self.state == "running" else 0)

    @property
    def places(self) -> Sequence[int]:
        """The places of the grid whose shards this process holds.

        Raises AbstractMeshError (E_MESH_ABSTRACT) where nobody holds any, and NotInMeshError (E_NOT_IN_MESH) on a rank
        that the mesh has no device of.
        """
        if self.state == "emulated":
            return range(self.grid.devices)
        if self.state == "abstract":
            raise AbstractMeshError(
                f"a mesh of {len(self.devices)} devices ({self.grid}) in a job of {self.job.size}: no values are there",
                hints=[
                    f"tessera run --ranks {len(self.devices)} script.py",
                    'dist.Mesh(..., backend="emulated") has all ranks in this process',
                ],
            )
        if self.is_elsewhere:
            raise NotInMeshError(f"rank {self.job.rank} has no device on the mesh of ranks {list(self.devices)}")
        return (self.devices.index(self.job.rank),)

    @property
    def is_elsewhere(self) -> bool:
        """Whether other ranks of the job have the mesh's devices, and this process none."""
        return self.state == "running" and self.job.rank not in self.devices

    def is_replaced_by(self, other: Mesh) -> bool:
        """Whether another mesh is of a job that took the place of this one's."""
        jobs = self._value[-1], other._value[-1]
        return None not in jobs and jobs[0] is not jobs[1]

    def group(self, axis: str, place: int) -> tuple[int, ...]:
        """The places that differ from one along an axis alone, in order."""
        coordinates = self.grid.coordinates(place)
        return tuple(self.grid.place({**coordinates, axis: number}) for number in range(self.grid.size(axis)))

    def __getitem__(self, key: tuple[str, int | slice]) -> Mesh:
        """The part of the mesh at some places along an axis: `mesh["ep", 0:4]`; at one place the axis is left out.

        Raises MeshError (E_MESH) for an axis or places that there are not.
        """
        axis, places = key
        if axis not in self.shape:
            raise MeshError(f"the mesh has no axis {axis!r}", hints=[f"its axes are {', '.join(self.axes)}"])
        kept = range(self.shape[axis])[places] if isinstance(places, slice) else (_one(places, self.shape[axis]),)
        grid = [(name, len(kept) if name == axis else size) for name, size in self.grid.axes]
        devices = [d for n, d in enumerate(self.devices) if self.grid.coordinates(n)[axis] in kept]
        if not devices:
            raise MeshError(f"no device is left of the axis {axis!r} at {places}")
        left = [pair for pair in grid if pair[0] != axis or isinstance(places, slice)] or [(axis, 1)]
        return Mesh(
            [name for name, _ in left],
            devices,
            shape=[size for _, size in left],
            topology=self.topology,
            backend="emulated" if self.state == "emulated" else "auto",
            job=self.job,
        )

    @classmethod
    def from_torch(cls, device_mesh: DeviceMesh) -> Mesh:
        """The mesh of the ranks of a DeviceMesh of torch's, with its axes. Raises MeshError (E_MESH) for one without
        names of axes, and for one that is not of CPUs, whose memory ranks exchange.
        """
        names = device_mesh.mesh_dim_names
        if not names:
            raise MeshError("a DeviceMesh whose axes have no names", hints=['mesh_dim_names=("dp", "tp")'])
        if device_mesh.device_type != "cpu":
            raise MeshError(f"a DeviceMesh of {device_mesh.device_type}", hints=['init_device_mesh("cpu", ...)'])
        grid = device_mesh.mesh
        return cls(names, grid.flatten().tolist(), shape=tuple(grid.shape))

    def to_torch(self) -> DeviceMesh:
        """The DeviceMesh of torch's over the same ranks, made once: torch makes process groups for its axes then, so
        that all ranks of the job ask for it. Raises MeshError (E_MESH) for a mesh that is not running, and for one of
        some of the job's ranks, which torch cuts out of that of all.
        """
        if self.state != "running" or isinstance(self.job, Alone):
            state = "of a process that is no rank" if self.state == "running" else self.state
            raise MeshError(f"a DeviceMesh of a mesh that is {state}", hints=["tessera run --ranks N script.py"])
        if sorted(self.devices) != list(range(self.job.size)):
            raise MeshError(
                f"a DeviceMesh of the ranks {list(self.devices)} of {self.job.size}",
                hints=['the whole mesh has one, and torch cuts it: mesh.to_torch()["tp"]'],
            )
        made = _device_meshes.get(self)
        if made is None:
            made = _device_meshes[self] = self.job.device_mesh(self.devices, tuple(self.grid.axes))
        return made

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Mesh) and self._value == other._value)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Mesh({self.grid}, {self.state})"


def as_even_as_possible(devices: int, axes: int) -> tuple[int, ...]:
    """Factors of a number of devices, the largest first, whose largest is as small as it can be, and so on: 72 over
    three axes are 6, 4 and 3.
    """
    if axes == 1:
        return (devices,)
    best: tuple[int, ...] | None = None
    for size in range(math.ceil(devices ** (1 / axes) - 1e-9), devices + 1):
        if devices % size == 0:
            rest = as_even_as_possible(devices // size, axes - 1)
            if rest[0] <= size and (best is None or (size, *rest) < best):
                best = (size, *rest)
    assert best is not None, "a number divides itself"
    return best


def _axis_names(axes: Sequence[str]) -> tuple[str, ...]:
    names = tuple(axes) if not isinstance(axes, str) else ()
    if not names or not all(str(name).isidentifier() for name in names):
        raise MeshError(f"axes {axes!r}", hints=['a list of names: axes=["tp", "dp"]'])
    if len(set(names)) != len(names):
        raise MeshError(f"axes {list(names)}: a name occurs twice")
    return names


def _integers(values: Iterable[int], what: str) -> tuple[int, ...]:
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError as error:
        raise MeshError(f"{values!r} as {what}, which is several integers") from error


def _devices(devices: Iterable[int] | None, job: MeshJob, extents: tuple[int, ...] | None) -> tuple[int, ...]:
    """The numbers of the devices; without any those of the job's ranks, on an emulated mesh as many as it needs."""
    if devices is None:
        return tuple(range(job.size if extents is None else math.prod(extents)))
    numbers = _integers(devices, "devices")
    if not numbers or min(numbers) < 0 or len(set(numbers)) != len(numbers):
        raise MeshError(f"devices {list(numbers)}", hints=["distinct numbers of ranks, one or more"])
    return numbers


def _check_grid(names: Sequence[str], extents: Sequence[int], devices: int) -> None:
    if len(extents) != len(names):
        raise MeshError(f"shape {tuple(extents)} for the axes {', '.join(names)}", hints=["an extent for each axis"])
    if min(extents) < 1 or math.prod(extents) != devices:
        raise MeshError(
            f"shape {tuple(extents)} for {devices} devices",
            hints=["leave shape= out: the devices are then shared out as evenly as they can be"],
        )


def _state(devices: Sequence[int], job: MeshJob, backend: str) -> State:
    if backend == "emulated":
        return "emulated"
    return "running" if all(device < job.size for device in devices) else "abstract"


def _one(place: int, size: int) -> int:
    number = operator.index(place)
    if not -size <= number < size:
        raise MeshError(f"place {number} along an axis of {size} devices")
    return number % size


_device_meshes: Final[dict[Mesh, DeviceMesh]] = {}
