"""Saving and loading by all ranks of a job together, through torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tessera.errors import CheckpointError, TesseraError
from tessera.sharding.checkpoints import folders
from tessera.sharding.checkpoints.pieces import Number, Pieces
from tessera.sharding.checkpoints.planners import PieceLoadPlanner, PieceSavePlanner
from tessera.sharding.job import is_rank, join
from tessera.sharding.job.beside import beside
from tessera.sharding.job.job import ProcessJob

T = TypeVar("T")


def write(folder: Path, tensors: Mapping[str, Pieces], numbers: Mapping[str, Number]) -> None:
    """Writes a checkpoint, in the place of one that there is: a collective of all ranks of the job.

    Raises CheckpointError (E_CHECKPOINT) where it cannot be written.
    """
    job = join() if is_rank() else None
    is_first = job is None or job.rank == 0
    if is_first:
        folders.cleared(folder)
    _meet(job)
    planner = PieceSavePlanner(tensors, numbers)
    writer = FileSystemWriter(folders.beside(folder))
    group = None if job is None else job.process_group

    def saved() -> None:
        save({}, storage_writer=writer, planner=planner, process_group=group, no_dist=job is None)

    _done(job, _unwrapped(saved), folder, "saves a checkpoint")
    if is_first:
        folders.put_in_place(folder)
    _meet(job)


def read(folder: Path, tensors: Mapping[str, Pieces], numbers: Mapping[str, Number]) -> Mapping[str, Number]:
    """Reads tensors into their memory; gives the numbers. A collective of all ranks of the job.

    Raises CheckpointError (E_CHECKPOINT) for a checkpoint that is not there or has no such tensor, ShapeMismatchError
    (E_SHAPE_MISMATCH) and DTypeError (E_DTYPE) for a tensor that is another there.
    """
    job = join() if is_rank() else None
    if not (folder / ".metadata").is_file():
        raise CheckpointError(f"no checkpoint at {folder}")
    planner = PieceLoadPlanner(tensors, numbers)
    reader = FileSystemReader(folder)
    group = None if job is None else job.process_group

    def loaded() -> None:
        load({}, storage_reader=reader, planner=planner, process_group=group, no_dist=job is None)

    _done(job, _unwrapped(loaded), folder, "loads a checkpoint")
    return planner.numbers


def _done(job: ProcessJob | None, call: Callable[[], None], folder: Path, doing: str) -> None:
    """Runs what may wait for other ranks. What one of them raises, all raise."""
    try:
        if job is None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it has to be
                call()
        else:
            beside(call, job.watcher, f"rank {job.rank} {doing}")
    except TesseraError:
        raise
    except (RuntimeError, OSError, ValueError, AssertionError) as error:
        raise CheckpointError(f"{folder}: {error}") from error


def _unwrapped(call: Callable[[], object]) -> Callable[[], None]:
    """A call of torch.distributed.checkpoint that raises what a rank has raised in it, on every rank."""

    def run() -> None:
        try:
            call()
        except CheckpointException as failure:
            raise next(iter(failure.failures.values()))[0] from failure

    return run


def _meet(job: ProcessJob | None) -> None:
    if job is not None:
        job.communicator(range(job.size)).barrier()
