"""Checkpoints: written in one layout and read in another, by this package and by torch, and changed as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from tessera import dist, op
from tessera.errors import AbstractMeshError, ArgumentError, CheckpointError, DTypeError, ShapeMismatchError
from tessera.sharding.checkpoints import folders


def emulated(**axes: int) -> dist.Mesh:
    return dist.Mesh(list(axes), shape=tuple(axes.values()), backend="emulated")


LAYOUTS = [
    (None, None),
    ({"dp": 2, "tp": 2}, dist.ShardSpec((0, 1), ("dp", "tp"))),
    ({"dp": 2, "tp": 3}, dist.ShardSpec((1,), (("tp", "dp"),))),
    ({"tp": 8}, dist.ShardSpec((0,), ("tp",))),  # the last shards are empty
    ({"dp": 4}, None),
]


def laid_out(whole: torch.Tensor, number: int) -> object:
    axes, layout = LAYOUTS[number]
    return op.tensor(whole) if axes is None else dist.distribute(whole, layout, emulated(**axes))


def test_what_one_layout_wrote_another_reads(tmp_path: Path) -> None:
    whole = torch.arange(35, dtype=torch.float32).reshape(5, 7)
    for source in range(len(LAYOUTS)):
        state = {"layers": [{"w": laid_out(whole, source)}, (laid_out(whole.to(torch.bfloat16), source),)], "step": 7}
        dist.save(tmp_path / "kept", state)
        for target in range(len(LAYOUTS)):
            like: dict[str, Any] = {
                "layers": [{"w": laid_out(0 * whole, target)}, (laid_out(0 * whole.to(torch.bfloat16), target),)],
                "step": 0,
            }
            found = dist.load(tmp_path / "kept", like)
            w, (narrow,) = found["layers"][0]["w"], found["layers"][1]
            assert torch.equal(w.full().torch(), whole), (source, target)
            assert torch.equal(narrow.full().torch(), whole.to(torch.bfloat16)), (source, target)
            assert w.layout == like["layers"][0]["w"].layout
            assert found["step"] == 7
            assert (w + 1).full().torch()[4, 6] == 35.0


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_what_was_written_and_the_other_way_round(tmp_path: Path) -> None:
    whole = torch.randn(6, 5)
    dist.save(tmp_path / "ours", {"model": {"w": laid_out(whole, 2)}, "step": 3})
    read: dict[str, Any] = {"model": {"w": torch.zeros(6, 5)}, "step": 0}
    state_dict_loader.load(read, checkpoint_id=tmp_path / "ours", no_dist=True)
    assert torch.equal(read["model"]["w"], whole)
    assert read["step"] == 3

    state_dict_saver.save({"model": {"w": whole + 1}, "step": 4}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    found = dist.load(tmp_path / "theirs", {"model": {"w": laid_out(whole, 1)}, "step": 0})
    assert torch.equal(found["model"]["w"].full().torch(), whole + 1)
    assert found["step"] == 4


def test_torch_tensors_are_written_to_and_odd_tensors_come_back(tmp_path: Path) -> None:
    empty = dist.distribute(torch.zeros(0, 3), dist.ShardSpec((0,), ("dp",)), emulated(dp=2))
    state = {
        "own": torch.arange(3),
        "scalar": op.tensor(2.5),
        "empty": empty,
        "name": "adam",
        "rate": 0.5,
        "none": None,
    }
    dist.save(tmp_path / "kept", state)
    own = torch.zeros(3, dtype=torch.int64)
    found = dist.load(tmp_path / "kept", {**state, "own": own, "scalar": op.tensor(0.0), "name": "", "rate": 0.0})

    assert found["own"] is own
    assert own.tolist() == [0, 1, 2]
    assert found["scalar"].item() == 2.5
    assert found["empty"].full().shape == (0, 3)
    assert (found["name"], found["rate"], found["none"]) == ("adam", 0.5, None)


def test_a_save_that_is_broken_off_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    dist.save(kept, {"w": op.tensor([1.0, 2.0])})

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(FileSystemWriter, "write_data", broken)
        with pytest.raises(CheckpointError, match="No space left"):
            dist.save(kept, {"w": op.tensor([3.0, 4.0])})
    assert dist.load(kept, {"w": op.tensor([0.0, 0.0])})["w"].tolist() == [1.0, 2.0]
    assert folders.beside(kept).exists()
    dist.save(kept, {"w": op.tensor([5.0, 6.0])})
    assert dist.load(kept, {"w": op.tensor([0.0, 0.0])})["w"].tolist() == [5.0, 6.0]
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def test_what_is_not_there_or_another_is_refused(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*kept"):
        dist.load(kept, {"w": op.tensor([0.0])})
    dist.save(kept, {"w": op.tensor([1.0]), "step": 1})
    with pytest.raises(CheckpointError, match="no tensor 'v'") as missing:
        dist.load(kept, {"v": op.tensor([0.0])})
    assert list(missing.value.hints) == ["it has step, w"]
    with pytest.raises(CheckpointError, match="no number 'w'"):
        dist.load(kept, {"w": 0.0})
    with pytest.raises(ShapeMismatchError, match=r"w is of shape \(1,\) in the checkpoint, not \(2,\)"):
        dist.load(kept, {"w": op.tensor([0.0, 0.0])})
    with pytest.raises(DTypeError, match=r"torch\.float32 in the checkpoint"):
        dist.load(kept, {"w": op.tensor([0.0], dtype="fp64")})
    with pytest.raises(ArgumentError, match=r"a object in a state, at 'a\.b'"):
        dist.save(kept, {"a": {"b": object()}})
    with pytest.raises(AbstractMeshError, match="tessera run --ranks 8"):
        dist.save(kept, {"w": dist.tensor((8, 8), dist.ShardSpec((0,), ("tp",)), dist.Mesh(["tp"], range(8)))})
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is no folder"):
        dist.save(tmp_path / "file", {"w": op.tensor([1.0])})
