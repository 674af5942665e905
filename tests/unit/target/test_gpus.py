"""GPUs: what data sheets say hangs together, and what torch says of a device becomes a target."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tessera import target
from tessera.errors import UnsupportedTargetError
from tessera.target import GPUS, DataSheet, Target, describe_gpu, detect_gpu

PEAKS = [
    (name, peak.dtype, peak.unit)
    for name, found in GPUS.items()
    if found.datasheet is not None
    for peak in found.datasheet.peaks
]


def sheet(name: str) -> DataSheet:
    """The data sheet of a GPU."""
    found = target.gpu(name).datasheet
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "dtype", "unit"), PEAKS)
def test_multiprocessors_and_clock_make_the_published_peak(name: str, dtype: str, unit: str) -> None:
    (peak,) = [each for each in sheet(name).peaks if (each.dtype, each.unit) == (dtype, unit)]
    assert peak.computed(GPUS[name].cores) == pytest.approx(peak.published, rel=0.01)


@pytest.mark.parametrize("name", GPUS)
def test_every_figure_names_its_source(name: str) -> None:
    found = sheet(name)
    texts = [peak.source for peak in found.peaks] + [link.source for link in found.interconnect.links]
    texts += [text for facts in found.memory for text in (facts.size_source, facts.source)]
    texts += [found.clock_source, found.power_source, *(text for _, text in found.sources)]
    assert all(len(text) > 10 for text in texts)
    assert {key for key, _ in found.sources} == {"multiprocessors", "limits"}
    # What nobody published is None, and says so.
    assert all(facts.byte_per_s or "not published" in facts.source for facts in found.memory)


@pytest.mark.parametrize("name", GPUS)
def test_ceilings_are_the_published_figures(name: str) -> None:
    found = GPUS[name]
    assert found.ceilings is not None
    for row in found.ceilings.compute:
        peak = sheet(name).peak(row.dtype)
        assert peak is not None
        assert row == target.ComputeCeiling(row.dtype, found.cores, peak.published)
    assert found.byte_per_s("HBM") == found.ceilings.byte_per_s("HBM", found.cores)
    assert {level.name for level in found.memory} == {facts.level for facts in sheet(name).memory}
    assert found.byte_per_s("TMEM") is None


def test_a_dtype_may_have_two_units() -> None:
    hopper = sheet("H100")
    matrix, vector = hopper.peak("fp64", "matrix"), hopper.peak("fp64", "vector")
    assert matrix is not None
    assert vector is not None
    assert matrix.published == pytest.approx(2 * vector.published, rel=0.01)
    assert hopper.peak("fp64") == matrix
    assert hopper.peak("bf16", "vector") is None


@pytest.mark.parametrize(
    ("name", "kind", "total"),
    [
        ("A100", "NVLink", 600e9),
        ("H100", "NVLink", 900e9),
        ("H200", "NVLink", 900e9),
        ("B200", "NVLink", 1800e9),
        ("GB200", "NVLink", 1800e9),
        ("MI300X", "Infinity Fabric", 896e9),
    ],
)
def test_links_to_peers_add_up_to_what_is_printed(name: str, kind: str, total: float) -> None:
    link = sheet(name).interconnect.to("peers")
    assert link is not None
    assert (link.kind, link.total_byte_per_s) == (kind, total)
    assert link.one_way_byte_per_s == total / 2


@pytest.mark.parametrize(("name", "kind"), [("A100", "PCIe"), ("H200", "PCIe"), ("GB200", "NVLink-C2C")])
def test_the_link_to_the_host(name: str, kind: str) -> None:
    link = sheet(name).interconnect.to("host")
    assert link is not None
    assert link.kind == kind


def test_both_a100s_are_known_and_the_larger_stands_for_both() -> None:
    assert target.gpu("A100").name == "A100-SXM4-80GB"
    assert target.gpu("A100-SXM4-40GB").byte_per_s("HBM") == 1.555e12
    assert target.gpu("GB200").cores == 152
    assert target.gpu("NVIDIA H100").name == target.gpu("h100-sxm5").name == target.gpu("H100 SXM5").name
    assert target.gpu("AMD Instinct MI300X").name == target.gpu("gfx942").name == "MI300X"
    assert target.gpu("sm90a") is target.gpu("sm_90a") is target.gpu("sm90")
    assert target.gpu("sm_100a") is target.gpu("sm100")
    for asked in ("sm89", "sm_89", "RTX 4090", "NVIDIA GeForce RTX 4090"):
        assert (target.gpu(asked).name, target.gpu(asked).arch) == ("RTX-4090", "sm_89")
    for unknown in ("sm90b", "", "NVIDIA "):
        with pytest.raises(UnsupportedTargetError):
            target.gpu(unknown)


# -- devices ----------------------------------------------------------------------------------------------------------


@dataclass
class Properties:
    """What torch says of an H200."""

    name: str = "NVIDIA H200"
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    total_memory: int = 150_110_011_392
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    shared_memory_per_multiprocessor: int = 233_472
    L2_cache_size: int = 62_914_560
    clock_rate: int = 1_980_000
    memory_clock_rate: int = 3_201_000
    memory_bus_width: int = 6144
    gcnArchName: str = "NVIDIA H200"  # noqa: N815 - torch's name


H200 = Properties()


def test_a_device_of_the_data_sheets_gets_their_facts_and_its_own_memory() -> None:
    found = describe_gpu(H200)
    assert (found.name, found.arch, found.ceilings) == ("H200-SXM5-141GB", "sm_90", target.gpu("H200").ceilings)
    level = found.level("HBM")
    assert level is not None
    assert level.size_bytes == H200.total_memory


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"name": "NVIDIA H100 80GB HBM3"}, "H100-SXM5-80GB"),
        ({"name": "NVIDIA A100-SXM4-40GB", "major": 8, "multi_processor_count": 108}, "A100-SXM4-40GB"),
        ({"name": "NVIDIA GB200", "major": 10, "multi_processor_count": 152}, "GB200"),
        ({"name": "NVIDIA B200", "major": 10, "multi_processor_count": 148}, "B200"),
        (
            {"name": "AMD Instinct MI300X", "multi_processor_count": 304, "gcnArchName": "gfx942:sramecc+:xnack-"},
            "MI300X",
        ),
    ],
)
def test_devices_are_told_apart(changes: dict[str, object], name: str) -> None:
    assert describe_gpu(replace(H200, **changes)).name == name  # type: ignore[arg-type]


def test_an_unknown_card_reports_its_limits_and_gets_estimates() -> None:
    card = replace(
        H200,
        name="NVIDIA H100 PCIe",
        multi_processor_count=114,
        clock_rate=1_755_000,
        memory_clock_rate=1_593_000,
        memory_bus_width=5120,
    )
    found = describe_gpu(card)
    assert (found.name, found.cores, found.gpu) == ("NVIDIA H100 PCIe", 114, target.gpu("H100").gpu)
    assert found.ceilings is not None
    assert found.ceilings.source.startswith("estimate: H100-SXM5-80GB scaled to 114 multiprocessors at 1755 MHz")
    assert found.byte_per_s("HBM") == pytest.approx(2.039e12, rel=0.01)
    # Published for this card: 51.2 in fp32, 756 in bf16, for which it boosts to 1620 MHz only.
    assert found.ceilings.flop_per_s("fp32", 114) == pytest.approx(51.2e12, rel=0.01)
    assert found.ceilings.flop_per_s("bf16", 114) == pytest.approx(756e12, rel=0.01)


def test_a_part_of_a_gpu_is_another_device() -> None:
    found = describe_gpu(replace(H200, name="NVIDIA H200 MIG 3g.71gb", multi_processor_count=60))
    assert found.cores == 60
    assert found.datasheet is None


def test_a_consumer_card_holds_fewer_warps_and_blocks() -> None:
    card = replace(
        H200,
        name="NVIDIA GeForce RTX 4080",
        major=8,
        minor=9,
        multi_processor_count=76,
        max_threads_per_multi_processor=1536,
        shared_memory_per_multiprocessor=102_400,
    )
    limits = describe_gpu(card).gpu
    assert limits is not None
    assert (limits.max_warps, limits.max_blocks, limits.max_shared_bytes_per_block) == (48, 24, 101_376)
    ceilings = describe_gpu(card).ceilings
    assert ceilings is not None
    assert ceilings.source.startswith("estimate: RTX-4090 scaled to 76 multiprocessors")


def test_ada_holds_fewer_warps_and_blocks_on_its_data_sheet_too() -> None:
    limits = target.gpu("RTX 4090").gpu
    assert limits is not None
    assert (limits.max_warps, limits.max_blocks, limits.max_shared_bytes_per_block) == (48, 24, 101_376)
    assert sheet("RTX 4090").interconnect.to("peers") is None


def test_hidden_clocks_are_taken_to_be_the_known_gpus() -> None:
    card = replace(H200, name="NVIDIA H20", multi_processor_count=78, clock_rate=0, memory_clock_rate=0)
    found = describe_gpu(card)
    assert found.ceilings is not None
    assert found.ceilings.source == "estimate: H100-SXM5-80GB scaled to 78 multiprocessors at 1980 MHz"
    assert found.byte_per_s("HBM") == pytest.approx(3.352e12 * 78 / 132)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Tesla T4", "major": 7, "minor": 5}, r"Tesla T4 has compute capability 7\.5, and kernels need 8\.0"),
        ({"name": "AMD Instinct MI250X", "gcnArchName": "gfx90a:sramecc+"}, "gfx90a.*only gfx942"),
    ],
)
def test_what_kernels_cannot_run_on_is_refused_with_the_reason(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedTargetError, match=message):
        describe_gpu(replace(H200, **changes))  # type: ignore[arg-type]


def test_no_device_of_that_number(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UnsupportedTargetError, match=r"no GPU number 0: .* sees none"):
        detect_gpu()


def test_a_device_is_described_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: {1: H200}[index])
    found: Target = detect_gpu(1)
    assert found.name == "H200-SXM5-141GB"
