"""Write a tiny llama model with random weights as GGUF: a byte-level tokenizer, a chat template, and no end in sight.

Run by the engine's own environment: tiny_gguf.py OUT --layers N --width N --heads N --seed N
"""

from __future__ import annotations

import argparse

import gguf
import numpy as np
from tiny_words import CONTROL, TEMPLATE, vocabulary

CONTEXT = 8192


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    for name in ("layers", "width", "heads", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    a = parser.parse_args()
    rng = np.random.default_rng(a.seed)
    tokens, merges = vocabulary()
    bytes_and_words = len(tokens)
    tokens += CONTROL
    ids = {token: i for i, token in enumerate(tokens)}
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL

    def weights(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * scale / np.sqrt(shape[-1])).astype(np.float32)

    w = gguf.GGUFWriter(a.out, "llama")
    w.add_name("tiny-random")
    w.add_context_length(CONTEXT)
    w.add_embedding_length(a.width)
    w.add_block_count(a.layers)
    w.add_feed_forward_length(4 * a.width)
    w.add_head_count(a.heads)
    w.add_head_count_kv(a.heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(a.width // a.heads)
    w.add_vocab_size(len(tokens))
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([normal] * bytes_and_words + [control] * len(CONTROL))
    w.add_token_merges(merges)
    w.add_bos_token_id(ids["<|endoftext|>"])
    w.add_eos_token_id(ids["<|im_end|>"])
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)
    w.add_tensor("token_embd.weight", weights(len(tokens), a.width, scale=np.sqrt(a.width)))
    head = weights(len(tokens), a.width, scale=3.0)
    head[bytes_and_words:] = 0  # never the end of the text, and
    head[:256] = 0  # no single bytes: what comes out is ASCII
    w.add_tensor("output.weight", head)
    w.add_tensor("output_norm.weight", np.ones(a.width, np.float32))
    for layer in range(a.layers):
        block = f"blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            w.add_tensor(f"{block}{name}.weight", weights(a.width, a.width))
        for name in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"{block}{name}.weight", np.ones(a.width, np.float32))
        w.add_tensor(f"{block}ffn_gate.weight", weights(4 * a.width, a.width))
        w.add_tensor(f"{block}ffn_up.weight", weights(4 * a.width, a.width))
        w.add_tensor(f"{block}ffn_down.weight", weights(a.width, 4 * a.width))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
