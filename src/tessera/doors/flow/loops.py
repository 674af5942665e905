"""Loops and branches over tensors: `scan`, `while_loop`, `cond` and `map`.

The body is traced once, and its kernels are compiled once, for any number of steps; each step is a run of its plan. So
a loop is one operator: lazy, differentiable, and part of kernels. Values may be tensors, or tuples, lists and
dictionaries of them. Tensors that a body reads from outside are operands too, and gradients go to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.doors.calls.joint import joint
from tessera.doors.calls.nodes import node
from tessera.doors.flow import controls
from tessera.doors.flow.bodies import Tree, flattened, form, layout_of, rebuilt, traced
from tessera.dtypes import bool_
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import leaf_node
from tessera.ops.layout.views import flag, integer
from tessera.typing import ArrayLike


def scan(
    body: Callable[..., Tree],
    init: Tree,
    xs: Tree = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Tree, Tree]:
    """`carry, y = body(carry, x)` for each x along the first axis of `xs`, from `init` on: the last carry, and all y
    stacked (as `jax.lax.scan`). Without `xs`, x is None, and `length` says how many steps; `reverse` begins at the end.

    The carry keeps its shapes and dtypes. Raises ArgumentError (E_ARGUMENT) where it does not, ShapeMismatchError
    (E_SHAPE_MISMATCH) for `xs` of different lengths, DTypeError (E_DTYPE) for results of 8-bit floats and complex.

    Shapes: init keeps its own; y is stacked along a first axis, as xs are.

    >>> total, sums = op.scan(lambda carry, x: (carry + x, carry + x), op.tensor(0), op.arange(1, 5))
    >>> total.tolist(), sums.tolist()
    (10, [1, 3, 6, 10])
    """
    carries, slices = [node(each) for each in flattened(init)], [node(each) for each in flattened(xs)]
    steps = _length(slices, length)
    layouts = [*[layout_of(each) for each in carries], *[layout_of(each, each.shape[1:]) for each in slices]]

    def step(*values: Tensor) -> Tree:
        given = body(rebuilt(init, values[: len(carries)]), rebuilt(xs, values[len(carries) :]))
        if not isinstance(given, tuple) or len(given) != 2:
            raise ArgumentError("the body of a scan gives a pair", hints=["return carry, y; y may be None"])
        return given

    captured: list[Leaf] = []
    traced_body, given = traced(step, layouts, captured)
    _refuse_other_form("the carry of a scan", given[0], form(init))
    controls.refuse_other_kinds(
        "the carry of a scan", traced_body.kinds[: len(carries)], [(each.shape, each.dtype) for each in carries]
    )
    control = controls.one_for_all(controls.Scan, traced_body, len(carries), len(slices), flag(reverse, "reverse"))
    operands = [*carries, *slices, *[leaf_node(leaf) for leaf in captured]]
    if not operands:
        raise ArgumentError("a scan over nothing", hints=["give init or xs"])
    results = _together(controls.applied(control, operands, steps))
    return rebuilt(given[0], results[: len(carries)]), rebuilt(given[1], results[len(carries) :])


def map(function: Callable[..., Tree], xs: Tree) -> Tree:
    """The function of each slice along the first axis of `xs`, stacked: one compiled body for all.

    Shapes: xs [n, ...] give [n, ...]. Raises what `scan` raises.

    >>> op.map(lambda row: row.sum(), op.ones((3, 4))).tolist()
    [4.0, 4.0, 4.0]
    """
    _, ys = scan(lambda carry, x: (carry, function(x)), (), xs)
    return ys


def while_loop(condition: Callable[..., Any], body: Callable[..., Tree], init: Tree) -> Tree:
    """`value = body(value)` from `init` on, as long as `condition(value)`, a tensor of one bool, holds.

    The number of steps is decided when the result is computed. A gradient needs it before: taking one evaluates the
    loop, which a kernel cannot while it is traced (E_VALUE_CONTROL_FLOW). Raises ArgumentError (E_ARGUMENT) where the
    body's value is not of the shapes and dtypes of `init`, or the condition is none.

    Shapes: the value keeps that of `init`.

    >>> op.while_loop(lambda x: x < 100, lambda x: x * 2, op.tensor(3)).tolist()
    192
    """
    carries = [node(each) for each in flattened(init)]
    if not carries:
        raise ArgumentError("a while_loop over nothing", hints=["give init"])
    layouts = [layout_of(each) for each in carries]
    captured: list[Leaf] = []
    traced_body, given = traced(lambda *values: body(rebuilt(init, values)), layouts, captured)
    asked, _ = traced(lambda *values: condition(rebuilt(init, values)), layouts, captured)
    _refuse_other_form("the value of a while_loop", given, form(init))
    controls.refuse_other_kinds(
        "the value of a while_loop", traced_body.kinds, [(each.shape, each.dtype) for each in carries]
    )
    controls.refuse_other_kinds("the condition of a while_loop", asked.kinds, [((), bool_)])
    extended = traced_body.over([*layouts, *[leaf.structure for leaf in captured]])
    control = controls.one_for_all(controls.While, asked, extended, len(carries))
    results = _together(controls.applied(control, [*carries, *[leaf_node(leaf) for leaf in captured]], 0)[:-1])
    return rebuilt(given, results)


def cond(predicate: ArrayLike, if_true: Callable[..., Tree], if_false: Callable[..., Tree], *operands: Tree) -> Tree:
    """`if_true(*operands)` where the predicate, a tensor of one bool, holds, else `if_false(*operands)`. Only one of
    them is run; both give values of the same shapes and dtypes.

    Raises ArgumentError (E_ARGUMENT) where they do not, or the predicate is none.

    Shapes: both branches give the same.

    >>> op.cond(op.tensor(True), lambda x: x + 1, lambda x: x - 1, op.tensor(5)).tolist()
    6
    """
    choice = node(predicate)
    controls.refuse_other_kinds("the predicate of cond", [(choice.shape, choice.dtype)], [((), bool_)])
    nodes = [node(each) for each in flattened(operands)]
    layouts = [layout_of(each) for each in nodes]
    captured: list[Leaf] = []
    first, given = traced(lambda *values: if_true(*rebuilt(operands, values)), layouts, captured)
    second, other = traced(lambda *values: if_false(*rebuilt(operands, values)), layouts, captured)
    _refuse_other_form("the second branch of cond", other, given)
    controls.refuse_other_kinds("the second branch of cond", second.kinds, first.kinds)
    whole = [*layouts, *[leaf.structure for leaf in captured]]
    control = controls.one_for_all(controls.Cond, first.over(whole), second.over(whole))
    results = controls.applied(control, [choice, *nodes, *[leaf_node(leaf) for leaf in captured]], 0)
    return rebuilt(given, _together(results))


def _together(results: Sequence[Tensor]) -> list[Tensor]:
    """Results that are computed together: the loop runs once for all that are wanted."""
    return list(joint(list(results))) if len(results) > 1 else list(results)


def _length(slices: Sequence[Tensor], length: int | None) -> int:
    if any(not each.shape for each in slices):
        raise ShapeMismatchError("a scan along a tensor without dimensions")
    found = {each.shape[0] for each in slices} | ({integer(length, "length")} if length is not None else set())
    if len(found) != 1:
        raise ShapeMismatchError(f"a scan of lengths {sorted(found)}", hints=["xs, or length=, of one length"])
    (steps,) = found
    if steps < 0:
        raise ArgumentError(f"a scan of {steps} steps")
    return steps


def _refuse_other_form(what: str, given: Tree, wanted: Tree) -> None:
    if given != wanted:
        raise ArgumentError(f"{what} is of the form {given}, and has to be {wanted}")
