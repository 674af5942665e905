"""The problems of the live contest between tuners: operands, results in float64, and how far off a result is.

It takes numpy alone, and only when called: another project's tuner runs this in a Python of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.floating[Any]]

SEED = 31
TOLERANCE = 2e-5
"""Largest error allowed, as a share of the largest reference value: all problems are in fp32."""


@dataclass(frozen=True)
class Problem:
    """One problem in fp32. `shape` is (M, N, K) for a product, (rows, columns) for softmax, and (images, channels,
    height, width, window) for a depthwise convolution in NCHW, padded so that the result is as large as the image.
    """

    operation: Literal["matmul", "softmax", "depthwise"]
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """What the tables show."""
        return f"{self.operation} {'x'.join(map(str, self.shape))}"

    @property
    def operand_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each operand."""
        if self.operation == "matmul":
            m, n, k = self.shape
            return (m, k), (k, n)
        if self.operation == "softmax":
            return (self.shape,)
        images, channels, height, width, window = self.shape
        return (images, channels, height, width), (channels, 1, window, window)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.shape[:2] if self.operation == "matmul" else self.operand_shapes[0]

    @property
    def flops(self) -> int:
        """Floating-point operations of a product; 0 for the others, which memory bounds."""
        return 2 * math.prod(self.shape) if self.operation == "matmul" else 0

    @property
    def bytes(self) -> int:
        """Bytes that must cross the memory bus: each operand once, the result once."""
        return 4 * sum(math.prod(shape) for shape in (*self.operand_shapes, self.result_shape))

    def inputs(self) -> list[Floats]:
        """Standard-normal operands; the same bits in every process."""
        import numpy as np

        generator = np.random.default_rng(SEED)
        return [generator.standard_normal(shape, dtype=np.float32) for shape in self.operand_shapes]


PROBLEMS = (
    Problem("matmul", (512, 512, 512)),
    Problem("matmul", (1024, 1024, 1024)),
    Problem("softmax", (4096, 4096)),
    Problem("depthwise", (1, 256, 112, 112, 3)),
)
QUICK = (Problem("matmul", (64, 64, 64)), Problem("softmax", (64, 96)), Problem("depthwise", (1, 8, 14, 14, 3)))


def reference(problem: Problem) -> Floats:
    """The result in float64."""
    import numpy as np

    operands = [operand.astype(np.float64) for operand in problem.inputs()]
    if problem.operation == "matmul":
        product: Floats = operands[0] @ operands[1]
        return product
    if problem.operation == "softmax":
        powers = np.exp(operands[0] - operands[0].max(axis=-1, keepdims=True))
        weights: Floats = powers / powers.sum(axis=-1, keepdims=True)
        return weights
    image, window = operands
    reach = problem.shape[-1] // 2
    padded = np.pad(image, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
    height, width = image.shape[2:]
    taps = np.ndindex(window.shape[2:])
    shifted = (padded[:, :, y : y + height, x : x + width] * window[:, 0, y, x][:, None, None] for y, x in taps)
    return sum(shifted, np.zeros_like(image))


def deviation(problem: Problem, result: Floats) -> float:
    """Largest error of a result, as a share of the largest reference value. Infinite for NaN or a wrong shape."""
    import numpy as np

    exact = reference(problem)
    if result.shape != exact.shape or not bool(np.isfinite(result).all()):
        return float("inf")
    return float(np.abs(result - exact).max() / np.abs(exact).max())
