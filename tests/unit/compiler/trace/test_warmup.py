"""What is compiled before calls come, and limits of what is compiled afterwards.

Equal expressions share their kernels in a process: those here occur in no other test.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tessera
from tessera import op
from tessera.compiler.trace.limits import CompilationLimitWarning
from tessera.compiler.trace.tracing import TracedFunction
from tessera.errors import ArgumentError, CompilationLimitError, DeviceError, DTypeError

CHAINS = itertools.permutations((op.atan, op.asinh, op.expm1, op.erf), 3)


def new_map() -> Callable[[Any], Any]:
    """A map of elements that no other test has; 0 stays 0."""
    first, second, third = next(CHAINS)
    return lambda x: third(second(first(x)))


@pytest.fixture
def scaled() -> TracedFunction[..., Any]:
    own = new_map()

    def scaled(x: Any, factor: Any = 2.0, *, shift: bool = False) -> Any:
        y = own(x) * factor
        return y + 1 if shift else y

    return op.kernel(scaled)


def expected(x: torch.Tensor, kernel: Callable[..., Any]) -> torch.Tensor:
    """What the function gives where it is no kernel."""
    return kernel.__wrapped__(op.tensor(x)).torch()  # type: ignore[attr-defined, no-any-return]


def test_calls_after_a_warmup_compile_nothing(scaled: TracedFunction[..., Any]) -> None:
    scaled.warmup([[(4, 8)], [(4, 8), 0.5], [torch.zeros(4, 8, dtype=torch.float64)]])
    compiled = scaled.compilations()
    assert len(compiled) == 3
    scaled.limit_compilations(0)
    x = torch.randn(4, 8)
    torch.testing.assert_close(scaled(x).torch(), expected(x, scaled))
    for arguments in ((x, 0.25), (x.double(),), (op.tensor(x).eval(),)):
        scaled(*arguments).eval()
    assert scaled.compilations() == compiled


def test_dtypes_and_devices_of_shapes_are_given_beside_them(scaled: TracedFunction[..., Any]) -> None:
    scaled.warmup([[(4, 8)]], dtype="bf16")
    scaled.warmup([[(4, 8)]], dtype=torch.float64)
    assert [row.reason.partition("[")[0] for row in scaled.compilations()] == [
        "first call, with bf16",
        "new dtypes: fp64",
    ]
    with pytest.raises(DTypeError):
        scaled.warmup([[(4, 8)]], dtype="fp33")
    with pytest.raises(DeviceError):
        scaled.warmup([[(4, 8)]], device="tpu")


def test_of_several_results_each_is_compiled_and_all_together() -> None:
    own = new_map()
    both = op.kernel(lambda x: (own(x), own(x) + 2, x))
    both.warmup([[(4, 8)]])
    both.limit_compilations(0)
    first, second, third = both(torch.zeros(4, 8))
    tessera.eval(first, second)
    assert [each.tolist()[0][0] for each in (first, second, third)] == [0.0, 2.0, 0.0]


def test_methods_are_warmed_up_with_their_object() -> None:
    class Model:
        own = staticmethod(new_map())

        @op.kernel
        def forward(self, x: Any) -> Any:
            return self.own(x)

    Model.forward.warmup([[Model(), (4, 8)]])
    assert len(Model.forward.compilations()) == 1


def test_what_is_no_call_is_refused(scaled: TracedFunction[..., Any]) -> None:
    with pytest.raises(ArgumentError, match=r"\(4, 8\) is no call[\s\S]*of one operand"):
        scaled.warmup([(4, 8)])
    with pytest.raises(ArgumentError, match=r"\('a', 8\) is no shape"):
        scaled.warmup([[("a", 8)]])
    with pytest.raises(ArgumentError, match=r"\(-1, 8\) is no shape"):
        scaled.warmup([[(-1, 8)]])
    with pytest.raises(ArgumentError, match="takes 2 operands"):
        scaled.warmup([[(4, 8), 1.0, 2.0, 3.0]])


def test_beyond_a_limit_a_call_is_refused_before_anything_is_compiled(scaled: TracedFunction[..., Any]) -> None:
    scaled(torch.zeros(4, 8)).eval()
    scaled.limit_compilations(1)
    scaled(torch.zeros(4, 8).double()).eval()
    compiled = scaled.compilations()
    for _ in range(2):  # the second call is as the first one
        with pytest.raises(CompilationLimitError, match=r"which is 1: new dtypes: bf16\[\?x\?\]") as refused:
            scaled(torch.zeros(4, 8).bfloat16())
        assert __file__ in str(refused.value.where)
    assert scaled.compilations() == compiled
    scaled.limit_compilations(None)
    scaled(torch.zeros(4, 8).bfloat16()).eval()
    assert len(scaled.compilations()) == len(compiled) + 1


def test_calls_that_were_only_traced_before_the_limit_are_looked_at(scaled: TracedFunction[..., Any]) -> None:
    x = torch.zeros(4, 8)
    scaled(x)
    scaled.limit_compilations(0)
    with pytest.raises(CompilationLimitError):
        scaled(x)


def test_a_limit_may_warn_at_the_users_line(scaled: TracedFunction[..., Any]) -> None:
    scaled.limit_compilations(0, beyond="warn")
    with pytest.warns(CompilationLimitWarning, match="compiles 1 of 1 kernels since the limit, which is 0") as warned:
        scaled(torch.zeros(4, 8)).eval()
    assert [warning.filename for warning in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled(torch.zeros(5, 8)).eval()


def test_what_is_no_limit_is_refused(scaled: TracedFunction[..., Any]) -> None:
    for most in (-1, 1.5, True):
        with pytest.raises(ArgumentError, match="compilations"):
            scaled.limit_compilations(most)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="beyond='raise'"):
        scaled.limit_compilations(1, beyond="raise")  # type: ignore[arg-type]
