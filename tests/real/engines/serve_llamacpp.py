"""Serve a GGUF with llama.cpp's own HTTP server, which the xllamacpp wheel brings. Run by the engine's environment.

serve_llamacpp.py MODEL PORT [--draft DRAFT --draft-tokens N --acceptance-length L | --ngram]

With a draft model, acceptance is synthetic: L tokens a step on average, known beforehand. With --ngram, what the text
has said before is drafted, and the model decides.
"""

from __future__ import annotations

import argparse
import signal

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--draft")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--acceptance-length", type=float)
    parser.add_argument("--ngram", action="store_true")
    a = parser.parse_args()
    p = xllamacpp.CommonParams()
    p.model.path = a.model
    p.model_alias = "tiny" if isinstance(p.model_alias, str) else {"tiny"}
    p.hostnames, p.port = ["127.0.0.1"], a.port
    p.n_ctx, p.n_parallel = 32768, 16  # the context is shared by all slots
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = (
        1  # two spinning threads on two busy cores wait for each other
    )
    p.endpoint_metrics, p.cache_prompt = True, False
    if a.draft:
        p.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        p.speculative.draft.mparams.path = a.draft
        p.speculative.draft.n_max = a.draft_tokens
        p.speculative.draft.cpuparams.n_threads = p.speculative.draft.cpuparams_batch.n_threads = 1
        if a.acceptance_length:
            p.speculative.synth_len = a.acceptance_length
    if a.ngram:
        p.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        p.speculative.ngram_simple.size_n, p.speculative.ngram_simple.size_m = 3, 8
    server = xllamacpp.Server(p)
    print(server.listening_address, flush=True)  # noqa: T201
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
