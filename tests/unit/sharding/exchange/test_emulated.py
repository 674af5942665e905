"""What collectives give, of ranks that are all in this process: every communicator is compared with it."""

from __future__ import annotations

import pytest
import torch

from tessera.errors import ArgumentError
from tessera.sharding.exchange import emulated
from tessera.sharding.exchange.communicator import Reduction, combined


def test_sums_of_halves_are_formed_in_fp32_and_rounded_once() -> None:
    parts = [torch.tensor([256.0, 0.0]), *[torch.tensor([1.0, 1.0])] * 3]

    results = emulated.all_reduce([part.bfloat16() for part in parts], "sum")

    assert [result.tolist() for result in results] == [[260.0, 3.0]] * 4  # in bf16 256 + 1 is 256, three times


@pytest.mark.parametrize(("op", "wanted"), [("sum", 9), ("min", 2), ("max", 4), ("product", 24)])
def test_reductions(op: Reduction, wanted: int) -> None:
    assert combined([torch.tensor(3), torch.tensor(2), torch.tensor(4)], op).item() == wanted


def test_averages_are_of_the_sum() -> None:
    assert combined([torch.tensor(3.0), torch.tensor(4.0)], "avg").item() == 3.5


def test_nan_of_any_rank_is_nan() -> None:
    for op in ("sum", "min", "max"):
        assert combined([torch.tensor(1.0), torch.tensor(torch.nan)], op).isnan()


def test_another_reduction_is_refused() -> None:
    with pytest.raises(ArgumentError, match="a reduction 'median'"):
        combined([torch.tensor(1.0)], "median")  # type: ignore[arg-type]


def test_uneven_and_empty_parts_are_gathered_and_scattered() -> None:
    parts = [torch.arange(3.0), torch.arange(3.0, 5.0), torch.empty(0)]

    gathered = emulated.all_gather(parts, 0, (3, 2, 0))
    scattered = emulated.reduce_scatter(gathered, 0, "sum", (3, 2, 0))

    assert [whole.tolist() for whole in gathered] == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 3
    assert [part.tolist() for part in scattered] == [[0.0, 3.0, 6.0], [9.0, 12.0], []]


def test_all_to_all_moves_a_split_from_one_dimension_to_another() -> None:
    whole = torch.arange(35.0).reshape(5, 7)
    rows, columns = [2, 2, 1], [3, 3, 1]

    parts = emulated.all_to_all(torch.split(whole, rows, 0), 1, 0, columns, rows)

    assert all(torch.equal(part, wanted) for part, wanted in zip(parts, torch.split(whole, columns, 1), strict=True))
    assert all(part.is_contiguous() for part in parts)


def test_permute_and_broadcast() -> None:
    parts = [torch.tensor([rank]) for rank in range(3)]
    assert [part.item() for part in emulated.permute(parts, 1)] == [2, 0, 1]
    assert [part.item() for part in emulated.permute(parts, -1)] == [1, 2, 0]
    assert [part.item() for part in emulated.broadcast(parts, 1)] == [1, 1, 1]


def test_results_are_fresh() -> None:
    parts = [torch.ones(2), torch.ones(2)]
    for results in (
        emulated.all_reduce(parts, "max"),
        emulated.permute(parts, 0),
        emulated.broadcast(parts, 0),
        emulated.reduce_scatter(parts, 0, "max", (1, 1)),
    ):
        for result in results:
            result.zero_()
    assert [part.tolist() for part in parts] == [[1.0, 1.0]] * 2
