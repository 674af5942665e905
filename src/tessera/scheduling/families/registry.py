"""All families of kernels: the folders beside this file, each of which exports one constant, `FAMILY`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tessera.errors import CompileError, UnsupportedTargetError
from tessera.scheduling import families as here
from tessera.scheduling.families.decomposition import Decomposition, When
from tessera.scheduling.families.family import Family, GpuModel, Kernels
from tessera.scheduling.families.unfused import UNFUSED
from tessera.scheduling.language.schedule import Schedule
from tessera.system.sources import members
from tessera.target import Target


@cache
def families() -> tuple[Family, ...]:
    """Every family, by the names of their folders."""
    folders = members(here, folders=True)
    return tuple(importlib.import_module(f"{folder.__name__}.family").FAMILY for folder in folders)


@cache
def _by_class() -> Mapping[type[Any], Family]:
    return {each: family for family in families() for each in (family.spec, family.problem)}


@cache
def _models() -> Mapping[type[Any], GpuModel]:
    models = [family.gpu.model for family in families() if family.gpu is not None]
    return {model.problem: model for model in models if model is not None}


@cache
def family_of_region(region: str) -> Family:
    """The family that computes kernels of a family of Schedule IR. CompileError for what none does."""
    found = next((family for family in families() if region in family.regions), None)
    if found is None:
        known = sorted({each for family in families() for each in family.regions})
        raise CompileError(f"no family computes kernels of {region!r}", hints=[f"there are {', '.join(known)}"])
    return found


@cache
def decompositions(region: str, when: When) -> tuple[Decomposition, ...]:
    """The ways in which calls of such kernels become several that are tried at a time, in order."""
    ways = (UNFUSED, *family_of_region(region).decompositions)
    return tuple(way for way in ways if way.when == when)


def kernel_family(value: object) -> Family:
    """The family of a specification or of a problem. KeyError for what is of none."""
    return _by_class()[type(value)]


def family_called(name: str) -> Family | None:
    """The family of a name; None where none has it."""
    return next((family for family in families() if family.name == name), None)


def lower(spec: Any, schedule: Schedule, target: Target) -> ModuleOp:
    """The Tile IR of a specification under a schedule. Raises UnsupportedTargetError (E_UNSUPPORTED_TARGET)."""
    return kernels_on(spec, target).lower(spec, schedule, target)


def kernels_on(spec: Any, target: Target) -> Kernels:
    """What a specification's family has on a device. Raises UnsupportedTargetError (E_UNSUPPORTED_TARGET)."""
    family = kernel_family(spec)
    kernels = family.on(target)
    if kernels is None:
        raise UnsupportedTargetError(
            f"{spec.name}: {family.kernels} have no kernel for GPUs yet", hints=["compute them on the CPU: x.to('cpu')"]
        )
    return kernels


def gpu_model(problem: object) -> GpuModel:
    """The model of a problem on a GPU. KeyError for one whose family has none."""
    return _models()[type(problem)]
