"""Ceilings measured on a real GPU lie below what is published, and not far."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tessera import settings
from tessera.backend.triton import ceilings
from tessera.target import detect_gpu
from tessera.target.stored_ceilings import stored_ceilings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def test_measured_ceilings_are_kept_and_lie_within_what_is_published(tmp_path: Path) -> None:
    gpu = detect_gpu()
    with settings.override(cache_dir=tmp_path):
        found = ceilings.measured()
        assert stored_ceilings(gpu) == found
    assert found.source.startswith("measured with torch")
    assert found.flop_per_s("bf16", gpu.cores) is not None
    if gpu.datasheet is None:
        pytest.skip(f"nothing is published here of {gpu.name}")
    for row in found.compute:
        peak = gpu.datasheet.peak(row.dtype)
        assert peak is not None
        assert 0.3 * peak.published < row.flop_per_s < 1.05 * peak.published, row
    published = gpu.datasheet.level("HBM")
    assert published is not None
    assert published.byte_per_s is not None
    copied = found.byte_per_s("HBM", gpu.cores, "copy")
    assert copied is not None
    assert 0.5 * published.byte_per_s < copied < 1.05 * published.byte_per_s
