"""8-bit floats on a device; prints what went wrong as JSON: name -> number of wrong elements.

`python float8_program.py interpreter` runs the kernels by Triton's interpreter, `... cuda:0` on a GPU.
"""

from __future__ import annotations

import json
import math
import sys

import torch

from tessera import op
from tessera.handle import Tensor

DEVICE = sys.argv[1]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
DEPTH = 100 if DEVICE == "interpreter" else 16384
WRONG: dict[str, int] = {}


def there(tensor: torch.Tensor) -> Tensor:
    """A tensor of the device."""
    return op.tensor(tensor if DEVICE == "interpreter" else tensor.to(DEVICE), device=DEVICE)


def here(tensor: Tensor) -> torch.Tensor:
    """The values in CPU memory."""
    return tensor.torch().cpu()


def note(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Counts elements that differ in their bits; NaNs are all alike."""
    assert got.dtype == expected.dtype, name
    a, b = got.float(), expected.float()
    same = (a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()
    WRONG[name] = int((~same).sum())


def rounded(numbers: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Numbers as Tessera rounds them: too large ones become 448 as fp8_e4m3, whatever this version of torch does."""
    if kind is E4M3:
        wide = numbers.double()
        numbers = torch.where(wide.isnan(), wide, wide.clamp(-448, 448)).to(numbers.dtype)
    return numbers.to(kind)


def conversions(kind: torch.dtype) -> None:
    """All values of a kind, and all points where rounding to it changes, with their neighbours."""
    every = torch.arange(256, dtype=torch.uint8).view(kind)
    for target in (torch.float32, torch.bfloat16, torch.float16, E4M3, E5M2):
        note(f"{kind} to {target}", here(op.cast(there(every), target)), rounded(every, target))
    values = every.float()
    values = values[values.isfinite()].sort().values
    special = torch.tensor([math.inf, math.nan, 1e-45, 464.0, 61440.0, 1e9])
    points = torch.cat([values, (values[1:] + values[:-1]) / 2, special])
    points = torch.cat([points, points.nextafter(torch.tensor(math.inf)), points.nextafter(torch.tensor(-math.inf))])
    points = torch.cat([points, -points])
    for source in (torch.float32, torch.bfloat16, torch.float16):
        numbers = points.to(source)
        note(f"{source} to {kind}", here(op.cast(there(numbers), kind)), rounded(numbers, kind))
    scaled = op.tensor(every) * 1.5 + 1.0
    note(f"{kind} arithmetic", here(there(every) * 1.5 + 1.0), scaled.torch())


def products() -> None:
    """Products of two dtypes, K odd or deep, each rounded once: at most one unit in the last place off."""
    generator = torch.Generator().manual_seed(0)
    for first, second in ((E4M3, E4M3), (E4M3, E5M2), (E5M2, E5M2), (E4M3, torch.bfloat16), (torch.float16, E5M2)):
        for m, n, k in ((1, 1, 1), (33, 37, 50), (64, 70, DEPTH)):
            a, b = (torch.rand(shape, generator=generator) for shape in ((m, k), (n, k)))
            # Of one sign: sums grow with K, and bits that are cut off show.
            a, b = (a / math.sqrt(k)).to(first), (b / math.sqrt(k)).to(second)
            got = here(op.matmul(there(a), there(b).T))
            expected = a.double() @ b.double().T
            bound = max(torch.finfo(got.dtype).eps, 2.0**-11)
            wrong = (got.double() - expected).abs() > bound * expected.abs() + 2.0**-9 * torch.finfo(got.dtype).eps
            WRONG[f"{first} @ {second}, {m} {n} {k}"] = int(wrong.sum())


conversions(E4M3)
conversions(E5M2)
products()
print(json.dumps(WRONG))
