"""Idioms: what users write out of single operators and one kernel does better.

A rule here holds for real numbers and finite scores, not to the last bit, so a strict numerics policy leaves them out;
and it may need facts about extents that a form does not know. Those it notes on the function as `guards`: products of
extents that must be equal where the program is bound (`compiler/graph/programs.py` takes another program where they are
not).

The snippet above each rule shows it before and after; the attention idiom itself is in `scores.py`.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tessera.dtypes import DType, accumulator, bool_, fp32, holds
from tessera.ir.attributes import Value
from tessera.ir.graph.operations import GraphOperation
from tessera.ops.pins import KNOBS
from tessera.ops.record import family_of
from tessera.rewrite.engine import Measure, NamedRule, Rewriter, dims_of
from tessera.rewrite.guards import Guard, require
from tessera.rewrite.rules.algebra import dtype, form_source, forms_above, made_by
from tessera.rewrite.rules.causality import hide_future
from tessera.rewrite.rules.scores import (
    HIDDEN,
    Mask,
    Scaling,
    Scores,
    joined_dims,
    only_use,
    scaling_of,
    swapped_dims,
    trace_scores,
)
from tessera.rewrite.rules.scoring import Scored, has_positions, trace_scoring


#   e = exp(x - max(x));  e / sum(e)   ->   softmax(x)      (along one axis)
def recognize_softmax(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    weights, total = operation.inputs
    power, summed = made_by(weights, "exp"), made_by(total, "sum")
    if power is None or summed is None or summed.inputs[0] is not weights or not summed.attribute("keepdims", False):
        return None
    shifted = made_by(power.inputs[0], "sub")
    if shifted is None:
        return None
    source, largest = shifted.inputs[0], made_by(shifted.inputs[1], "max")
    axes = summed.integers("axes")
    if largest is None or largest.inputs[0] is not source or largest.integers("axes") != axes or len(axes) != 1:
        return None
    if not largest.attribute("keepdims", False) or source.type != operation.result.type:
        return None
    return rewriter.create("softmax", [source], {"axis": axes[0]})


#   matmul(softmax(matmul(q, k^T) * scale + mask), v)   ->   flash_attention(q * scale, k, v, 1, mask)
#
# Scale, mask and casts may stand anywhere between the products (`scores.py`); whatever is used elsewhere, too, has to
# be made anyway. Where more is done to scores, or masks are algebra of positions, the operators in between become steps
# of `scored_attention` (`scoring.py`). A row whose scores are all -inf gives 0 instead of NaN.
def recognize_attention(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    weights, values = operation.inputs
    if not _is_plain(operation) or operation.attribute("transpose_a", False):
        return None
    softmax = _under_casts(weights)
    if softmax is None or softmax.attribute("axis") != len(dims_of(softmax.result)) - 1:
        return None
    wanted, scores = dtype(operation.result), softmax.inputs[0]
    plain = trace_scores(scores)
    found: Scores | Scored | None = plain
    if plain is None or any(has_positions(mask.value) for mask in plain.masks):
        found = trace_scoring(scores, wanted) or plain
    if found is None or not _is_plain(found.product):
        return None
    q, k = (_in_dtype(operand, wanted, rewriter) for operand in found.product.inputs)
    if q is None or k is None:
        return None
    k, factors = _unscaled(k)
    q = _transposed(q, rewriter) if found.product.attribute("transpose_a", False) else q
    k = k if found.product.attribute("transpose_b", False) else _transposed(k, rewriter)
    v = _transposed(values, rewriter) if operation.attribute("transpose_b", False) else values
    if not _heads_agree(q, k, v):
        return None
    for scaling, factor in (*factors, *(found.scalings if isinstance(found, Scores) else ())):
        q = rewriter.make(scaling, [q, _beside(factor, wanted, rewriter)], dims_of(q), wanted)
    one = rewriter.make("constant", [], (), accumulator(wanted), {"value": 1.0})
    if isinstance(found, Scored):
        return rewriter.create("scored_attention", [q, k, v, one, *found.extras], {"scores": found.steps})
    mask = _joined_mask(found, rewriter)
    if mask is not None and dtype(mask) is not bool_:
        mask = _beside(mask, wanted, rewriter)
    operands = [q, k, v, one, *([] if mask is None else [mask])]
    return rewriter.create("flash_attention", operands, {"causal": False})


def _is_plain(product: GraphOperation) -> bool:
    """Whether nobody asked for a tile, a mode or knobs of this product."""
    return not product.attributes.keys() & {"tile_shape", "math", KNOBS}


def _under_casts(weights: SSAValue) -> GraphOperation | None:
    """The softmax that is used as these weights alone, through casts at most."""
    while only_use(weights) and (cast := made_by(weights, "cast")) is not None:
        weights = cast.inputs[0]
    return made_by(weights, "softmax") if only_use(weights) else None


def _unscaled(keys: SSAValue) -> tuple[SSAValue, tuple[Scaling, ...]]:
    """Keys without what they are multiplied and divided by, which can as well be done to the queries: often fewer."""
    factors: tuple[Scaling, ...] = ()
    while isinstance(keys.owner, GraphOperation) and only_use(keys):
        step = scaling_of(keys.owner)
        if step is None:
            break
        keys, factors = step[0], (*factors, step[1])
    return keys, factors


def _beside(value: SSAValue, wanted: DType, rewriter: Rewriter) -> SSAValue:
    """A value in a dtype that meets `wanted` in kernels: itself, or cast to that dtype's accumulator."""
    wide = accumulator(wanted)
    if accumulator(dtype(value)) is wide:
        return value
    return rewriter.make("cast", [value], dims_of(value), wide, {"dtype": wide.name})


def _in_dtype(operand: SSAValue, wanted: DType, rewriter: Rewriter) -> SSAValue | None:
    """An operand of the scores in the dtype of the values; None where that would round what was not rounded."""
    own = dtype(operand)
    if own is wanted:
        return operand
    if own.kind != "float":
        return None
    cast = made_by(operand, "cast")
    if cast is not None and dtype(cast.inputs[0]) is wanted:
        return cast.inputs[0]
    return (
        rewriter.make("cast", [operand], dims_of(operand), wanted, {"dtype": wanted.name})
        if holds(wanted, own)
        else None
    )


def _transposed(value: SSAValue, rewriter: Rewriter) -> SSAValue:
    names = dims_of(value)
    rank = len(names)
    permutation = (*range(rank - 2), rank - 1, rank - 2)
    # Of a transpose binding reads nothing from its node, so any one will do.
    attributes: dict[str, Value] = {"permutation": permutation, "node": 0}
    return rewriter.make("transpose", [value], swapped_dims(names), dtype(value), attributes)


def _heads_agree(q: SSAValue, k: SSAValue, v: SSAValue) -> bool:
    """Whether heads are as `flash_attention` takes them: as many of K as of V, which serve those of Q."""
    heads, shared, values = (dims_of(x)[-3] if len(dims_of(x)) > 2 else "1" for x in (q, k, v))
    return shared == values and shared in ("1", heads)


def _joined_mask(found: Scores, rewriter: Rewriter) -> SSAValue | None:
    """One mask that hides and adds what all of them do."""
    visible: SSAValue | None = None
    offset: SSAValue | None = None
    for mask in found.masks:
        value = _mask_value(mask, rewriter)
        if dtype(value) is bool_:
            visible = value if visible is None else _combined("logical_and", visible, value, rewriter)
        else:
            offset = value if offset is None else _combined("add", offset, value, rewriter)
    if visible is None or offset is None:
        return offset if visible is None else visible
    lowest = rewriter.make("constant", [], (), dtype(offset), {"value": float("-inf")})
    names = joined_dims(dims_of(visible), dims_of(offset))
    return rewriter.make("where", [visible, offset, lowest], names, dtype(offset))


def _mask_value(mask: Mask, rewriter: Rewriter) -> SSAValue:
    """A mask as `flash_attention` takes it: true where a key is seen, or what is added to the scaled scores."""
    value, names = mask.value, dims_of(mask.value)
    if mask.kind == "hidden":
        value = rewriter.make("logical_not", [value], names, bool_)
    if mask.kind in ("visible", "hidden") and mask.lowest == HIDDEN:
        return value
    if mask.kind == "subtracted":
        value = rewriter.make("neg", [value], names, dtype(value))
    elif mask.kind != "added":
        # A row of nothing but hidden keys has equal weights then, as after `where`: such a number swallows scores.
        numbers = [rewriter.make("constant", [], (), fp32, {"value": x}) for x in (0.0, mask.lowest)]
        value = rewriter.make("where", [value, *numbers], names, fp32)
    for scaling, factor in mask.scalings:
        value = rewriter.make(scaling, [value, _beside(factor, dtype(value), rewriter)], names, dtype(value))
    return value


def _combined(operator: str, a: SSAValue, b: SSAValue, rewriter: Rewriter) -> SSAValue:
    if dtype(a) is not dtype(b):
        wide = dtype(a) if holds(dtype(a), dtype(b)) else dtype(b)
        a, b = (
            x if dtype(x) is wide else rewriter.make("cast", [x], dims_of(x), wide, {"dtype": wide.name})
            for x in (a, b)
        )
    return rewriter.make(operator, [a, b], joined_dims(dims_of(a), dims_of(b)), dtype(a))


#   flash_attention(q, reshape(broadcast_to(k)), reshape(broadcast_to(v)))   ->
#   reshape(flash_attention(reshape(q), broadcast_to(k), broadcast_to(v)))
#
# Heads of K and V that were repeated, [.., heads, times, keys, size] -> [.., heads * times, keys, size], are read where
# they are: a repeated dimension has stride 0, unless a reshape has to write it out.
def share_heads(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    q, k, v, scale, *mask = operation.inputs
    sources = [_repeated(x) for x in (k, v)]
    if None in sources or len(dims_of(q)) != len(dims_of(k)):
        return None
    apart_k, apart_v = (source for source in sources if source is not None)
    heads, times = dims_of(apart_k)[-4:-2]
    names = dims_of(q)
    guards = [
        guard for whole, apart in ((k, apart_k), (v, apart_v)) for guard in _merging(dims_of(whole), dims_of(apart))
    ]
    guards += [((a,), (b,)) for a, b in zip(dims_of(apart_k)[:-2], dims_of(apart_v)[:-2], strict=True)]
    guards.append(((names[-3],), (heads, times)))
    require(operation, guards)
    kind = dtype(q)
    split = rewriter.make("reshape", [q], (*names[:-3], heads, times, *names[-2:]), kind, {"node": 0})
    masks = [_split_heads(x, heads, times, rewriter) for x in mask]
    result = dims_of(operation.result)
    made = rewriter.make(
        "flash_attention",
        [split, apart_k, apart_v, scale, *masks],
        (*result[:-3], heads, times, *result[-2:]),
        kind,
        {"causal": bool(operation.attribute("causal"))},
    )
    return rewriter.create("reshape", [made], {"node": 0})


#   transpose(reshape(x)) * c   ->   transpose(reshape(x * c))   (where x is made for this alone, and scaled on the way)
def scale_before_layout(operation: GraphOperation, rewriter: Rewriter) -> SSAValue | None:
    step = scaling_of(operation)
    if step is None or dtype(step[0]) is not dtype(operation.result):
        return None
    value, (scaling, factor) = step
    orders: list[GraphOperation] = []
    while only_use(value) and isinstance(value.owner, GraphOperation) and value.owner.operator in _ORDERS:
        orders.append(value.owner)
        value = value.owner.inputs[0]
    maker = value.owner
    if not orders or not only_use(value) or not isinstance(maker, GraphOperation):
        return None
    if not (family_of(maker.operator).is_counted or family_of(maker.operator).is_product):
        return None
    moved = rewriter.make(scaling, [value, factor], dims_of(value), dtype(value))
    for order in reversed(orders):
        attributes = {name: attribute for name, attribute in order.attributes.items() if name != "dims"}
        moved = rewriter.create(order.operator, [moved], attributes, like=order.result)
    return moved


_ORDERS = ("reshape", "transpose")


def _repeated(value: SSAValue) -> SSAValue | None:
    """What a reshape takes from, where it has one dimension more and may be repeated along one of them."""
    reshaped = made_by(value, "reshape")
    if reshaped is None:
        return None
    source = reshaped.inputs[0]
    if len(dims_of(source)) != len(dims_of(value)) + 1 or len(dims_of(value)) < 3:
        return None
    broadcast = isinstance(source.owner, Operation) and made_by(source, "broadcast_to") is None
    return None if broadcast else source


def _merging(whole: tuple[str, ...], apart: tuple[str, ...]) -> list[Guard]:
    """What must hold so that a reshape merges the dimensions -4 and -3, and nothing else."""
    pairs: list[Guard] = [((a,), (b,)) for a, b in zip(whole[:-3], apart[:-4], strict=True)]
    pairs += [((whole[d],), (apart[d],)) for d in (-2, -1)]
    return [*pairs, ((whole[-3],), apart[-4:-2])]


def _split_heads(mask: SSAValue, heads: str, times: str, rewriter: Rewriter) -> SSAValue:
    names = dims_of(mask)
    if len(names) < 3:
        return mask
    apart = ("1", "1") if names[-3] == "1" else (heads, times)
    return rewriter.make("reshape", [mask], (*names[:-3], *apart, *names[-2:]), dtype(mask), {"node": 0})


def _above_scaling(operation: GraphOperation) -> int:
    """The changes of order above a scaling, through other scalings: for those below one that moves up, as many."""
    if scaling_of(operation) is None:
        return 0
    return sum(name in _ORDERS for name in forms_above(operation.result, _scaled_or_formed))


def _scaled_or_formed(operation: GraphOperation) -> SSAValue | None:
    step = scaling_of(operation)
    return form_source(operation) if step is None else step[0]


def _attention_operands(operation: GraphOperation) -> int:
    return len(operation.inputs) if operation.operator == "flash_attention" else 0


def _apart_above_keys(operation: GraphOperation) -> int:
    """How often keys and values can be read apart. Not every change of form counts: the one that the rule puts below
    its attention stands above the keys and the values of a next attention, which reads both from there.
    """
    if operation.operator != "flash_attention":
        return 0
    count = 0
    for operand in operation.inputs[1:3]:
        source = _repeated(operand)
        while source is not None:
            count += 1
            source = _repeated(source)
    return count


DIVISIONS = Measure("divisions", lambda operation: operation.operator == "div")
PRODUCTS = Measure("matrix products", lambda operation: family_of(operation.operator).is_product)
OPERANDS = Measure("operands of attention", _attention_operands)
ABOVE_KEYS = Measure("merged heads of keys and values", _apart_above_keys)
ABOVE_SCALINGS = Measure("changes of order above scalings", _above_scaling)

SOFTMAX = (NamedRule("recognize-softmax", ("div",), recognize_softmax, DIVISIONS),)
ATTENTION = (NamedRule("recognize-attention", ("matmul",), recognize_attention, PRODUCTS),)
GUARDED = (
    NamedRule("hide-future", ("flash_attention",), hide_future, OPERANDS),
    NamedRule("share-heads", ("flash_attention",), share_heads, ABOVE_KEYS),
)
SCALES = (NamedRule("scale-before-layout", ("mul", "div"), scale_before_layout, ABOVE_SCALINGS),)
"""The rules, in the order in which they are applied; `GUARDED` ones need more of the extents."""

IDIOMS = frozenset(rule.name for rule in (*ATTENTION, *GUARDED))
"""Names of the rules after which a program may differ from what was written in more than rounding, or in speed."""
