"""Is a candidate's output right? Decided before any of its times count, at a cost far below that of tuning.

Small outputs are compared in full. Of large ones, the first and last rows (where tails live) and randomly drawn ones
are compared, and all of them through random projections: for a random sign vector v, y = C v must equal the
reference's. A wrong element changes y unless it is hidden by rounding noise, which grows with the square root of the
row's length (Freivalds, "Probabilistic machines can use less running time", 1977).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from tessera.dtypes import dtype_of

FULL_ELEMENTS = 1 << 20
"""Outputs up to this many elements are compared in full (8 MB of float64)."""

_EDGE_ROWS = 16
_DRAWN_ROWS = 16
_PROJECTIONS = 2

RELATIVE_TOLERANCE = {
    "fp64": 1e-10,
    "fp32": 1e-4,
    "tf32": 4e-3,
    "fp16": 4e-3,
    "bf16": 2e-2,
    "fp8_e4m3": 0.1,
    "fp8_e5m2": 0.2,
}
"""Allowed error by output dtype, relative to the element and to the root mean square of the output, whichever is
added: about a hundred (fp32), five (16-bit) or two (8-bit) roundings, so that no order of summation is called wrong
and no missing term is called right."""


class Reference(Protocol):
    """Trusted results, viewed as a matrix: all leading dimensions are rows, the last one is the columns."""

    @property
    def extents(self) -> tuple[int, int]:
        """Rows and columns."""
        ...

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """The rows `index` in float64, shape (len(index), columns)."""
        ...

    def project(self, vectors: torch.Tensor) -> torch.Tensor:
        """The product with `vectors` (columns, k) in float64, shape (rows, k)."""
        ...


class FullReference:
    """A reference that was computed in full."""

    def __init__(self, result: torch.Tensor) -> None:
        self._matrix = as_matrix(result)

    @property
    def extents(self) -> tuple[int, int]:
        return self._matrix.shape[0], self._matrix.shape[1]

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        return self._matrix[index].double()

    def project(self, vectors: torch.Tensor) -> torch.Tensor:
        return _project(self._matrix, vectors)


@dataclass(frozen=True, eq=False)
class OutputCheck:
    """What is known of one right output: some rows of it in float64 and, unless these are all, its projections.

    `operand` is the output's index among the workload's operands, `scale` the root mean square of the known finite
    elements.
    """

    operand: int
    rows: torch.Tensor
    expected: torch.Tensor
    vectors: torch.Tensor
    projections: torch.Tensor
    relative_tolerance: float
    scale: float

    def error(self, output: torch.Tensor) -> str | None:
        """None if `output` agrees, else what is wrong, for the trial's label."""
        matrix = as_matrix(output)
        allowed = self.relative_tolerance * (self.expected.abs() + self.scale)
        wrong = _disagree(matrix[self.rows.to(matrix.device)].double().cpu(), self.expected, allowed)
        if wrong is not None:
            row, column, got, want = wrong
            return f"element ({int(self.rows[row])}, {column}) is {got:.6g}, reference {want:.6g}"
        if self.vectors.shape[1]:
            noise = self.relative_tolerance * self.scale * math.sqrt(matrix.shape[1])
            allowed = self.relative_tolerance * self.projections.abs() + noise
            projected = _project(matrix, self.vectors.to(matrix.device)).cpu()
            wrong = _disagree(projected, self.projections, allowed)
            if wrong is not None:
                return f"row {wrong[0]} projects to {wrong[2]:.6g}, reference {wrong[3]:.6g}"
        return None


def check_output(
    operand: int, reference: Reference, dtype: str, seed: int = 0, relative_tolerance: float | None = None
) -> OutputCheck:
    """The check of output `operand` against `reference`; tolerance by `dtype` unless given, integers and bools
    exactly.
    """
    rows, columns = reference.extents
    generator = torch.Generator().manual_seed(seed)
    if relative_tolerance is None:
        relative_tolerance = RELATIVE_TOLERANCE[dtype] if dtype_of(dtype).kind == "float" else 0.0
    whole = rows * columns <= FULL_ELEMENTS or rows <= 2 * _EDGE_ROWS + _DRAWN_ROWS
    index = torch.arange(rows, device="cpu") if whole else _sampled_rows(rows, generator)
    expected = reference.rows(index)
    vectors = torch.zeros(columns, 0, dtype=torch.float64, device="cpu")
    projections = torch.zeros(rows, 0, dtype=torch.float64, device="cpu")
    if not whole:
        drawn = torch.randint(0, 2, (columns, _PROJECTIONS), generator=generator, device="cpu")
        vectors = drawn.double() * 2 - 1
        projections = reference.project(vectors)
    finite = expected[expected.isfinite()]
    scale = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    return OutputCheck(operand, index, expected, vectors, projections, relative_tolerance, scale)


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """All leading dimensions as rows; a scalar is one row of one column."""
    columns = tensor.shape[-1] if tensor.dim() else 1
    return tensor.reshape(-1, columns) if tensor.numel() else tensor.new_zeros((0, columns))


def _sampled_rows(rows: int, generator: torch.Generator) -> torch.Tensor:
    middle = torch.randint(_EDGE_ROWS, rows - _EDGE_ROWS, (_DRAWN_ROWS,), generator=generator, device="cpu")
    first, last = (torch.arange(*ends, device="cpu") for ends in ((_EDGE_ROWS,), (rows - _EDGE_ROWS, rows)))
    return torch.cat((first, torch.unique(middle), last))


def _project(matrix: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    # In blocks of rows: a float64 copy of the whole output could be four times its size.
    block = max(FULL_ELEMENTS // max(matrix.shape[1], 1), 1)
    parts = [rows.double() @ vectors for rows in torch.split(matrix, block)]
    return torch.cat(parts) if parts else matrix.new_zeros((0, vectors.shape[1]), dtype=torch.float64)


def _disagree(got: torch.Tensor, want: torch.Tensor, allowed: torch.Tensor) -> tuple[int, int, float, float] | None:
    """The worst element outside its allowance: row, column, value, expected value. NaN and infinities must be equal."""
    error = (got - want).abs()
    same = torch.where(want.isfinite(), error <= allowed, (got == want) | (got.isnan() & want.isnan()))
    if bool(same.all()):
        return None
    excess = torch.where(same, 0.0, torch.nan_to_num(error, nan=math.inf))
    row, column = divmod(int(excess.argmax()), got.shape[1])
    return row, column, float(got[row, column]), float(want[row, column])
