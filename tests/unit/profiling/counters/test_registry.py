"""Backends are found by module or by registration, and keep to the seam."""

from __future__ import annotations

import pytest

from tessera.cli.examination import counters
from tessera.errors import ArgumentError
from tessera.profiling.counters import registry
from tessera.profiling.counters.interfaces import CounterBackend, Subject
from tests import forked

HERE = Subject()


@pytest.mark.parametrize("backend", list(registry.known_backends()), ids=lambda backend: backend.name)
def test_every_backend_samples_only_what_it_says_is_available(backend: CounterBackend) -> None:
    capabilities = backend.capabilities(HERE)
    assert capabilities
    assert backend.activities
    for capability in capabilities.values():
        assert capability.available or capability.reason
    samplers = backend.open(HERE)
    fields = [field for sampler in samplers for field in sampler.fields]
    for sampler in samplers:
        sampler.close()
    assert all(capabilities[field.name].available for field in fields)
    assert all(capabilities[field.name].unit == field.unit for field in fields)


def test_activities_choose_backends() -> None:
    assert {"process", "perf"} <= {backend.name for backend in registry.asked(["cpu"])}
    assert "memory" not in {backend.name for backend in registry.asked(["cpu"])}
    assert registry.asked([]) == []


def test_a_name_is_registered_once() -> None:
    taken = next(iter(registry.known_backends()))
    with pytest.raises(ArgumentError, match="exists"):
        registry.register(taken)
    with pytest.raises(ArgumentError, match="nobody"):
        registry.unregister(taken.name)


def test_doctor_has_a_line_for_each_backend() -> None:
    findings = list(counters())
    assert [finding.subject for finding in findings] == [backend.name for backend in registry.known_backends()]
    assert all(finding.found for finding in findings)


def test_a_vendors_library_is_not_loaded_by_importing_the_backends() -> None:
    program = (
        "import sys; from tessera.profiling.counters import registry; list(registry.known_backends());"
        "print(*sys.modules.keys() & {'pynvml', 'cupti', 'amdsmi', 'pyzes', 'polars'})"
    )
    done = forked.run(program)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
