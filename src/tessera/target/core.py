"""`CoreFacts`: what one core of a CPU does in a cycle, what its caches hold, and what waking another one costs.

They are measured in some 100 ms (`backend/llvm/core_facts.py`) and kept beside the ceilings. A name says less: the same
core has other caches in a virtual machine, and the next core of a name starts more in a cycle.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tessera.errors import CacheFormatError

_FORMAT = 2
"""Version of the JSON form; a file of another version is refused."""


@dataclass(frozen=True)
class CoreFacts:
    """The facts of one core, all small whole numbers but for times and rates, so that noise hardly changes them.

    `fma_per_cycle` are the fused multiply-adds of full width, of fp32, that begin in a cycle, `fma_latency` the cycles
    until one's result is there; both again for fp64. `loads_per_cycle` are vectors from L1. `cycle_s` is a cycle at the
    clock that it ran at. `dots` are, by dtype, the multiplications that its instructions do in the time of one of
    fp32: of bf16 pairs, of bytes (vectors or a matrix unit, whichever is used). `caches` has the bytes that a level
    was seen to keep where that is less than the system says. `tlb_pages` are the pages that the first translation
    buffer reaches, `streams` the rows of memory that are fetched ahead while they are read in turn, both 0 where that
    was not seen. `wake_s` is what starting and joining a second worker costs, 0 where there is none.

    `source` is "measured", or where they stand. `date` is UTC, ISO 8601. `in_doubt` says that other programs wanted the
    CPU meanwhile, so that all this is measured again later.
    """

    fma_per_cycle: int
    fma_latency: int
    fp64_fma_per_cycle: int
    fp64_fma_latency: int
    loads_per_cycle: int
    cycle_s: float
    tlb_pages: int = 0
    streams: int = 0
    wake_s: float = 0.0
    dots: tuple[tuple[str, float], ...] = ()
    caches: tuple[tuple[str, int], ...] = ()
    source: str = "measured"
    date: str = ""
    in_doubt: bool = False

    def dot_rate(self, dtype: str) -> float | None:
        """Multiplications of a dtype in the time of one of fp32; None where it was not measured."""
        return dict(self.dots).get(dtype)

    def joined(self, other: CoreFacts) -> CoreFacts:
        """Of two measurements what each says better: others who want the CPU only ever make it look worse. These facts
        are the later ones; they stay in doubt where both are.
        """
        least = min(self.wake_s, other.wake_s) if self.wake_s and other.wake_s else self.wake_s or other.wake_s
        mine, theirs = dict(self.caches), dict(other.caches)
        both = tuple((level, max(mine[level], theirs[level])) for level in sorted(mine.keys() & theirs.keys()))
        calm = other if self.in_doubt and not other.in_doubt else self
        return replace(
            calm,
            fma_per_cycle=max(self.fma_per_cycle, other.fma_per_cycle),
            fp64_fma_per_cycle=max(self.fp64_fma_per_cycle, other.fp64_fma_per_cycle),
            fma_latency=min(self.fma_latency, other.fma_latency),
            fp64_fma_latency=min(self.fp64_fma_latency, other.fp64_fma_latency),
            loads_per_cycle=max(self.loads_per_cycle, other.loads_per_cycle),
            cycle_s=min(self.cycle_s, other.cycle_s),
            tlb_pages=max(self.tlb_pages, other.tlb_pages),
            streams=max(self.streams, other.streams),
            wake_s=least,
            caches=both if self.in_doubt == other.in_doubt else calm.caches,
            date=self.date,
            in_doubt=self.in_doubt and other.in_doubt,
        )

    def to_json(self) -> str:
        """A JSON text; `from_json` is the inverse."""
        return json.dumps({"version": _FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> CoreFacts:
        """The facts that `to_json` wrote. Raises CacheFormatError for any other text, and for another version of the
        format.
        """
        try:
            record = json.loads(text)
            if record.pop("version") != _FORMAT:
                raise ValueError("another version of the format")
            return cls.from_record(record)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CacheFormatError(f"no text of a core's facts: {type(error).__name__} {error}") from error

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> CoreFacts:
        """The facts of a record that JSON gives. ValueError, KeyError or TypeError for any other."""
        pairs = {
            name: tuple((_text(key), _number(value)) for key, value in record[name]) for name in ("dots", "caches")
        }
        known = cls(**{**record, **pairs})
        for field in fields(cls):
            value = getattr(known, field.name)
            # Annotations are texts here, as the module postpones their evaluation.
            if field.type in ("int", "float"):
                least = 0 if field.name in ("tlb_pages", "streams", "wake_s") else 1 if field.type == "int" else 1e-12
                if not _number(value) >= least or (field.type == "int" and not isinstance(value, int)):
                    raise ValueError(f"{field.name}={value!r}")
            elif field.type == "str":
                _text(value)
            elif field.type == "bool" and not isinstance(value, bool):
                raise TypeError(f"{field.name}={value!r}")
        return known


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no size and no rate")
    return value
