"""A fixed share of the fuzzer's programs (`tests/fuzz`), and the fuzzer itself: what it draws, and what it finds."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

from tessera.dtypes import DType, bf16, bool_, complex64, fp32, fp64, int8, int64
from tessera.errors import TesseraError
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.structures.structure import Shape
from tessera.ops import OPERATORS, Operator
from tessera.ops.algebra import call
from tests.fuzz.contents import contents, placed
from tests.fuzz.drawing import Growth, draw, draw_smooth, drawn
from tests.fuzz.motifs import MOTIFS, Motif
from tests.fuzz.program import Input, Memory, Program, Step
from tests.fuzz.running import SHARE, Checker, run
from tests.fuzz.shrinking import shrink, snippet
from tests.fuzz.ways import WAYS, WrongResultError, check
from tests.whole import examples

PARTS = 4
"""Tests that the share is divided among, so that processes of pytest can share it."""


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    """One process for all programs that this one of pytest checks: what one program compiles the next one finds."""
    with Checker() as made:
        yield made


@pytest.mark.parametrize("gradients", [False, True], ids=["results", "gradients"])
@pytest.mark.parametrize("part", range(PARTS))
def test_programs_compute_what_torch_does(checker: Checker, part: int, gradients: bool) -> None:
    # A third of the ways for each program, which compile most of its kernels anew, and half of the second derivatives.
    tally = run(checker, range(part, SHARE, PARTS), gradients, examples(2 if gradients else 3, 1))
    told = [f"seed {seed}: {outcome.verdict}: {outcome.text}" for seed, outcome in tally.findings]
    assert not told, "\n".join([*told, "python -m tests.fuzz --shrink --seed SEED makes its program small"])
    assert tally.programs
    # A few programs of huge numbers, whose squares overflow, are hardly judged.
    assert tally.judged > 0.4 * tally.elements


@dataclass(frozen=True)
class _Value:
    shape: Shape
    dtype: DType


DRAWN = drawn()


@pytest.mark.parametrize("record", DRAWN, ids=lambda record: record.name)
def test_every_record_says_what_it_may_be_applied_to(record: Operator) -> None:
    """New records take part in drawn programs: their rules, or their families', give applications that are taken."""
    chance, taken = random.Random(1), 0
    for shape in ((2, 3, 5, 4), (3, 6), (7,), (2, 8, 4)):
        for dtype in (fp32, fp64, bf16, int8, int64, bool_, complex64):
            drawn = record.apply_to(_Value(shape, dtype), chance)
            if drawn is None:
                continue
            operands = [torch.zeros(each.shape, dtype=each.dtype.torch) for each in drawn.operands]
            try:
                result = call(record.name, *[as_node(operand) for operand in operands], **drawn.attributes)
            except TesseraError:
                continue  # a dtype that it does not take
            taken += 1
            reference = record.reference(*operands, **{**record.attributes, **drawn.attributes})
            assert result.shape == reference.shape
    assert taken


@pytest.mark.parametrize("motif", MOTIFS, ids=lambda motif: motif.__name__)
def test_every_pattern_makes_something_and_begins_a_program_of_the_share(motif: Motif) -> None:
    """A pattern that always raises, or whose turn never comes, guards nothing and would not be missed."""
    assert any(Growth(seed).pattern(motif) is not None for seed in range(20))
    fours, place = divmod(MOTIFS.index(motif), 3)
    assert 4 * fours + place < SHARE


def test_programs_of_a_seed_are_the_same_and_survive_their_text() -> None:
    for seed in range(30):
        program = draw(seed)
        assert program == draw(seed)
        assert Program.from_json(program.to_json()) == program
        assert program.steps


def test_smooth_programs_read_fp64() -> None:
    for seed in range(10):
        program = draw_smooth(seed)
        assert {memory.dtype for memory in program.memories if memory.below is None} <= {"fp64", "complex128", "bool"}


def _sum_of_squares() -> Program:
    memory = Memory("fp32", 20, 1, (3, 5), (6, 1))
    view = Input(0, 1, (3, 5), (6, 1))
    steps = (Step("mul", (), (0, 0)), Step("sum", ((1,), False), (1,)), Step("exp", (), (0,)))
    return Program((memory,), (view, *steps), (2, 3))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_what_is_expected(way: str) -> None:
    checked = check(_sum_of_squares(), ways=[way])
    assert checked.judged == checked.elements == 18


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = OPERATORS["sum"].reference

    def reference(x: torch.Tensor, **attributes: object) -> torch.Tensor:
        result = broken(x, **attributes).clone()
        result[1] += 0.01
        return result

    monkeypatch.setitem(vars(OPERATORS["sum"]), "reference", reference)
    with pytest.raises(WrongResultError, match="at once: entry 2: 1 of 3 elements are wrong, the first at \\(1,\\)"):
        check(_sum_of_squares())


def test_a_failing_program_is_made_small_and_printed() -> None:
    drawn = (draw(seed) for seed in range(200))
    program = next(each for each in drawn if each.steps > 8 and "flash_attention" in each.operators)
    least = shrink(program, lambda each: "flash_attention" in each.operators)
    assert least.operators == {"flash_attention"}
    assert least.steps == 1
    printed: list[str] = []
    exec(snippet(least), {"print": lambda result, expected, sep: printed.append(str((result - expected).abs().max()))})
    assert [float(text.removeprefix("tensor(").split(",")[0].rstrip(")")) < 1e-5 for text in printed] == [True]


def test_reads_beyond_an_input_end_the_process() -> None:
    """Memories lie against pages without access: a read of one byte more is a finding of its own kind."""
    memory = Memory("fp32", 3, 0, (3,), (1,))
    for at_end, offset, crashes in ((True, 0, False), (True, 1, True), (False, 0, False), (False, -1, True)):
        tensor = placed(memory, at_end)
        child = os.fork()
        if not child:
            faulthandler.disable()  # pytest's would tell of the crash
            ctypes.string_at(tensor.data_ptr() + offset, 12)
            os._exit(0)
        assert (os.waitpid(child, 0)[1] != 0) is crashes


def test_contents_of_a_seed_are_the_same() -> None:
    memory = Memory("bf16", 12, 0, (3, 4), (4, 1), "special", seed=7)
    first, second = contents(memory), contents(memory)
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))
