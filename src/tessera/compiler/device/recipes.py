"""Recipes: a hash over everything that a kernel's code is made from, so that known code is found without Tile IR.

Building the Tile IR of a matrix product takes longer than reading its code from disk. A lowering is a function of a
specification, a schedule and the target, so those decide the code, together with LLVM and the generator's sources.
Names are left out: the same kernel in another program, or under another number, is the same code.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator

from tessera.compiler.process.revision import generator_revision
from tessera.scheduling.language.expression import Value, post_order
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.schedule_writer import accumulations, plain_fields
from tessera.scheduling.lowering.spec import Argument, Spec
from tessera.target import Target


def recipe(spec: Spec, schedule: Schedule, target: Target, llvm_version: str, timed: bool = False) -> str:
    """Forty hexadecimal digits, equal where the code is. `timed` code reads clocks around its tiles."""
    digest = hashlib.sha256()
    knobs = (f"{knob}={value!r}" for knob, value in sorted(schedule.items()))
    machine = (target.arch, str(target.vector_bits), str(target.vector_registers), *sorted(target.features))
    machine += (f"pairs={target.multiplies_bf16_pairs}",)  # all that lowerings know of what was measured
    for part in (*_spec(spec), *knobs, *machine, llvm_version, generator_revision(), *(("timed",) if timed else ())):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:40]


def _spec(spec: Spec) -> Iterator[str]:
    """A specification in parts of text, equal for equal ones: what Schedule IR says of it, without its name."""
    yield from map(_argument, spec.arguments)
    made = list(accumulations(spec))
    roots = [root for each in made for root in (*each.operands.values(), each.result)]
    roots += [output.value for output in spec.outputs]
    yield f"{type(spec).__name__} {plain_fields(spec)} {[(each.of, *each.operands) for each in made]}"
    numbers: dict[Value, int] = {}
    for value in post_order(roots):
        yield _value(value, numbers)
        numbers[value] = len(numbers)
    yield " ".join(str(numbers[root]) for root in roots)
    yield " ".join(str(output.argument) for output in spec.outputs)


def _argument(argument: Argument) -> str:
    return " ".join(f"{getattr(argument, field.name)}" for field in dataclasses.fields(argument))


def _value(value: Value, numbers: dict[Value, int]) -> str:
    arguments = [numbers[argument] for argument in value.arguments]
    # repr tells 1 from 1.0 and True, and 0.0 from -0.0.
    return f"{value.operation} {arguments} {value.attributes!r} {value.dtype} {sorted(value.axes)} {value.stage}"
