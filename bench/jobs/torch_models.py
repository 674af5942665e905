"""Models of other people's libraries, as their users make them, through `torch.compile(model, backend="tessera")`:
transformers' GPT-2, Llama, BERT, ViT, T5, Whisper, Mamba and Mixtral, torchvision's networks of images, and a U-Net,
each with random weights. Those of a library that is not installed are not measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

from bench.environments import NotMeasuredError
from bench.jobs.blocks import SEED
from bench.jobs.job import Group, Inputs, Job
from bench.jobs.torch_compile import GOALS, through_tessera

GROUP = Group("models through torch.compile", 1.0)
TOLERANCE = 5e-5
WORDS = 8192
MIXTURE = "Mixtral"
"""torch's grouped products know no float64."""
CONDITIONAL = "ForConditionalGeneration"

Config = dict[str, Any]
Made = tuple[Callable[[], nn.Module], Callable[[], Inputs]]
"""What makes a model, and what makes its inputs."""


class Result(nn.Module):
    """A library's model whose result is one tensor, a field of what the library gives."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], field: str = "logits") -> None:
        super().__init__()
        self.model, self.names, self.field = model, names, field

    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = getattr(self.model(**dict(zip(self.names, inputs, strict=True))), self.field)
        return found


def _frozen(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(SEED)
    return make().eval().requires_grad_(False)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        raise NotMeasuredError(f"{name} cannot be imported: {missing}") from None


def _transformer(
    family: str, names: tuple[str, ...], config: Config, head: str = "ForCausalLM", field: str = "logits"
) -> nn.Module:
    library = _library("transformers")
    model = getattr(library, f"{family}{head}")
    return Result(model(getattr(library, f"{family}Config")(**config)), names, field)


def _vision(name: str) -> nn.Module:
    network: nn.Module = getattr(_library("torchvision").models, name)()
    return network


class Stage(nn.Module):
    """Two convolutions with group norms."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(inputs, outputs, 3, 1, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)])
        self.norms = nn.ModuleList([nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)])

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.silu(norm(conv(x)))
        return x


class Unet(nn.Module):
    """Three stages down and up: strided convolutions, a transposed one and a bilinear one back, joined channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.third = Stage(3, width), Stage(width, 2 * width), Stage(2 * width, 4 * width)
        self.down = nn.ModuleList([nn.Conv2d(k * width, k * width, 3, 2, 1) for k in (1, 2)])
        self.up, self.narrow = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.Conv2d(2 * width, width, 1)
        self.fourth, self.fifth = Stage(4 * width, 2 * width), Stage(2 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.first(images)
        middle = self.second(self.down[0](fine))
        x = self.up(self.third(self.down[1](middle)))
        x = self.narrow(self.fourth(torch.cat([middle, x], 1)))
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        out: Tensor = self.out(self.fifth(torch.cat([fine, x], 1)))
        return out


def _in_float32(module: nn.Module, inputs: Inputs) -> Tensor:
    found: Tensor = module(*inputs)
    return found.double()


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


def _tokens(batch: int, length: int, *decoder: int) -> Inputs:
    first = torch.randint(WORDS, (batch, length), generator=_seeded())
    return (first, torch.randint(WORDS, (batch, *decoder), generator=_seeded())) if decoder else (first,)


def _padded(batch: int, length: int) -> Inputs:
    lengths = torch.linspace(length // 2, length, batch).long()
    return (*_tokens(batch, length), (torch.arange(length) < lengths[:, None]).long())


def _images(side: int) -> Inputs:
    return (torch.randn(1, 3, side, side, generator=_seeded()),)


def _speech(frames: int) -> Inputs:
    return torch.randn(1, 80, frames, generator=_seeded()), *_tokens(1, 16)


def _of_words(quick: bool) -> dict[str, Made]:
    """transformers' models of words."""
    word, padded = ("input_ids",), ("input_ids", "attention_mask")
    layers, length = (1, 16) if quick else (4, 128)
    width, narrow = (32, 32) if quick else (768, 256)
    common: Config = {"vocab_size": WORDS, "use_cache": False}
    gpt2: Config = common | {"n_layer": layers, "n_embd": width, "n_head": width // 64 or 2}
    llama: Config = common | {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": layers}
    wide: Config = {"hidden_size": 2 * narrow, "intermediate_size": 5 * narrow}
    mixtral: Config = {"hidden_size": narrow, "intermediate_size": 2 * narrow, "num_local_experts": 4}
    bert: Config = _encoder(width) | {"num_hidden_layers": layers, "vocab_size": WORDS}
    mini: Config = (
        bert
        | _encoder(width // 2)
        | {"num_attention_heads": width // 64 or 2, "num_hidden_layers": layers + layers // 2}
    )
    mamba: Config = common | {"hidden_size": narrow, "num_hidden_layers": 2}
    t5: Config = common | {"num_layers": layers - layers // 4, "d_model": 2 * narrow}
    both = ("input_ids", "decoder_input_ids")
    states = {"head": "Model", "field": "last_hidden_state"}
    return {
        "GPT-2": (partial(_transformer, "GPT2", word, gpt2, "LMHeadModel"), partial(_tokens, 1, length)),
        "Llama": (partial(_transformer, "Llama", word, llama | wide), partial(_tokens, 1, length)),
        "BERT": (partial(_transformer, "Bert", padded, bert, **states), partial(_padded, 4, length // 2)),
        "MiniLM": (partial(_transformer, "Bert", padded, mini, **states), partial(_padded, 8, length // 4)),
        "T5": (partial(_transformer, "T5", both, t5, CONDITIONAL), partial(_tokens, 1, length, length // 4)),
        "Mamba": (partial(_transformer, "Mamba", word, mamba), partial(_tokens, 1, length // 4)),
        MIXTURE: (partial(_transformer, "Mixtral", word, llama | mixtral), partial(_tokens, 1, length // 4)),
    }


def _encoder(width: int) -> Config:
    return {"hidden_size": width, "num_attention_heads": width // 64 or 2, "intermediate_size": 4 * width}


def _of_signals(quick: bool) -> dict[str, Made]:
    """Models of speech and of images."""
    layers, width, frames, side = (1, 64, 16, 64) if quick else (2, 384, 3000, 224)
    whisper: Config = {"vocab_size": WORDS, "use_cache": False, "d_model": width, "max_source_positions": frames // 2}
    whisper |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"), 1)
    for part in ("encoder", "decoder"):
        sizes = {"layers": layers, "attention_heads": width // 64, "ffn_dim": 4 * width}
        whisper |= {f"{part}_{key}": value for key, value in sizes.items()}
    heard = ("input_features", "decoder_input_ids")
    vit: Config = _encoder(2 * width) | {"num_hidden_layers": 2 * layers, "image_size": side}
    networks = ("resnet50", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny")
    return {
        "Whisper": (partial(_transformer, "Whisper", heard, whisper, CONDITIONAL), partial(_speech, frames)),
        "ViT": (partial(_transformer, "ViT", ("pixel_values",), vit, "ForImageClassification"), partial(_images, side)),
        **{name: (partial(_vision, name), partial(_images, side)) for name in networks},
        "U-Net": (partial(Unet, width // 12 // 8 * 8 or 8), partial(_images, 64 if quick else 128)),
    }


def jobs(quick: bool) -> list[Job]:
    """The jobs of this theme; small ones when `quick`."""
    made = _of_words(quick) | _of_signals(quick)
    found = [
        Job(name, GOALS, inputs, partial(_frozen, make), through_tessera, TOLERANCE, group=GROUP, first_call=True)
        for name, (make, inputs) in made.items()
    ]
    return [replace(job, reference=_in_float32) if job.name == MIXTURE else job for job in found]
