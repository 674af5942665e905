"""Messages between the ranks of a running pipeline: channels, one for each pair of which one sends to the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from tessera.lazy.leaves.leaf import Leaf
from tessera.sharding.job.communicator import Handle, ProcessCommunicator
from tessera.sharding.job.job import ProcessJob
from tessera.sharding.pipeline.actions import Action, PipelineSchedule
from tessera.sharding.pipeline.borders import (
    TOLD_BYTES,
    Border,
    Crossing,
    border_read,
    message_bytes,
    packed,
    unpacked,
)
from tessera.sharding.pipeline.running import receive_of
from tessera.sharding.tensors.mesh import Mesh


class Channels:
    """The channels of one rank of a pipeline. `devices` are the job's ranks along the axis, of which this is one."""

    def __init__(self, job: ProcessJob, devices: Sequence[int]) -> None:
        self.devices, self.rank = tuple(devices), devices.index(job.rank)
        count = len(devices)
        pairs = {(rank, (rank + step) % count) for rank in range(count) for step in (1, -1)} if count > 1 else set()
        # All ranks meet in one order.
        self._channels: dict[tuple[int, int], ProcessCommunicator] = {
            pair: job.communicator([devices[each] for each in pair]) for pair in sorted(pairs) if self.rank in pair
        }
        self.everyone = job.communicator(devices)

    def to(self, rank: int) -> ProcessCommunicator:
        """The channel in which this rank sends to another."""
        return self._channels[self.rank, rank]

    def source(self, rank: int) -> ProcessCommunicator:
        """The channel in which this rank receives from another."""
        return self._channels[rank, self.rank]

    def tell(self, border: Border, stage: int, rank: int) -> None:
        """Tells another rank what comes from a stage."""
        self.to(rank).start_send(border.told(), f"what comes from stage {stage}").wait()

    def told(self, stage: int, rank: int, mesh: Mesh) -> Border:
        """What comes from a stage of another rank, to a stage on a mesh."""
        what = f"what comes from stage {stage}"
        return border_read(self.source(rank).start_receive((TOLD_BYTES,), torch.uint8, what).wait(), mesh)


class ProcessCarrier:
    """A `Carrier` of the ranks of a job. `borders[s]` is the border behind a stage, as far as this rank knows it;
    `meshes` are those of stages, in which this rank has a `place`.
    """

    def __init__(
        self,
        schedule: PipelineSchedule,
        channels: Channels,
        borders: Mapping[int, Border],
        meshes: Sequence[Mesh],
        place: int,
    ) -> None:
        self._schedule, self._channels, self._borders = schedule, channels, borders
        self._meshes, self._place = meshes, place
        self._sent: list[Handle] = []
        self._posted: dict[Action, Handle] = {}

    def actions(self, schedule: PipelineSchedule) -> Iterator[Action]:
        """See `Carrier`: those of this rank."""
        return iter(schedule.ranks[self._channels.rank])

    def send(self, action: Action, leaves: Sequence[Leaf]) -> None:
        """See `Carrier`."""
        channel = self._channels.to(self._schedule.rank_of(receive_of(action).stage))
        nbytes = message_bytes(self._crossings(action), self._meshes[action.stage], self._place)
        message = packed(leaves, self._crossings(action), self._place, channel.empty((nbytes,), torch.uint8))
        self._sent.append(channel.start_send(message, self._name(receive_of(action), action)))

    def post(self, action: Action) -> None:
        """See `Carrier`."""
        channel = self._channels.source(self._schedule.rank_of(_source(action)))
        nbytes = message_bytes(self._crossings(action), self._meshes[action.stage], self._place)
        self._posted[action] = channel.start_receive((nbytes,), torch.uint8, self._name(action, action))

    def take(self, action: Action) -> Sequence[Leaf]:
        """See `Carrier`."""
        message = self._posted.pop(action).wait()
        return unpacked(message, self._crossings(action), self._meshes[action.stage], self._place)

    def end(self) -> None:
        """See `Carrier`."""
        for handle in self._sent:
            handle.wait()
        self._sent.clear()

    def _crossings(self, action: Action) -> Sequence[Crossing]:
        """What a SEND or RECV carries."""
        own = (action.kind == "SEND") == (action.of == "F")
        border = self._borders[action.stage if own else action.stage - 1]
        return border.crossings if action.of == "F" else border.cotangents

    def _name(self, receive: Action, own: Action) -> str:
        """A message in words. Ranks whose borders differ exchange nothing: their words do, too."""
        what = "cotangents" if receive.of == "B" else "activations"
        carried = ", ".join(map(str, self._crossings(own)))
        return f"{what} of microbatch {receive.microbatch} for stage {receive.stage}: {carried}"


def _source(receive: Action) -> int:
    """The stage that a RECV comes from."""
    return receive.stage + (-1 if receive.of == "F" else 1)
