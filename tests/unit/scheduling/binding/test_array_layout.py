"""How arrays lie over a kernel's axes: one rule, given what each array is to its kernel."""

from __future__ import annotations

from tessera.dtypes import fp32
from tessera.ops.families import FAMILIES
from tessera.rewrite.fusion.alignment import beyond
from tessera.scheduling.binding.arrays import ArrayLayout, ArrayRole, LayoutFacts, Pattern, array_layout
from tessera.scheduling.lowering.spec import Argument

NAMES = ("b0", "m", "n")


def laid_out(extents: tuple[int, ...], strides: tuple[int, ...], role: ArrayRole, backwards: str = "") -> ArrayLayout:
    """The layout of one array over `NAMES`."""
    ones = tuple([extent == 1 for extent in extents])
    classes = tuple([(stride if stride in (-1, 0, 1) else 2,) for stride in strides])

    def pattern(arguments: tuple[Argument, ...]) -> Pattern:
        return Pattern(arguments, ("b0",), None, "n", True)

    facts: LayoutFacts = (NAMES, ones, classes, ((fp32, False, False),))
    return array_layout(pattern, facts, [role], backwards)


def test_an_array_walks_the_axes_along_which_it_has_a_stride() -> None:
    layout = laid_out((2, 3, 4), (0, 4, 1), ArrayRole(contiguous=("n",)))
    assert layout.axes == (("m", "n"),)
    assert layout.picks == ((1, 2),)
    assert layout.pattern.arguments[0].strides == (None, 1)


def test_required_axes_are_walked_with_stride_0_where_the_array_repeats_itself() -> None:
    layout = laid_out((2, 3, 4), (0, 4, 1), ArrayRole(required=frozenset(["b0"])))
    assert layout.axes == (("b0", "m", "n"),)
    assert layout.picks == ((3, 1, 2),), "past the last column stand 0 and 1"


def test_an_extent_of_1_is_walked_by_those_that_keep_it_or_take_it_for_contiguous() -> None:
    extents, strides = (2, 1, 1), (7, 7, 0)
    assert laid_out(extents, strides, ArrayRole()).axes == (("b0",),)
    assert laid_out(extents, strides, ArrayRole(kept=frozenset("mn"))).picks == ((0, 1),)
    single = laid_out(extents, strides, ArrayRole(single=frozenset("mn"), contiguous=("n", "m")))
    assert single.picks == ((0, 4, 4),)
    assert single.pattern.arguments[0].strides == (None, None, 1), "one axis is promised to be contiguous, the first"


def test_a_stride_of_minus_1_is_promised_along_one_axis_alone() -> None:
    backwards = laid_out((2, 3, 4), (12, 4, -1), ArrayRole(contiguous=("n",)), "n")
    assert backwards.pattern.arguments[0].strides == (None, None, -1)
    assert laid_out((2, 3, 4), (12, 4, -1), ArrayRole()).pattern.arguments[0].strides == (None, None, None)


def test_axes_that_operands_alone_have_stand_behind_those_of_the_result() -> None:
    for family, axes in ((family.name, family.beyond) for family in FAMILIES.values()):
        assert beyond(family, 4) == {axis: 4 + place for place, axis in enumerate(axes)}
    assert beyond("contraction", 3)[0, "k"] == 3
