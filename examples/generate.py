"""Text generation by Hugging Face's `generate`: eager torch, and `torch.compile(backend="tessera")`, token by token.

    python -m pip install transformers
    python examples/generate.py

Models are small and their weights random, made of configurations, so that nothing is downloaded. Each writes greedily,
with a cache of keys and values that grows and with one of a fixed size; the tokens must be those of eager torch, and
the scores they were chosen by as near as rounding is.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

WORDS, TOKENS = 128, 12
TOLERANCE = 1e-4
"""How far scores may be apart, in units of the largest: eager torch's own are so far from exact ones."""
CACHES = ("dynamic", "static")


def models() -> Iterator[tuple[str, Any]]:
    """Small models of several kinds: learned places, rotary ones with grouped heads, sliding windows with soft caps,
    and an encoder beside the decoder.
    """
    hf: Any = importlib.import_module("transformers")  # only here: the file can be imported without it

    shared = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    grouped = {**shared, **sizes, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64}
    yield "GPT-2", hf.GPT2LMHeadModel(hf.GPT2Config(**shared, n_positions=64, n_embd=64, n_layer=2, n_head=4))
    yield "Llama", hf.LlamaForCausalLM(hf.LlamaConfig(**grouped))
    yield "Gemma 2", hf.Gemma2ForCausalLM(hf.Gemma2Config(**grouped, sliding_window=8))
    both = {"vocab_size": WORDS, "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": None}
    t5 = hf.T5Config(**both, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4)
    yield "T5", hf.T5ForConditionalGeneration(t5)


def written(model: Any, prompt: torch.Tensor, cache: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens that a model writes, and the scores of each step."""
    found = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        min_new_tokens=TOKENS,
        max_new_tokens=TOKENS,
        cache_implementation=cache,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return found.sequences, torch.stack(found.logits)


def main(say: Callable[[str], None] = print) -> None:
    """Writes with each model and cache both ways, and compares."""
    if importlib.util.find_spec("transformers") is None:
        sys.exit("transformers is missing: python -m pip install transformers")
    wrong = []
    torch.manual_seed(0)
    for name, made in models():
        model = made.eval()
        prompt = torch.randint(2, WORDS, (2, 7))
        eager = model.forward
        for cache in CACHES:
            model.forward = eager
            tokens, scores = written(model, prompt, cache)
            torch._dynamo.reset()
            model.forward = torch.compile(eager, backend="tessera")
            ours, near = written(model, prompt, cache)
            apart = float((near - scores).abs().max() / scores.abs().max())
            same = torch.equal(ours, tokens) and apart <= TOLERANCE
            which = "the tokens of eager" if same else "OTHER tokens than eager"
            say(f"{name}, {cache} cache: {which}, scores within {apart:.1e}")
            if not same:
                wrong.append(f"{name} with a {cache} cache")
    if wrong:
        sys.exit(f"other tokens than eager: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
