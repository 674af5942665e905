"""Fourier transforms over dimensions that devices split: what torch gives, in how many exchanges, and in pieces."""

from __future__ import annotations

import pytest
import torch

from tessera import Tensor, dist, graph, op
from tessera.ops.spectral.spelling import LONG
from tessera.sharding.exchange import communication
from tessera.sharding.exchange.communication import CommunicationOptions
from tessera.sharding.partitioning.chunking import chunked
from tessera.sharding.partitioning.program import Compute
from tessera.sharding.partitioning.schedule import Evaluate, OverlapLimits, Start, schedule_of
from tessera.sharding.tensors.properties import program_of
from tests.mesh.references import by_references
from tests.mesh.spectra import Splits, faults, numbers

ROWS, COLUMNS = dist.ShardSpec((0,), ("x",)), dist.ShardSpec((1,), ("x",))


def on(*grid: int) -> dist.Mesh:
    return dist.Mesh(["x", "y", "z"][: len(grid)], shape=grid, backend="emulated")


@pytest.mark.parametrize(
    ("grid", "shape", "splits", "sizes"),
    [
        ((4,), (12, 10), (("x",), ()), None),  # slabs
        ((3,), (7, 5), ((), ("x",)), (8, 6)),
        ((2, 2), (5, 7, 11), (("x",), ("y",), ()), None),  # pencils of odd extents
        ((2, 2), (5, 7, 11), ((), ("x",), ("y",)), (8, 5, 13)),
        ((2, 3), (7, 5, 4), ((), (), ("x", "y")), None),
        ((2, 2), (3, 5, 4, 6), (("y",), (), ("x",), ()), None),  # of several volumes
        ((5,), (3, 2), (("x",), ()), None),  # more devices than there are rows
        ((4,), (13,), (("x",),), None),  # a prime number of points
    ],
)
def test_transforms_are_those_of_torch(
    grid: tuple[int, ...], shape: tuple[int, ...], splits: Splits, sizes: tuple[int, ...] | None
) -> None:
    with by_references():
        assert list(faults(on(*grid), shape, splits, sizes)) == []


def moves(made: Tensor) -> list[str]:
    (program,) = graph.explain(made).meshes
    return [move.step for move in program.moves if move.bytes]


def test_a_filter_takes_two_exchanges_and_ends_as_it_began() -> None:
    mesh = on(4)
    x = dist.distribute(numbers((12, 10), torch.float64), ROWS, mesh)
    response = dist.distribute(numbers((12, 6), torch.float64), COLUMNS, mesh)
    spectrum = op.rfft2(x)
    filtered = op.irfft2(spectrum * response, (12, 10))
    assert moves(spectrum) == ["AllToAll[x]"]
    assert moves(filtered) == ["AllToAll[x]"] * 2
    assert (str(spectrum.layout), str(filtered.layout)) == ("-, x", "x, -")
    assert moves(op.irfft2(spectrum.reshard(ROWS), (12, 10)).reshard(ROWS)) == ["AllToAll[x]"] * 4


@pytest.mark.parametrize("points", [LONG, 3 * LONG])
def test_a_long_signal_is_transformed_by_rows_and_columns(points: int) -> None:
    signal = numbers((points,), torch.complex128)
    x = dist.distribute(signal, ROWS, on(4))
    for made, wanted in ((op.fft(x), torch.fft.fft(signal)), (op.ifft(x), torch.fft.ifft(signal))):
        assert moves(made) == ["AllToAll[x]"] * 3
        assert str(made.layout) == "x"
        with by_references():
            torch.testing.assert_close(made.full().torch(), wanted, rtol=1e-12, atol=1e-11)


def test_a_long_filter_leaves_out_two_of_six_exchanges() -> None:
    mesh = on(4)
    signal, response = (numbers((LONG,), dtype) for dtype in (torch.complex128, torch.float64))
    x = dist.distribute(signal, ROWS, mesh)
    spectrum = torch.fft.fft(signal)
    for kept, exchanges in ((None, 4), (ROWS, 5)):  # the response takes one where its points lie otherwise
        k = dist.distribute(response, kept, mesh)
        made = op.ifft(op.fft(x) * k)
        assert moves(made) == ["AllToAll[x]"] * exchanges
        assert str(made.layout) == "x"
        with by_references():
            torch.testing.assert_close(made.full().torch(), torch.fft.ifft(spectrum * response), rtol=1e-12, atol=1e-11)
    # What reads points in their order has them so, and what transforms them has no need of it.
    z = op.fft(x)
    both = op.sum(op.abs(z)) + op.sum(op.abs(op.fft(z * z)))
    assert moves(both) == ["AllToAll[x]"] * 5 + ["AllReduce[x]"]
    with by_references():
        wanted = spectrum.abs().sum() + torch.fft.fft(spectrum * spectrum).abs().sum()
        torch.testing.assert_close(both.full().torch(), wanted, rtol=1e-12, atol=0)


def test_signals_that_may_be_split_otherwise_are_exchanged_once() -> None:
    x = dist.distribute(numbers((6, LONG), torch.complex128), COLUMNS, on(4))
    made = op.fft(x)
    assert moves(made) == ["AllToAll[x]"]
    assert str(made.layout) == "x, -"


@pytest.mark.parametrize(
    ("shape", "splits"),
    [((12, 10), (("x",), ())), ((2, 6, 4, 3), ((), (), ("x",), ()))],  # along rows, and along a third dimension
)
def test_pieces_travel_while_others_are_transformed(shape: tuple[int, ...], splits: Splits) -> None:
    spec = dist.ShardSpec([d for d, axes in enumerate(splits) if axes], [axes for axes in splits if axes])
    whole = numbers(shape, torch.complex128)
    made = op.fft2(dist.distribute(whole, spec, on(2)))
    program = chunked(program_of(made.structure), 3)
    steps = schedule_of(program, OverlapLimits(worth_flops=0, bucket_bytes=0, chunk=3))
    told = ""
    for step in steps:
        if isinstance(step, Evaluate):
            told += "T" * sum(isinstance(program.instructions[number], Compute) for number in step.members)
        else:
            told += "S" if isinstance(step, Start) else "W"
    assert told.startswith("TSTSTS")  # a piece is on its way when the next is transformed
    assert told.count("S") == 3
    with by_references(), communication.using(CommunicationOptions(limits=OverlapLimits(worth_flops=0, chunk=3))):
        torch.testing.assert_close(made.full().torch(), torch.fft.fft2(whole))
