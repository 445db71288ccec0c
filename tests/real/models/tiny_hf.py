"""Write a tiny Llama folder for transformers: configuration, tokenizer, and with --weights a model running in circles.

Run by the engine's own environment: tiny_hf.py OUT [--weights [--astray N]]

What the model says next depends on the last token alone: the words are laid out in circles of eight, and it goes round
the one it is in. So after one round its text can be foreseen from itself, by n-grams or by
a drafting model. With --astray N every Nth step goes to another word, where the same model without it would not go.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tiny_words import CONTROL, TEMPLATE, vocabulary
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

CONTEXT, WIDTH, LAYERS, HEADS, CIRCLE = 2048, 256, 2, 4, 8
SIZE = 2048  # of the vocabulary: a simulated engine may draw tokens from anywhere in the first two thousand


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", action="store_true")
    parser.add_argument("--astray", type=int, default=0)
    a = parser.parse_args()
    tokens, merges = vocabulary()
    known, missing = set(tokens), SIZE - len(CONTROL) - len(tokens)
    made_up = [word for letter in "jkqvwxyz" for token in tokens[256:] if (word := letter + token) not in known]
    tokens += made_up[:missing]
    words = range(256, len(tokens))  # what comes before are single bytes, which need not be whole characters
    tokens += CONTROL
    ids = {token: i for i, token in enumerate(tokens)}
    _tokenizer(ids, merges).save_pretrained(a.out)
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|endoftext|>"],
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(a.out)
    if a.weights:
        _write_weights(config, _steps(words, len(tokens), a.astray), a.out)


def _tokenizer(ids: dict[str, int], merges: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(ids, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(CONTROL)
    end, _, stop = CONTROL
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=end, eos_token=stop, pad_token=end, clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def _steps(words: range, size: int, astray: int) -> list[int]:
    """The token after each token, shape (size,)."""
    whole = words[: len(words) // CIRCLE * CIRCLE]
    after = [whole[i % len(whole)] for i in range(size)]  # bytes and controls lead into the circles
    for i, word in enumerate(whole):
        first = i - i % CIRCLE
        after[word] = whole[first + (i + 1) % CIRCLE]
        if astray and i % astray == 0:
            after[word] = whole[first + (i + 2) % CIRCLE]
    return after


def _write_weights(config: LlamaConfig, after: list[int], out: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:  # nothing is added to the last token's embedding on its way up
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedded = torch.randn(config.vocab_size, config.hidden_size)
        head = torch.zeros_like(embedded)
        head.index_add_(0, torch.tensor(after), embedded)  # the likeliest is what comes after the one seen
        model.model.embed_tokens.weight.copy_(embedded)
        model.lm_head.weight.copy_(head)
    model.to(torch.bfloat16).save_pretrained(out)


if __name__ == "__main__":
    main()
