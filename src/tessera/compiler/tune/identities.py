"""What a tuned schedule is remembered under: the identity of a kernel with its layouts, for one problem size."""

from __future__ import annotations

from functools import lru_cache

from tessera.compiler.bind.subjects import Subject
from tessera.lazy.policy import current_policy
from tessera.scheduling.families.registry import kernel_family
from tessera.tuning.store.identity import Identity


def identify(subject: Subject, shape: tuple[int, ...], accumulation: str, arch: str, threads: int) -> Identity:
    """The identity of a subject under the numerics policy in force; the rest as `Identity` has it."""
    policy = current_policy()
    operator, dtypes, layouts = _signature(subject)
    return Identity(
        operator=operator,
        shape=shape,
        dtypes=dtypes,
        layouts=layouts,
        math="tf32" if policy.tf32 else kernel_family(subject.spec).math(subject.spec),
        accumulation=accumulation,
        determinism=policy.mode,
        arch=arch,
        threads=threads,
    )


@lru_cache(maxsize=1024)
def _signature(subject: Subject) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The operator of a subject, and the dtypes and layouts of its arguments."""
    arguments = subject.pattern.arguments
    layouts = (
        "scalar"
        if a.is_scalar
        else ",".join(f"{axis}{'' if s is None else s}" for axis, s in zip(a.axes, a.strides, strict=True))
        + ("" if a.panels is None else f" panels {a.panels.width}x{a.panels.group}")
        for a in arguments
    )
    operator = subject.item.name.rsplit("_", 1)[0]
    if subject.pins:  # what was tuned around given knobs is not the winner of all schedules
        operator += f" pinned to {subject.pins}"
    operator += kernel_family(subject.spec).identity(subject.spec)
    return operator, tuple(a.dtype.name for a in arguments), tuple(layouts)
