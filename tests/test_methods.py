"""What type checkers see of the methods of tensors is what the doors say: `src/tessera/methods.pyi` is made of them.

`pytest tests/test_methods.py --update-goldens` rewrites it after a method was added.
"""

from __future__ import annotations

import inspect
import re

import pytest
import torch

from tessera import op
from tessera.doors.protocols.methods import METHODS, PROPERTIES
from tessera.handle import Tensor
from tests.imports import SOURCE

STUB = SOURCE / "tessera" / "methods.pyi"

HEAD = '''"""Methods of tensors that are functions of `op`, as type checkers see them.

Made from `doors/protocols/methods.py` by `pytest tests/test_methods.py --update-goldens`; `help(op.NAME)` says what
each does.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any, Self

from tessera.handle import Output
from tessera.ops.methods import Methods
from tessera.ops.rows.calls import Axis
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike, DTypeLike

Number = builtins.int | builtins.float

class OperatorMethods(Methods):
    """The functions of `op` whose first operand is the tensor."""

    __array_ufunc__: Callable[..., Any]
    __array_function__: Callable[..., Any]
    __array_namespace__: Callable[..., Any]
'''

BINARY = "add sub mul truediv floordiv mod pow and or xor lshift rshift"
"""Python's operators, each of which stands on either side of a tensor."""
COMPARISONS = "lt le gt ge"
UNARY = "neg pos abs invert"


def operators() -> str:
    """What type checkers see of Python's operators: they give tensors."""
    names = [f"__{side}{name}__" for name in BINARY.split() for side in ("", "r")]
    names += [f"__{name}__" for name in COMPARISONS.split()]
    binary = [f"    def {name}(self, other: object) -> Self: ...\n" for name in names]
    return "".join(binary + [f"    def __{name}__(self) -> Self: ...\n" for name in UNARY.split()])


def _annotation(text: object) -> str:
    """A type's name in a class whose methods hide builtins."""
    return re.sub(r"\b(int|float|bool)\b", r"builtins.\1", str(text)).replace("Tensor", "Self")


def _parameter(parameter: inspect.Parameter) -> str:
    text = f"{parameter.name}: {_annotation(parameter.annotation)}"
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{text}"
    if parameter.default is parameter.empty:
        return text
    return f"{text} = {parameter.default!r}".replace("'", '"')


def declaration(name: str) -> str:
    """The method's declaration: the function's, whose first operand is the tensor."""
    signature = inspect.signature(METHODS[name])
    parameters = ["self"]
    keywords = False
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            keywords = True
            parameters.append("*")
        parameters.append(_parameter(parameter))
    result = _annotation(signature.return_annotation)
    line = f"    def {name}({', '.join(parameters)}) -> {result}: ..."
    if len(line) <= 120:
        return line
    inner = f"        {', '.join(parameters)}"
    if len(inner) <= 120:
        return f"    def {name}(\n{inner}\n    ) -> {result}: ..."
    lines = "".join(f"        {each},\n" for each in parameters)
    return f"    def {name}(\n{lines}    ) -> {result}: ..."


def stub() -> str:
    """The stub as the doors say it."""
    attributes = [f"    @property\n    def {name}(self) -> Self: ...\n" for name in sorted(PROPERTIES)]
    return HEAD + operators() + "".join([f"{declaration(name)}\n" for name in sorted(METHODS)] + attributes)


def test_type_checkers_see_the_methods_of_the_doors(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-goldens"):
        STUB.write_text(stub())
    assert stub() == STUB.read_text(), "src/tessera/methods.pyi is out of date: run this file with --update-goldens"


def test_what_is_a_method_of_torchs_tensors_is_one_of_ours() -> None:
    assert [name for name in op.__all__ if hasattr(torch.Tensor, name) and not hasattr(Tensor, name)] == []


def test_a_method_is_its_function() -> None:
    x = torch.randn(3, 4)
    tensor = op.tensor(x)
    for name, function in METHODS.items():
        assert getattr(Tensor, name) is function
    torch.testing.assert_close(tensor.sin().torch(), x.sin())
    torch.testing.assert_close(tensor.sum(dim=1, keepdim=True).torch(), x.sum(dim=1, keepdim=True))
    assert tensor.argmin(1).tolist() == x.argmin(1).tolist()
    assert torch.equal(tensor.where(tensor > 0, 0.0).torch(), x.where(x > 0, torch.tensor(0.0)))
    assert torch.equal(tensor.tile(2, 1).torch(), x.tile(2, 1))
    z = torch.randn(3, dtype=torch.complex64)
    assert torch.equal(op.tensor(z).imag.torch(), z.imag)


def test_names_are_torchs() -> None:
    """`take` and `trace` mean what they mean in the array API."""
    assert [name for name in METHODS if not hasattr(torch.Tensor, name)] == []
