"""What users rely on beside values: mutation, aliasing, strides, shapes that change, random numbers, errors."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tessera.torch
from tessera.errors import BackendFallbackError, CompileError, TesseraError
from tessera.integrations.torch.mapping import MAPPING, Row, table
from tessera.integrations.torch.partitions.partition import BackendWarning
from tessera.lazy import evaluation


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graphs of other tests; what is broken is an error."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BackendWarning)
        yield


def through(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function through the backend, as one graph."""
    made: Callable[..., Any] = torch.compile(function, backend="tessera", fullgraph=True, **options)
    return made


def same(function: Callable[..., Any], *arguments: Tensor) -> Any:
    """Checks a function against eager torch, what it does to its arguments included; gives the result."""
    mine, theirs = ([each.detach().clone() for each in arguments] for _ in range(2))
    found, expected = through(function)(*mine), function(*theirs)
    torch.testing.assert_close(found, expected, check_stride=True, equal_nan=True)
    torch.testing.assert_close(mine, theirs, equal_nan=True)
    return found


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a transposed result": (lambda x: (x * 2).t(), (torch.randn(3, 5),)),
    "a permuted map": (lambda x: x.permute(2, 0, 1) + 1, (torch.randn(2, 3, 4),)),
    "a repeated result": (lambda x: (x + 1).expand(4, 3), (torch.randn(1, 3),)),
    "every other element": (lambda x: (x + 1)[::2], (torch.randn(6, 3),)),
    "channels last": (lambda x: torch.relu(x) * 2, (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),)),
    "a convolution": (lambda x, w: torch.conv2d(x, w) * 2, (torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))),
    "a copy": (lambda x: x.clone(), (torch.randn(3, 4).t(),)),
    "a result twice": (lambda x: (x + 1,) * 2, (torch.randn(3),)),
    "a result and a view of it": (lambda x: [(y, y.view(6)) for y in [x + 1]], (torch.randn(2, 3),)),
    "equal results": (lambda x: (x + 1, x + 1), (torch.randn(3),)),
    "an argument": (lambda x: (x, x.view(6), x + 1), (torch.randn(2, 3),)),
    "no elements": (lambda x: (x * 2, x.sum(), x.sum(0)), (torch.randn(0, 3),)),
    "no dimensions": (lambda x: x * 2 + 1, (torch.tensor(3.0),)),
    "a map in place": (lambda x: x.mul_(2).add_(1), (torch.randn(3),)),
    "a part in place": (lambda x: x[1:].fill_(7) * 2, (torch.randn(4),)),
    "a column in place": (lambda x: x[:, 1].add_(1) * 2, (torch.randn(4, 3),)),
    "a transposed argument in place": (lambda x: x.t().mul_(3) * 2, (torch.randn(2, 3),)),
    "a read before a write": (lambda x: (x * 2, x.zero_())[0], (torch.randn(3),)),
    "an index put": (
        lambda x, i: x.index_put_((i,), torch.ones(2)) * 2,
        (torch.zeros(5), torch.tensor([1, -1])),
    ),
    "numbers of elements": (lambda x: torch.arange(x.shape[0]) + x, (torch.randn(5),)),
    "integers": (lambda x: (x + 1) * 2 - x, (torch.arange(6).view(2, 3),)),
    "truth": (lambda x: (x > 0) & ~(x > 1), (torch.randn(7),)),
    "negative indices": (lambda x, i: x[i], (torch.randn(5, 2), torch.tensor([-1, 0, -5]))),
    "two indices": (lambda x, i, j: x[i, j], (torch.randn(4, 5), torch.tensor([1, -1]), torch.tensor([0, -2]))),
    "a call of torch in the middle": (lambda x: (torch.logcumsumexp(x * 2, -1) + 1).sum(), (torch.randn(9),)),
    "bytes": (lambda x: x.float() / 255, (torch.arange(6, dtype=torch.uint8),)),
    "complex numbers": (lambda x: torch.view_as_real(torch.view_as_complex(x) * 1j) + 1, (torch.randn(3, 2),)),
    "lengths of rows": (lambda x: nn.functional.normalize(x, dim=-1) * 2, (torch.randn(3, 5),)),
    "an image enlarged": (
        lambda x: nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),
        (torch.randn(1, 2, 3, 4),),
    ),
    "an image enlarged in memory with channels last": (
        lambda x: nn.functional.interpolate(x, scale_factor=(4, 1), mode="bilinear"),
        (torch.randn(2, 5, 3, 4).to(memory_format=torch.channels_last),),
    ),
    "an image of one pixel enlarged": (
        lambda x: nn.functional.interpolate(x, size=(3, 7), mode="bilinear"),
        (torch.randn(1, 3, 1, 1),),
    ),
    "an image enlarged with its corners in place": (
        lambda x: nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        (torch.randn(1, 2, 3, 4),),
    ),
    "an image enlarged by no whole factor": (
        lambda x: nn.functional.interpolate(x, size=(7, 8), mode="bilinear"),
        (torch.randn(1, 2, 3, 4),),
    ),
    "a row enlarged": (
        lambda x: nn.functional.interpolate(x, scale_factor=3, mode="linear"),
        (torch.randn(2, 3, 5),),
    ),
    "a volume enlarged": (
        lambda x: nn.functional.interpolate(x, size=(4, 3, 10), mode="trilinear"),
        (torch.randn(1, 2, 2, 3, 5),),
    ),
    "halves enlarged": (
        lambda x: nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),
        (torch.randn(1, 2, 3, 4).bfloat16(),),
    ),
    "channels in groups": (
        lambda x, w, b: nn.functional.silu(nn.functional.group_norm(x * 3 + 1, 3, w, b)),
        (torch.randn(2, 6, 17, 19), torch.randn(6), torch.randn(6)),
    ),
    "channels in groups without weights": (
        lambda x: nn.functional.group_norm(x, 2),
        (torch.randn(2, 4, 300).to(torch.float64),),
    ),
    "an image joined to one enlarged": (
        lambda x, w, up, b: torch.conv2d(
            torch.cat([torch.relu(torch.conv2d(x, w)), torch.conv_transpose2d(x[:, :, 1:5, 1:4], up, b, 2)], 1),
            w.new_ones(2, 7, 1, 1),
        ),
        (torch.randn(1, 3, 10, 8), torch.randn(4, 3, 3, 3), torch.randn(3, 3, 2, 2), torch.randn(3)),
    ),
    "an image read at a grid": (
        lambda x, grid: nn.functional.grid_sample(x, grid, align_corners=False),
        (torch.randn(1, 2, 4, 5), torch.linspace(-1.3, 1.3, 12).view(1, 2, 3, 2)),
    ),
    "halves": (lambda x: torch.softmax(x, -1) * 2, (torch.randn(3, 5).bfloat16(),)),
    "a softmax of one number": (lambda x: torch.softmax(x, 0) + torch.log_softmax(x, 0), (torch.zeros(()),)),
    "a softmax of no number": (lambda x: torch.softmax(x, 0), (torch.full((), torch.inf),)),
    "signs": (lambda x: torch.sign(x) * 2, (torch.tensor([torch.nan, -2.0, -0.0, torch.inf]),)),
    "no argument": (lambda: torch.arange(4) * 2, ()),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_writes_are_those_of_eager(name: str) -> None:
    function, arguments = CASES[name]
    same(function, *arguments)


def test_what_is_no_number_shows_where_an_enlarged_image_weighs_it() -> None:
    x = torch.arange(15.0).view(1, 1, 3, 5)
    x[0, 0, 1, 1], x[0, 0, 2, 3] = torch.nan, torch.inf
    found = through(lambda x: nn.functional.interpolate(x, scale_factor=2, mode="bilinear"))(x)
    assert [torch.isnan(found).sum(), torch.isinf(found).sum()] == [16, 12]
    expected = nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
    finite = torch.isfinite(expected)  # eager torch also adds 0 x NaN at the edges
    torch.testing.assert_close(found[finite], expected[finite])


def test_memory_of_results_is_their_own() -> None:
    first, second = through(lambda x: (x + 1, x + 1))(torch.zeros(3))
    first.zero_()
    assert second.tolist() == [1, 1, 1]


def test_a_view_of_an_argument_is_one() -> None:
    x = torch.zeros(2, 3)
    view, _ = through(lambda x: (x.view(6), x + 1))(x)
    view[0] = 5
    assert x[0, 0] == 5


def test_arguments_are_read_at_every_call() -> None:
    double = through(lambda x: x * 2)
    x = torch.ones(3)
    double(x)
    x.fill_(4)
    assert double(x).tolist() == [8, 8, 8]


class Scaled(nn.Module):
    """A linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def _in_place(model: Scaled) -> None:
    with torch.no_grad():
        model.layer.weight.mul_(2)


def _loaded(model: Scaled) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def _other_memory(model: Scaled) -> None:
    model.layer.weight.data = torch.randn(8, 8)


def _turned(model: Scaled) -> None:
    model.layer.weight.data = model.layer.weight.data.t()


def _exchanged(model: Scaled) -> None:
    model.layer.weight = nn.Parameter(torch.randn(8, 8))


def _other_dtype(model: Scaled) -> None:
    model.double()


@pytest.mark.parametrize("change", [_in_place, _loaded, _other_memory, _turned, _exchanged, _other_dtype])
def test_a_change_of_frozen_parameters_is_seen(change: Callable[[Scaled], None]) -> None:
    model = Scaled().eval()
    frozen = through(model)
    with torch.no_grad():
        frozen(torch.randn(3, 8))
        change(model)
        x = torch.randn(3, 8, dtype=model.layer.weight.dtype)
        torch.testing.assert_close(frozen(x), model(x))


def test_changes_of_one_frozen_parameter_are_seen_by_all_graphs() -> None:
    model = Scaled().eval()
    plain, shifted = through(model), through(lambda x: model(x + 1))
    with torch.no_grad():
        x = torch.randn(3, 8)
        plain(x), shifted(x)
        model.layer.weight.data = torch.randn(8, 8)
        torch.testing.assert_close(plain(x), model(x))
        torch.testing.assert_close(shifted(x), model(x + 1))


def test_one_graph_serves_all_lengths() -> None:
    compiled = through(lambda x, w: torch.softmax(x @ w, -1).sum(0).reshape(-1, 2), dynamic=True)
    w = torch.randn(6, 8)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (4, 7, 9, 64):
            x = torch.randn(length, 6)
            torch.testing.assert_close(compiled(x, w), torch.softmax(x @ w, -1).sum(0).reshape(-1, 2))


def test_lengths_that_change_are_noticed_once() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("tessera")
    compiled = torch.compile(lambda x: (x[1:] * 2).cumsum(0) + x.shape[0], backend=counter)
    for length in (4, 7, 9, 64):
        x = torch.randn(length, 3)
        torch.testing.assert_close(compiled(x), (x[1:] * 2).cumsum(0) + length)
    assert counter.frame_count == 2


def test_results_whose_extents_depend_on_values() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        same(lambda x: torch.nonzero(x * 2 > 0) * 3 + 1, torch.tensor([1.0, -1.0, 2.0]))


def test_dropout_keeps_its_share_and_repeats_for_a_seed() -> None:
    drop = through(lambda x: torch.dropout(x, 0.3, True))
    x = torch.ones(20_000)
    torch.manual_seed(3)
    first, next_one = drop(x), drop(x)
    torch.manual_seed(3)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first, next_one)
    assert abs(float((first != 0).float().mean()) - 0.7) < 0.02
    assert set(first.unique().tolist()) == {0.0, float(torch.tensor(1.0) / torch.tensor(0.7))}


def test_dropout_by_a_seed_stores_no_mask() -> None:
    drop = through(lambda x: torch.dropout(x, 0.3, True) * 2, options={"random": "philox"})
    x = torch.ones(20_000, requires_grad=True)
    saved: list[Tensor] = []

    def save(each: Tensor) -> Tensor:
        saved.append(each)
        return each

    with torch.autograd.graph.saved_tensors_hooks(save, lambda each: each):
        y = drop(x)
    torch.autograd.backward(y, torch.ones_like(y))
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert [each.numel() for each in saved] == [1]
    assert abs(float((y != 0).float().mean()) - 0.7) < 0.02
    assert not torch.equal(drop(x), y)


def test_dropout_by_torch_is_that_of_eager() -> None:
    x = torch.rand(1000) + 1
    found = []
    for function in (through(lambda x: torch.dropout(x, 0.3, True), options={"random": "torch"}), torch.dropout):
        torch.manual_seed(3)
        found.append(function(x, *((0.3, True) if function is torch.dropout else ())))
    torch.testing.assert_close(*found)


def test_random_numbers_are_drawn_in_the_order_of_the_program() -> None:
    def both(x: Tensor) -> Tensor:
        first = torch.rand_like(torch.logcumsumexp(x + 1, -1))
        return first - torch.rand(3)

    torch.manual_seed(5)
    expected = both(torch.zeros(3))
    torch.manual_seed(5)
    assert torch.equal(through(both)(torch.zeros(3)), expected)


def test_sorts_keep_the_order_of_equal_elements() -> None:
    x = torch.tensor([2, 1] * 40)  # more than torch sorts by insertion, which keeps the order anyway
    found = through(lambda x: (torch.sort(x)[1], torch.argsort(x, stable=False), torch.sort(x, stable=True)[1]))(x)
    for each in found:
        assert torch.equal(each, torch.cat([torch.arange(1, 80, 2), torch.arange(0, 80, 2)]))


def test_an_index_out_of_range_is_an_index_error() -> None:
    pick = through(lambda x, i: x[i] * 2)
    with pytest.raises(IndexError):
        pick(torch.randn(4), torch.tensor([4]))


def test_one_index_of_two_out_of_range_is_an_index_error() -> None:
    pick = through(lambda x, i, j: x[i, j] * 2)
    with pytest.raises(IndexError):
        pick(torch.randn(4, 5), torch.tensor([0]), torch.tensor([7]))


def test_inference_tensors_and_autocast() -> None:
    model = Scaled().eval()
    compiled = through(model)
    x = torch.randn(3, 8)
    with torch.inference_mode():
        assert compiled(x).is_inference()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = compiled(x), model(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_gradients_accumulate_and_reach_inputs() -> None:
    model, x = Scaled(), torch.randn(3, 8, requires_grad=True)
    compiled = through(model)
    for _ in range(2):
        compiled(x).square().sum().backward()
    found = [x.grad, model.layer.weight.grad, model.layer.bias.grad]
    x.grad = None
    model.zero_grad()
    for _ in range(2):
        model(x).square().sum().backward()
    torch.testing.assert_close(found, [x.grad, model.layer.weight.grad, model.layer.bias.grad])


def test_checkpointed_activations() -> None:
    def gelu(x: Tensor, w: Tensor) -> Tensor:
        y: Tensor = torch.utils.checkpoint.checkpoint(lambda x: nn.functional.gelu(x @ w), x, use_reentrant=False)
        return y

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    torch.autograd.backward(through(gelu)(x, w).sum())
    found = [x.grad, w.grad]
    x.grad = w.grad = None
    torch.autograd.backward(gelu(x, w).sum())
    torch.testing.assert_close(found, [x.grad, w.grad])


def test_one_graph_runs_in_several_threads() -> None:
    compiled = through(lambda x: torch.softmax(x * 2, -1) @ x.t())
    inputs = [torch.randn(32, 32) for _ in range(4)]
    compiled(inputs[0])
    failures: list[Exception] = []

    def check(x: Tensor) -> None:
        try:
            for _ in range(20):
                torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1) @ x.t())
        except Exception as error:  # noqa: BLE001 - told by the test's thread
            failures.append(error)

    threads = [threading.Thread(target=check, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_rows_may_hold_tables_of_numbers_also_where_torch_traces_a_gradient() -> None:
    def pooled(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        most, places = nn.functional.max_pool2d(x, 2, stride=1, return_indices=True)
        return nn.functional.adaptive_avg_pool2d(x, (3, 4)), most, places

    x = torch.randn(2, 3, 7, 6, requires_grad=True)
    found, expected = through(pooled, options={"fallback": "error"})(x), pooled(x)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.stride() == theirs.stride()
    (mine,), (theirs,) = (torch.autograd.grad(pair[0].sin().sum() + pair[1].sum(), x) for pair in (found, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_bytes_and_short_integers_are_read_where_they_lie(dtype: torch.dtype) -> None:
    def scaled(x: Tensor) -> Tensor:
        return x.permute(2, 0, 1)[:, 1:].float() / 255

    x = torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1, (5, 7, 3), dtype=dtype)
    found = through(scaled, options={"fallback": "error"})(x)
    torch.testing.assert_close(found, scaled(x))
    assert found.stride() == scaled(x).stride()


def test_a_fallback_can_be_an_error_with_its_line() -> None:
    def summed_after(x: Tensor) -> Tensor:
        return torch.logcumsumexp(x * 2, -1)

    with pytest.raises(Exception) as failure:
        through(summed_after, options={"fallback": "error"})(torch.randn(64, 4))
    found: BaseException | None = failure.value
    while found is not None and not isinstance(found, BackendFallbackError):
        found = found.__cause__ or getattr(found, "inner_exception", None)
    assert isinstance(found, BackendFallbackError)
    assert "aten.logcumsumexp" in found.message
    assert "float32[64, 4]: no counterpart" in found.message
    assert found.where is not None
    assert found.where.startswith(__file__)


def test_what_is_broken_is_told_and_torch_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(x: Any) -> Any:
        raise TesseraError("no good")

    monkeypatch.setitem(table._rows, torch.ops.aten.exp.default, Row(broken, asks=False))
    assert torch.ops.aten.exp.default in MAPPING
    with pytest.warns(BackendWarning, match="no good; torch computes it"):
        found = through(lambda x: torch.exp(x) + 1)(torch.zeros(2))
    assert found.tolist() == [2, 2]


def test_what_does_not_compile_is_told_and_torch_computes_it() -> None:
    def refuse(nodes: object) -> None:
        raise CompileError("no code")

    double = through(lambda x: torch.sinh(x * 2) * 3.25)
    previous = evaluation.set_evaluator(refuse)
    try:
        with pytest.warns(BackendWarning, match="no code"):
            found = double(torch.zeros(2, 7))
        assert double(torch.zeros(2, 7)).tolist() == [[0.0] * 7] * 2
    finally:
        evaluation.set_evaluator(previous)
    assert found.tolist() == [[0.0] * 7] * 2


def test_an_explanation_says_what_torch_computes_and_why() -> None:
    def mixed(x: Tensor) -> Tensor:
        y = torch.logcumsumexp(x * 2, -1)
        torch._dynamo.graph_break()
        return y + 1

    found = tessera.torch.explain(mixed, torch.randn(5))
    assert [graph.partitions for graph in found.graphs] == [(1,), (1,)]
    (fallback,) = found.fallbacks
    assert fallback.call.startswith("aten.logcumsumexp")
    assert str(fallback.where).startswith(__file__)
    assert len(found.breaks) == 1
    assert "no counterpart; at " in str(found)


def test_torch_knows_the_backend_by_its_name() -> None:
    assert "tessera" in torch._dynamo.list_backends()
