"""Whether tokens were counted, and counted alike: lengths, sources, and what the first chunk held."""

from __future__ import annotations

from sweeps.columns import CHUNKS
from sweeps.verdicts.frame import INVALID, WARN, Context, Verdict


def osl_mismatch(c: Context) -> Verdict | None:
    asked, got = c.metrics["requested_tokens"]["mean"], c.metrics["output_tokens"]["mean"]
    if not asked or got is None or abs(got - asked) <= 0.05 * asked:
        return None
    reasons = ", ".join(f"{name} {count}" for name, count in c.metrics["finish_reasons"].items()) or "none"
    return Verdict(
        "osl_mismatch",
        WARN,
        f"asked for {asked:.0f} tokens and got {got:.0f} on average (finish reasons: {reasons})",
        "5 %",
        "compare arms only where their lengths agree; extra_body: {ignore_eos: true} fixes the length where "
        "`endsweep probe` finds it honoured",
    )


def hidden_tokens(c: Context) -> Verdict | None:
    r = c.requests
    use = c.good & (r.ints("streamed_tokens") > 0)
    if not use.any():
        return None
    # Every token that is streamed brings at least one byte of text; a few (end of text, template) bring none.
    over = r.ints("streamed_tokens")[use] > r.ints("text_bytes")[use] + 8
    share = float(over.mean())
    if share <= 0.05:
        return None
    return Verdict(
        "hidden_tokens",
        INVALID,
        f"in {share:.0%} of the requests the server counts more tokens than the bytes of text it streamed",
        "5 % of the requests",
        "the server bills tokens that it does not stream (hidden reasoning): speed per user cannot be known here",
    )


def mixed_tokens(c: Context) -> Verdict | None:
    if c.metrics["token_source"] != "mixed":
        return None
    return Verdict(
        "mixed_tokens",
        INVALID,
        "some replies state their usage and others do not",
        "one source of token counts a point",
        "ask the server for usage in every stream (stream_options.include_usage)",
    )


def estimated_tokens(c: Context) -> Verdict | None:
    if c.metrics["token_source"] != CHUNKS:
        return None
    return Verdict(
        "estimated_tokens",
        WARN,
        "the server states no usage: each fragment was counted as one token",
        "token counts from the server",
        "do not compare arms of which one speculates: its fragments may hold several tokens",
    )


def tpot_bias(c: Context) -> Verdict | None:
    bound = c.metrics["tpot_ms"].get("bias_bound")
    if bound is None or bound <= 0.05 or hidden_tokens(c) is not None:
        return None
    return Verdict(
        "tpot_bias",
        WARN,
        f"it is not told how many tokens the first chunk held, so tpot may be too low by up to {bound:.0%}",
        "5 %",
        "ask for the tokens of each chunk (chunk_tokens: usage, or ids), or for longer answers",
    )
