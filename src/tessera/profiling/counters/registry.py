"""All counter backends: the modules of `counters/backends/`, and those that were registered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tessera.errors import ArgumentError
from tessera.profiling.counters import backends
from tessera.profiling.counters.interfaces import Capability, CounterBackend, Sampler, Subject
from tessera.system.sources import members

_registered: Final[dict[str, CounterBackend]] = {}


def register(backend: CounterBackend) -> CounterBackend:
    """Adds a backend to those of every later session, and gives it. Raises ArgumentError for a name that is taken."""
    if any(backend.name == known.name for known in known_backends()):
        raise ArgumentError(
            f"a counter backend named {backend.name!r} exists", hints=["take it out first with unregister(name)"]
        )
    _registered[backend.name] = backend
    return backend


def unregister(name: str) -> None:
    """Takes a registered backend out; its samplers go on. Raises ArgumentError where nobody registered the name."""
    if _registered.pop(name, None) is None:
        raise ArgumentError(f"nobody registered a counter backend named {name!r}")


def known_backends() -> Iterator[CounterBackend]:
    """Every backend, those of Tessera by name of their module, then those that were registered."""
    for module in members(backends):
        backend: CounterBackend = module.BACKEND
        yield backend
    yield from _registered.values()


def asked(activities: Iterable[str] | None = None) -> list[CounterBackend]:
    """The backends that any of these activities asks for; all of them for None."""
    wanted = None if activities is None else frozenset(activities)
    return [backend for backend in known_backends() if wanted is None or backend.activities & wanted]


def capabilities(
    subject: Subject | None = None, activities: Iterable[str] | None = None
) -> dict[str, dict[str, Capability]]:
    """What can be read here and what cannot, with reasons: by backend, then by field."""
    looked_at = subject or Subject()
    return {backend.name: dict(backend.capabilities(looked_at)) for backend in asked(activities)}


def open_samplers(subject: Subject | None = None, activities: Iterable[str] | None = None) -> list[tuple[str, Sampler]]:
    """Opened samplers with the names of their backends; the caller closes them."""
    looked_at = subject or Subject()
    return [(backend.name, sampler) for backend in asked(activities) for sampler in backend.open(looked_at)]
