"""What runs of torch's samples found, a line of JSON for each sample: a run that ended goes on where it was."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

KINDS = ("native", "partly", "torch", "views", "refused", "wrong")
"""What may be found of a sample: Tessera computes all of it, some of it, nothing of it; there is nothing to compute;
torch itself raises; the results differ or Tessera raises.
"""


@dataclass(frozen=True)
class Found:
    """What was found of one sample."""

    kind: str
    """One of KINDS."""
    fallbacks: tuple[str, ...] = field(default=())
    """Each target that torch computed, with the reason."""
    error: str = ""


class Record:
    """What was found so far, by the sample's name, dtype and number; kept in a file where one is given."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._found: dict[tuple[str, str, int], Found] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                fields = json.loads(line)
                key = fields.pop("operator"), fields.pop("dtype"), fields.pop("number")
                self._found[key] = Found(**{**fields, "fallbacks": tuple(fields["fallbacks"])})

    def __contains__(self, key: tuple[str, str, int]) -> bool:
        return key in self._found

    def add(self, operator: str, dtype: str, number: int, found: Found) -> None:
        """Notes what was found of a sample, in the file at once."""
        self._found[operator, dtype, number] = found
        if self._path is not None:
            with self._path.open("a") as file:
                print(json.dumps({"operator": operator, "dtype": dtype, "number": number, **asdict(found)}), file=file)

    @property
    def wrong(self) -> int:
        """How many samples are wrong."""
        return sum(found.kind == "wrong" for found in self._found.values())

    def totals(self, dtypes: Sequence[str]) -> str:
        """A table of Markdown: for each dtype how many operators and samples of each kind there are, and the shares of
        samples with something to compute of which Tessera computes something, and all.
        """
        lines = [
            f"| dtype | operators | {' | '.join(KINDS)} | native share | wholly |",
            f"| --- |{' ---: |' * (len(KINDS) + 3)}",
        ]
        for dtype in dtypes:
            kinds = Counter(found.kind for (_, each, _), found in self._found.items() if each == dtype)
            operators = len({name for name, each, _ in self._found if each == dtype})
            computed = max(kinds["native"] + kinds["partly"] + kinds["torch"], 1)
            shares = [100 * (kinds["native"] + kinds["partly"]) / computed, 100 * kinds["native"] / computed]
            counts = [operators, *(kinds[kind] for kind in KINDS)]
            lines.append(f"| {dtype} | {' | '.join(map(str, counts))} | {shares[0]:.0f} % | {shares[1]:.0f} % |")
        return "\n".join(lines)

    def reasons(self) -> Counter[str]:
        """How many operators, in each dtype, have a target that torch computes, by target and reason."""
        found = {(name, dtype, each) for (name, dtype, _), one in self._found.items() for each in one.fallbacks}
        return Counter(each for _, _, each in found)
