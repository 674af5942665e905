"""What a matrix product on CPUs is to its rules, defaults and costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tessera.dtypes import DType, bf16, fp32, fp64
from tessera.scheduling.lowering.microkernel.matrix_unit import UNIT_ROWS
from tessera.target import Target

DEPTHS: Final = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 11264, 12288, 14336, 16384)
"""Depths of K blocks that hold all of K."""
MOST_ROWS: Final = 128
"""Rows up to which a product is bound by reading B: fp32 leaves it in place, as packing would read it twice."""
MOST_DOTS = 8
"""Rows up to which weights [N, K] are multiplied as they are; more are worth packing them."""


@dataclass(frozen=True)
class ContractionProblem:
    """What legality and cost depend on: extents, dtypes, layouts and the machine.

    `a_contiguous`, `b_contiguous` name the axis along which the operand is contiguous ("m", "n", "k", or "" for none);
    `a_mapped`, `b_mapped` say that a prologue is computed while loading. `b_panels` is the width of the panels that B
    was packed into once and for all, 0 where it was not; `quads` says that they hold bytes which are multiplied four at
    a time; `products` counts those of one A that are formed side by side, each of n columns. `shared_panels` and
    `shared_quads` say of panels that workers may pack B into together what `b_panels` and `quads` say of constants.
    Where A's rows are normalized on the way, `a_walks` is how often a row is walked before it is packed, and
    `a_instructions` what its elements take. `epilogue_live` is how many vectors the maps of one
    vector of sums keep at a time.
    """

    m: int
    n: int
    k: int
    batch: int
    a_dtype: DType
    b_dtype: DType
    out_dtype: DType
    accumulator: DType
    a_contiguous: str
    b_contiguous: str
    a_mapped: bool
    b_mapped: bool
    outputs: int
    epilogue_operations: int
    target: Target
    workers: int
    native_bf16: bool
    b_panels: int = 0
    quads: bool = False
    shared_panels: int = 0
    shared_quads: bool = False
    products: int = 1
    a_walks: int = 0
    a_instructions: int = 0
    epilogue_live: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The extents that a choice of schedule depends on."""
        return self.m, self.n, self.k, self.batch

    @property
    def pairs(self) -> bool:
        """Whether the machine multiplies bf16 pairs into fp32 here."""
        return self.native_bf16 and self.a_dtype == bf16 and self.b_dtype == bf16 and self.accumulator == fp32

    @property
    def has_unit(self) -> bool:
        """Whether the machine has a matrix unit for this product."""
        bytes_in_groups = self.quads or self.shared_quads
        return (self.pairs and self.target.has_amx_bf16) or (bytes_in_groups and self.target.has_amx_int8)

    @property
    def unit_depth(self) -> int:
        """Steps of K that a matrix unit takes at once."""
        return UNIT_ROWS * (2 if self.pairs else 4)

    @property
    def turns(self) -> bool:
        """Whether a matrix unit can read B where it lies, as the first operand of C^T (`product/matrix/turned.py`)."""
        along_k = self.b_contiguous == "k" and not self.b_mapped and not self.b_panels
        return self.has_unit and self.pairs and along_k and self.products == 1 and not self.a_walks

    @property
    def apart(self) -> ContractionProblem:
        """The products one after the other, as one product by all of their panels: what they read lies where it does
        for the kernel that forms them together.
        """
        lanes = columns_of(self, 1)
        width = lanes if self.n <= lanes else 2 * lanes
        return replace(self, products=1, n=-(-self.n // width) * width * self.products, b_panels=width)

    @property
    def over_panels(self) -> ContractionProblem:
        """The problem that is left when all workers have packed B together."""
        return replace(self, b_panels=self.shared_panels, quads=self.shared_quads, b_contiguous="", shared_panels=0)

    @property
    def element_bytes(self) -> int:
        """Bytes of one packed operand element."""
        return 1 if self.quads else 2 if self.pairs else self.accumulator.itemsize


SHARED: Final = "shared"
"""The choice of `pack_b` that has all workers pack B together, before any of them multiplies."""


def dot_vectors(problem: ContractionProblem) -> int:
    """How many times as many registers sums of dot products take as those of fp32."""
    return problem.accumulator.itemsize // fp32.itemsize


def dots_fit(problem: ContractionProblem) -> bool:
    """Whether a product can be made of dot products: both operands contiguous along K; A, which is read for each few
    columns anew, not computed on the way, and B only where one tile has all rows.
    """
    along = problem.a_contiguous == problem.b_contiguous == "k" and not problem.a_mapped
    once = not problem.b_mapped or problem.m <= MOST_DOTS
    return along and once and problem.accumulator in (fp32, fp64) and not problem.b_panels


def columns_of(problem: ContractionProblem, vectors: int) -> int:
    """The width of a register tile of `vectors` vectors a row, not below the least that the rules allow."""
    bits = problem.target.vector_bits
    return max(vectors * bits // (8 * problem.accumulator.itemsize), bits // 32)


def product_shape(batch: int, m: int, n: int, k: int) -> tuple[int, ...]:
    """The problem size of a matrix product: its batch, where it has one, then M, N and K."""
    return (batch, m, n, k) if batch > 1 else (m, n, k)
