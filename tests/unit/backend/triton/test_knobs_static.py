"""Each knob of products shows in the compiled code, and what the compiler changes silently is refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tessera import target
from tessera.dtypes import bf16
from tessera.errors import ScheduleIgnoredError
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tests.unit.backend.triton.promises import aligned
from tests.unit.scheduling import specs

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.contract import StaticFacts
from tessera.backend.triton.compilation.static import static_facts

PLAIN = Schedule(tile=(128, 128, 64), warps=4, pipeline_depth=3, group=8, vector_bytes=16)
COPIED: dict[str, KnobValue] = {"a_indexing": "host_descriptor", "b_indexing": "host_descriptor"}


def facts(arch: str, *changes: Mapping[str, KnobValue]) -> list[StaticFacts]:
    """What bf16 products become under `PLAIN` and changes of it."""
    modules = [lower_contraction_gpu(specs.matmul(bf16), PLAIN.replace(**change)) for change in changes]
    found = static_facts([aligned(module) for module in modules], target.gpu(arch))
    assert all(isinstance(each, StaticFacts) for each in found), found
    return [each for each in found if isinstance(each, StaticFacts)]


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_descriptors_are_copied_in_bulk(arch: str) -> None:
    host, device, pointer = facts(
        arch, COPIED, {"a_indexing": "device_descriptor", "b_indexing": "device_descriptor"}, {}
    )
    assert host.instructions["cp.async.bulk.tensor"] >= 2
    assert device.instructions["cp.async.bulk.tensor"] >= 2
    assert "cp.async" not in host.instructions
    assert "cp.async.bulk.tensor" not in pointer.instructions


def test_results_are_stored_in_bulk() -> None:
    (stored,) = facts("sm90", {"out_indexing": "host_descriptor"})
    assert stored.instructions["cp.async.bulk.tensor"] == 1


@pytest.mark.parametrize(
    ("arch", "grid"), [("sm90", "flat"), ("sm90", "persistent"), ("sm100", "flat"), ("sm100", "fused")]
)
def test_specialized_warps_trade_registers(arch: str, grid: str) -> None:
    (specialized,) = facts(arch, {**COPIED, "warp_specialize": True, "grid": grid})
    assert specialized.instructions["setmaxnreg"] > 0
    assert specialized.warps > 4
    assert specialized.spill_bytes == 0
    assert ("tt.get_num_programs" in specialized.operations) is (grid != "flat")


def test_registers_are_capped() -> None:
    capped, free = facts("sm90", {"max_registers": 128}, {})
    assert capped.instructions["maxnreg"] == 1
    assert capped.registers <= 128 < free.registers


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_eviction_policies_stand_on_loads_and_stores(arch: str) -> None:
    evicting, stored = facts(
        arch, {"pipeline_depth": 1, "a_eviction": "first", "b_eviction": "last"}, {"out_eviction": "last"}
    )
    assert evicting.instructions["evict_first"] > 0
    assert evicting.instructions["evict_last"] > 0
    assert stored.instructions["evict_last"] > 0


def test_two_buffers_of_sums_take_twice_the_tensor_memory() -> None:
    two, one = facts(
        "sm100", {**COPIED, "grid": "fused", "accumulators": 2}, {**COPIED, "grid": "fused", "accumulators": 1}
    )
    assert (two.tensor_memory_columns, one.tensor_memory_columns) == (256, 128)
    assert two.occupancy(target.gpu("sm100")).blocks <= 2


IGNORED: Mapping[str, tuple[str, dict[str, KnobValue], str]] = {
    "eight warps": (
        "sm90",
        {**COPIED, "warps": 8, "warp_specialize": True},
        "warp_specialize was dropped: all 8 warps",
    ),
    "no copy engine": ("sm80", {"a_indexing": "device_descriptor"}, "descriptors were dropped"),
    "asynchronous loads": ("sm90", {"a_eviction": "first"}, "the eviction policy 'first' was dropped"),
    "loads that wait": (
        "sm100",
        {**COPIED, "grid": "fused", "accumulators": 2, "pipeline_depth": 1},
        "accumulators share 64 columns of tensor memory, not 128",
    ),
}


@pytest.mark.parametrize("name", IGNORED)
def test_what_the_compiler_changes_silently_is_refused(name: str) -> None:
    arch, changes, message = IGNORED[name]
    module = lower_contraction_gpu(specs.matmul(bf16), PLAIN.replace(tile=(128, 64, 32), **changes))
    (found,) = static_facts([aligned(module)], target.gpu(arch))
    (again,) = static_facts([aligned(module)], target.gpu(arch))  # from the cache
    assert isinstance(found, ScheduleIgnoredError)
    assert isinstance(again, ScheduleIgnoredError)
    assert message in found.message
    assert again.message == found.message


def test_accesses_are_as_wide_as_promised() -> None:
    loads = [
        {name: count for name, count in each.instructions.items() if name.startswith("cp.async")}
        for each in facts("sm90", *[{"vector_bytes": width} for width in (16, 8, 4, 2)])
    ]
    # 2 x 128 x 64 x 2 bytes, by 128 threads, three times in the text: two stages ahead of the loop, and in it.
    assert [each.get("cp.async", 0) for each in loads] == [48, 96, 192, 0]


def test_a_result_in_parts_needs_less_shared_memory() -> None:
    whole, halves = facts("sm90", {"grid": "fused", **COPIED}, {"grid": "fused", **COPIED, "epilogue_parts": 2})
    assert halves.spill_bytes == whole.spill_bytes == 0
    assert halves.instructions["wgmma"] == whole.instructions["wgmma"]
