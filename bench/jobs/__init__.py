"""Problems that are whole modules, by theme: what the suites ``attention conv blocks models skinny``,
``torch-compile`` and ``torch-models`` measure.

``bench/jobs/<theme>.py`` has ``jobs(quick: bool) -> list[Job]``; a worker process finds a job by its theme and name.
"""

from __future__ import annotations

import importlib

from bench.jobs.job import Job

THEMES: dict[str, tuple[str, ...]] = {
    "attention": ("attention",),
    "conv": ("conv", "depthwise", "spectral"),
    "blocks": ("blocks",),
    "models": ("gpt2", "resnet"),
    "skinny": ("matmul",),
    "torch-compile": ("torch_compile", "training"),
    "torch-models": ("torch_models",),
}
"""The themes of each suite, in the order in which they are measured."""


def load(theme: str, quick: bool) -> list[Job]:
    """The jobs of `theme`. Raises ValueError when two have one name, since workers find a job by it."""
    found: list[Job] = importlib.import_module(f"bench.jobs.{theme}").jobs(quick)
    names = [job.name for job in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"bench.jobs.{theme} has more than one job called {', '.join(twice)}")
    return found


def find(theme: str, name: str, quick: bool) -> Job:
    """The job `name` of `theme`. Raises KeyError when there is none."""
    return {job.name: job for job in load(theme, quick)}[name]
