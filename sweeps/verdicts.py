"""What the tool itself says about a point's trustworthiness: what was seen, against which threshold, what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from endpoints.outcomes import Outcome
from sweeps.arrow import Ints
from sweeps.columns import CHUNKS
from sweeps.evidence import Evidence
from sweeps.metrics import Mask, Span, tpot_ms, ttft_ms
from sweeps.requests import Requests
from sweeps.trend import trend

WARN, INVALID = "warn", "invalid"
_NO_FAILURE = ("ok", "cancelled", "rate_limited")


@dataclass(frozen=True, slots=True)
class Verdict:
    code: str
    severity: str
    evidence: str
    threshold: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier points of the arm's run showed: (model, fingerprint) pairs, and how many sent prompts unsalted;
    `asked_unsalted`: so did the check for equal answers."""

    backends: frozenset[tuple[str, str]] = frozenset()
    unsalted_points: int = 0
    asked_unsalted: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """What a verdict may look at: the requests, which of them count, the point's metrics, and what was asked."""

    requests: Requests
    bursts: Ints  # of each request's fragments; 0 where they are too few to say
    keep: Mask
    span: Span | None
    metrics: Mapping[str, Any]
    counts: Mapping[str, Any]
    client: Mapping[str, Any]
    concurrency: int
    streamed: bool
    emptying: float  # share of the window in which slots had nothing more to send
    error_rate: float
    common_bytes: int  # of every prompt's start: the system prompt
    draft_tokens: int | None  # declared speculation; None: not declared
    evidence: Evidence
    speculates: bool | None  # what the arm says of itself; None: nothing
    raw_prompts: bool  # sent without a chat template, or looking random
    synthetic: str | None
    cut_short: str | None
    earlier: Earlier

    @property
    def good(self) -> Mask:
        return self.keep & self.requests.ok


def judge(context: Context) -> list[dict[str, Any]]:
    """All verdicts on one point, the invalidating ones first."""
    found = [verdict for rule in _RULES if (verdict := rule(context)) is not None]
    return [asdict(v) for v in sorted(found, key=lambda v: v.severity != INVALID)]


def _interrupted(c: Context) -> Verdict | None:
    if c.cut_short is None:
        return None
    return Verdict("interrupted", INVALID, c.cut_short, "a point runs to its end", "measure it again with --resume")


def _errors(c: Context) -> Verdict | None:
    issued, failed = c.counts["issued"], c.counts["failed"]
    ours = c.requests.texts("outcome") == Outcome.CLIENT_RESOURCE.value  # of any phase: the load was not what it says
    if lost := int(ours.sum()):
        return Verdict(
            "errors",
            INVALID,
            f"{lost} requests failed by this machine's own fault, the first: {c.requests.texts('error')[ours][0]}",
            "none may",
            "raise its limits (ulimit -n), give it memory or ports, or lower --concurrency",
        )
    if issued == 0 or failed / issued <= c.error_rate:
        return None
    worst = ", ".join(f"{n} {o}" for o, n in c.counts["by_outcome"].items() if o not in _NO_FAILURE)
    return Verdict(
        "errors",
        INVALID,
        f"{failed} of {issued} counted requests failed ({worst})",
        f"{c.error_rate:.1%} of them (limits.error_rate)",
        "see the first example of each class in point.json; mend the endpoint or lower --concurrency",
    )


def _rate_limited(c: Context) -> Verdict | None:
    r = c.requests
    refused = r.texts("outcome") == Outcome.RATE_LIMITED.value
    held, asked = c.metrics["in_flight"]["mean"], c.concurrency
    n = int(refused.sum())
    if n == 0 or (n <= 0.01 * len(r) and held is not None and held >= 0.95 * asked):
        return None
    longest = int(r.ints("pause_ms")[refused].max())
    wait = f", asking for up to {longest / 1e3:g} s of patience" if longest >= 0 else ""
    return Verdict(
        "rate_limited",
        WARN,
        f"{n} of {len(r)} requests were refused with 429{wait}; {held or 0:.1f} of {asked} were in flight on average",
        "1 % of the requests, and 95 % of the concurrency",
        "this is where the quota ends the curve: ask for a higher one, or measure below this concurrency",
    )


def _not_streamed(c: Context) -> Verdict | None:
    if c.streamed:
        return None
    return Verdict(
        "not_streamed",
        WARN,
        "the endpoint is declared with stream: false, so no first token and no pace can be seen",
        "a streamed reply",
        "read throughput and latency of whole replies; there is no place for this point on the chart",
    )


def _too_few(c: Context) -> Verdict | None:
    n = int(c.good.sum())
    if c.streamed:
        n = min(n, c.metrics["tpot_ms"]["n"])  # without a pace there is no speed per user to speak of
    if n >= 36:
        return None
    severity, threshold = (INVALID, 10) if n < 10 else (WARN, 36)
    return Verdict(
        "too_few",
        severity,
        f"{n} counted successes" + (" with a tpot" if c.streamed else ""),
        f"{threshold}, for a p90" + ("" if n < 10 else " with an interval"),
        "raise --requests or --seconds (and --max-tokens above 1)",
    )


def _client_bound(c: Context) -> Verdict | None:
    """The client's own delay beside what it reports: of the time to the first token (of the whole reply, where it is
    not streamed), and, for the loop that stamps arrivals, of the gap between fragments."""
    reference, what = c.metrics["ttft_ms"]["p50"], "ttft"
    if reference is None:
        reference, what = c.metrics["e2e_latency_ms"]["p50"], "e2e_latency"
    lags = {name: c.client.get(f"{name}_ms_p99") for name in ("client_lag", "loop_lag")}
    name, lag = max(((n, v) for n, v in lags.items() if v is not None), key=lambda x: x[1], default=("", None))
    if reference is None or lag is None:
        return None
    severity, most, of, beside = INVALID, max(5.0, 0.10 * reference), reference, f"{what} p50"
    if lag <= most:
        severity, most = WARN, max(1.0, 0.01 * reference)
    if lag <= most:
        late, gap = lags["loop_lag"], c.metrics["chunk_interval_ms"]["mean"]
        if late is None or gap is None or late <= (most := max(1.0, 0.25 * gap)):
            return None
        name, lag, of, beside = "loop_lag", late, gap, "chunk interval"
    cause, remedy = _why_late(c.client)
    return Verdict(
        "client_bound",
        severity,
        f"{name} p99 {lag:.1f} ms beside a {beside} of {of:.1f} ms{cause}",
        f"{most:.1f} ms",
        remedy,
    )


def _why_late(client: Mapping[str, Any]) -> tuple[str, str]:
    """(what held the client up, as far as it shows; what to do)."""
    waited, used = client.get("cpu_wait_fraction") or 0.0, client.get("cpu_fraction") or 0.0
    if waited > max(0.1, used / 2):
        return (
            f": it waited for a core {waited:.0%} of the time",
            "keep other programs off this machine's cores, or run the client on another machine",
        )
    if used > 0.8:
        return (
            f": its busiest process used {used:.0%} of a core",
            "give it more processes (--workers) or a machine with more cores, or lower --concurrency",
        )
    return "", "run the client on a machine with more free cores, or lower --concurrency"


def _buffered(c: Context) -> Verdict | None:
    """Fragments that come in bursts: a step's tokens sent one by one (speculation), or a proxy that holds them back.

    A proxy that releases B bursts delays the first fragment by up to one burst's period, so it can shorten
    (last - first), and with it tpot, by up to 1 / (B - 1) of itself. A client that is late by as much as lies between
    two bursts makes bursts of its own, and hides those that come.
    """
    r = c.requests
    if not c.streamed:
        return None
    in_one_piece = (r.ints("chunks") == 1) & (r.ints("streamed_tokens") > 1)
    if (whole := _share(in_one_piece | _at_once(c), c.good)) > 0.05:
        return Verdict(
            "buffered",
            INVALID,
            f"{whole:.0%} of the replies came in one piece or all at once, so they have no tpot",
            "5 % of the replies",
            "let the server stream (TCP_NODELAY set on its sockets; buffering off on the way)",
        )
    per_burst, bursts = _bursts(c)
    late, gap = c.client.get("loop_lag_ms_p99"), c.metrics["chunk_interval_ms"]["mean"]
    if per_burst is None:
        return None
    between = per_burst * (gap or 0.0)
    ours = late is not None and gap is not None and late >= max(1.0, between)
    moved = 1.0 if bursts <= 1 else 1 / (bursts - 1)
    explained = c.draft_tokens is not None and per_burst <= c.draft_tokens + 1
    if per_burst < 1.5 or moved <= 0.05 or explained:
        return _bursts_unseen(late, between) if ours else None
    # More than any drafter gives a step, or hardly more than one burst: not speculation.
    held_back = per_burst > 9 or bursts <= 3
    evidence = f"fragments arrive in bursts of {per_burst:.1f}, {bursts:.0f} bursts a reply: tpot may be off by "
    evidence += f"{moved:.0%}"
    if ours:
        evidence += f"; this client was itself late by {late:.1f} ms (loop_lag p99), so the bursts may be its own"
    elif not held_back:
        evidence += "; the cause may be speculation that was not declared"
    return Verdict(
        "buffered",
        INVALID if held_back else WARN,
        evidence,
        "5 % of tpot",
        _UNHURRIED
        if ours
        else "turn buffering off on the way (nginx: proxy_buffering off, or the header X-Accel-Buffering: no)"
        if held_back
        else "declare the arm's speculation in a sweep file, or look for a proxy that buffers",
    )


_UNHURRIED = "give the client more free cores, or lower --concurrency, and measure again"


def _bursts_unseen(late: float | None, between: float) -> Verdict:
    return Verdict(
        "buffered",
        WARN,
        f"whether a proxy holds fragments back cannot be seen: this client was late by {late or 0.0:.1f} ms "
        f"(loop_lag p99) beside {between:.1f} ms from one arrival to the next",
        "a client that is late by less than that",
        _UNHURRIED,
    )


def _at_once(c: Context) -> Mask:
    """Replies of more fragments than a step has whose pace was the network's, not the server's: less than 0.1 ms each,
    and all within a twentieth of the reply's time. So does a proxy that collects a reply and then sends it on."""
    r = c.requests
    chunks, last = r.ints("chunks"), r.ints("last_token_ns")
    spread, waited = last - r.ints("first_token_ns"), last - r.ints("sent_ns")
    at_once: Mask = (spread <= 100_000 * (chunks - 1)) & (spread <= 0.05 * waited)
    return at_once & (chunks >= max(8, (c.draft_tokens or 0) + 2))


def _share(mask: Mask, of: Mask) -> float:
    return float(mask[of].mean()) if of.any() else 0.0


def _bursts(c: Context) -> tuple[float | None, float]:
    """Medians over requests of 8 fragments or more: (fragments a burst, bursts). A gap below a tenth of the request's
    mean gap lies within a burst."""
    use = c.good & (c.bursts > 0)
    if not use.any():
        return None, 0.0
    bursts = c.bursts[use]
    return float(np.median(c.requests.ints("chunks")[use] / bursts)), float(np.median(bursts))


def _cache_hits(c: Context) -> Verdict | None:
    r = c.requests
    told = c.good & (r.ints("cached_tokens") >= 0) & (r.ints("input_tokens") > 0)
    if not told.any():
        return _quick_repeats(c)
    cached, given = r.ints("cached_tokens")[told], r.ints("input_tokens")[told]
    # The system prompt and the template are shared on purpose; caches work in blocks, hence the slack.
    common = given * c.common_bytes / np.maximum(r.ints("prompt_bytes")[told], 1) + 32
    share = float(np.maximum(cached - common, 0).sum() / given.sum())
    if share <= 0.05:
        return None
    return Verdict(
        "cache_hits",
        INVALID if share > 0.20 else WARN,
        f"{share:.0%} of the input came from the server's prefix cache beyond the shared system prompt",
        "20 %" if share > 0.20 else "5 %",
        "leave salt on, or turn the server's prefix cache off",
    )


def _quick_repeats(c: Context) -> Verdict | None:
    """Where the server says nothing of its cache: repeats of a prompt whose TTFT is less than half that of firsts."""
    r = c.requests
    again = np.ones(len(r), bool)
    again[np.unique(_prompts(r), return_index=True)[1]] = False
    times = ttft_ms(r)
    firsts, repeats = times[c.good & ~again], times[c.good & again]
    if min(len(firsts), len(repeats)) < 5 or np.median(repeats) > 0.5 * np.median(firsts):
        return None
    share = len(repeats) / (len(firsts) + len(repeats))
    if share <= 0.05:
        return None
    return Verdict(
        "cache_hits",
        INVALID if share > 0.20 else WARN,
        f"{share:.0%} of the requests repeat a prompt, with a ttft of {np.median(repeats):.1f} ms beside "
        f"{np.median(firsts):.1f} ms when it was new",
        f"half the ttft, in {20 if share > 0.20 else 5} % of the requests",
        "leave salt on, or turn the server's prefix cache off",
    )


def _server_capped(c: Context) -> Verdict | None:
    """The number of requests being answered (between first and last fragment) stands at a ceiling below C.

    With a slot for each of K requests and a queue before them, K or K - 1 are being answered nearly all the time, and
    the others wait: TTFT holds the wait for a slot, C / K - 1 request lengths on average.
    """
    r, span = c.requests, c.span
    first, last = r.ints("first_token_ns"), r.ints("last_token_ns")
    use = r.ok & (last > first)
    if span is None or c.concurrency < 3 or int((use & c.keep).sum()) < 2 * c.concurrency:
        return None
    at = np.concatenate([first[use], last[use]])
    step = np.repeat([1, -1], use.sum())
    order = np.lexsort((step, at))  # an end before a begin at the same instant
    times, level = np.clip(at[order], span.t0, span.t1), np.cumsum(step[order])
    held = np.diff(np.append(times, span.t1))
    ceiling = int(level[held > 0].max(initial=0))
    full = float(held[level >= ceiling - 1].sum() / (span.t1 - span.t0))
    if ceiling > 0.9 * c.concurrency or ceiling > c.concurrency - 2 or full < 0.9:
        return None
    wait = float(np.median((first - r.ints("sent_ns"))[use & c.keep]) / np.median((last - first)[use & c.keep]))
    return Verdict(
        "server_capped",
        WARN,
        f"{ceiling} of {c.concurrency} requests are answered at once, {full:.0%} of the time; the others wait, "
        f"with a ttft of {wait:.1f} request lengths",
        "90 % of the concurrency",
        "raise the server's limit (slots, max-num-seqs), or read the curve as ended here",
    )


def _drifting(c: Context) -> Verdict | None:
    pace = tpot_ms(c.requests)[c.good]
    pace = pace[np.isfinite(pace)]
    blocks = min(20, len(pace) // 10)
    if blocks < 4:
        return None
    found = trend(np.array([np.median(block) for block in np.array_split(pace, blocks)]))
    if found is None or not found.significant or abs(found.drift) < 0.05:
        return None
    return Verdict(
        "drifting",
        WARN,
        f"tpot p50 went {found.drift:+.0%} from the first to the last of {blocks} blocks (p = {found.p:.3f})",
        "5 % and p < 0.05",
        "warm up longer, run longer, or look for what changes on the server",
    )


def _emptying(c: Context) -> Verdict | None:
    if c.emptying <= 0.05:
        return None
    return Verdict(
        "emptying",
        WARN,
        f"no request was left to send in the last {c.emptying:.0%} of the window, while the load thinned out",
        "5 % of the window",
        "raise --requests well above the concurrency, or leave --exact out: filler keeps the load up",
    )


def _osl_mismatch(c: Context) -> Verdict | None:
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


def _hidden_tokens(c: Context) -> Verdict | None:
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


def _dropped_events(c: Context) -> Verdict | None:
    share = _share(c.requests.ints("dropped_events") > 0, c.good)
    if share <= 0.01:
        return None
    return Verdict(
        "dropped_events",
        WARN,
        f"in {share:.0%} of the replies some events were no JSON and were passed over",
        "1 % of the replies",
        "look at what the server (or a gateway) writes into its streams: fragments may be missing",
    )


def _mixed_tokens(c: Context) -> Verdict | None:
    if c.metrics["token_source"] != "mixed":
        return None
    return Verdict(
        "mixed_tokens",
        INVALID,
        "some replies state their usage and others do not",
        "one source of token counts a point",
        "ask the server for usage in every stream (stream_options.include_usage)",
    )


def _estimated_tokens(c: Context) -> Verdict | None:
    if c.metrics["token_source"] != CHUNKS:
        return None
    return Verdict(
        "estimated_tokens",
        WARN,
        "the server states no usage: each fragment was counted as one token",
        "token counts from the server",
        "do not compare arms of which one speculates: its fragments may hold several tokens",
    )


def _tpot_bias(c: Context) -> Verdict | None:
    bound = c.metrics["tpot_ms"].get("bias_bound")
    if bound is None or bound <= 0.05 or _hidden_tokens(c) is not None:
        return None
    return Verdict(
        "tpot_bias",
        WARN,
        f"it is not told how many tokens the first chunk held, so tpot may be too low by up to {bound:.0%}",
        "5 %",
        "ask for the tokens of each chunk (chunk_tokens: usage, or ids), or for longer answers",
    )


def _lockstep(c: Context) -> Verdict | None:
    """Within each span of one request length, the resultant of the issue times as angles: 1 when all start at once."""
    r, lengths = c.requests, (c.requests.ints("ended_ns") - c.requests.ints("issued_ns"))[c.good]
    if c.concurrency < 4 or len(lengths) < 2 * c.concurrency:
        return None
    length = float(np.median(lengths))
    at = np.sort(r.ints("issued_ns")[c.keep]).astype(float)
    if length <= 0:
        return None
    cycle = ((at - at[0]) // length).astype(int)
    angles = 2 * np.pi * (at - at[0]) / length
    sizes = np.bincount(cycle)
    vectors = np.bincount(cycle, np.cos(angles)) + 1j * np.bincount(cycle, np.sin(angles))
    full = sizes >= c.concurrency / 2
    if not full.any():
        return None
    together = float(np.median(np.abs(vectors[full]) / sizes[full]))
    if together < 0.9:
        return None
    return Verdict(
        "lockstep",
        WARN,
        f"requests start in waves (concentration {together:.2f} of 1)",
        "0.9",
        "vary output lengths (natural stops or mixed prompts), or read TTFT as that of a burst",
    )


def _reused_prompts(c: Context) -> Verdict | None:
    r = c.requests
    again = len(r) - len(np.unique(_prompts(r)))
    if again == 0 and c.earlier.unsalted_points == 0 and not c.earlier.asked_unsalted:
        return None
    evidence = f"{again} of {len(r)} requests repeat a prompt of this point word for word"
    if c.earlier.unsalted_points:
        evidence += f", and {c.earlier.unsalted_points} earlier points sent the same prompts without a salt"
    if c.earlier.asked_unsalted:
        evidence += ", and the check for equal answers sent some of the workload's prompts without a salt"
    return Verdict(
        "reused_prompts",
        WARN,
        evidence,
        "none",
        "leave salt on, or give more prompts",
    )


def _backend_changed(c: Context) -> Verdict | None:
    seen = c.earlier.backends | backends_of(c.requests)
    if len(seen) <= 1:
        return None
    names = ", ".join(sorted(" ".join(part for part in pair if part) for pair in seen))
    return Verdict(
        "backend_changed",
        WARN,
        f"the replies name {len(seen)} backends: {names}"[:300],
        "one model string and fingerprint a run",
        "pin the model's version, or measure again when the roll-out is over",
    )


def _prompts(r: Requests) -> Ints:
    """A number for each (prompt, salt), shape (n,)."""
    (prompts, _), (salts, distinct) = r.codes("prompt_id"), r.codes("salt")
    return prompts.astype(np.int64) * (len(distinct) + 1) + salts + 1


def backends_of(r: Requests) -> frozenset[tuple[str, str]]:
    """(model, system_fingerprint) pairs that successful replies named."""
    (models, names), (prints, marks) = r.codes("model"), r.codes("system_fingerprint")
    pairs = np.unique(np.stack([models, prints])[:, r.ok], axis=1).T
    model_of, print_of = [*names.to_pylist(), ""], [*marks.to_pylist(), ""]  # -1, for none, is the last
    found = {(model_of[m] or "", print_of[p] or "") for m, p in pairs.tolist()}
    return frozenset(found - {("", "")})


def _not_speculating(c: Context) -> Verdict | None:
    e = c.evidence
    if c.speculates is not True or not e.received:
        return None
    severity = INVALID
    if e.speculates is False:
        seen = "its counters" if e.source == "counters" else "its replies"
        evidence = f"{seen} show no draft over {e.received:,} tokens"
        if e.ever_drafted:  # some servers stop drafting under load, and n-grams find nothing in some texts
            severity, evidence = WARN, f"{evidence}, though this server has drafted before"
    elif e.speculates is None and e.silent and not e.foreign_tokens and not e.unseen:
        evidence = f"a server of this kind ({e.server['engine']}) shows drafts when it speculates; it shows none"
    else:
        return None
    return Verdict(
        "not_speculating",
        severity,
        evidence,
        "an arm with speculation drafts",
        "turn speculation on at the server (its log says why it is off), or name the arm as it is",
    )


def _unexpected_speculation(c: Context) -> Verdict | None:
    e = c.evidence
    if c.speculates is not False or e.speculates is not True:
        return None
    drafted = f"{e.draft_tokens:,.0f} draft tokens" if e.draft_tokens else f"{e.acceptance_length:.2f} tokens a step"
    return Verdict(
        "unexpected_speculation",
        INVALID,
        f"the server shows {drafted} in an arm that is meant to have no speculation",
        "none",
        "turn speculation off at this server, or declare the arm's speculation",
    )


def _implausible_acceptance(c: Context) -> Verdict | None:
    """Real drafters are wrong now and then, the more so the further they look ahead; and nothing can be guessed from
    random words."""
    e = c.evidence
    rate, drafted = e.acceptance_rate, e.draft_tokens or 0.0
    most = e.most_per_step
    if rate is None or drafted < 100:
        return None
    if rate > 1 or (most is not None and (e.acceptance_length or 0.0) > most):
        why, limit = "more was accepted than was drafted", "no more than was drafted"
    elif c.raw_prompts and rate >= 0.5:
        why, limit = "for prompts that look random or have no chat template", "50 % on such prompts"
    elif rate >= (0.98 if most is not None and most <= 2 else 0.9):
        why, limit = "of real text", "98 % with one draft token, 90 % with more"
    else:
        return None
    return Verdict(
        "implausible_acceptance",
        WARN,
        f"{rate:.0%} of {drafted:,.0f} draft tokens were accepted {why}"
        + (f"; the server says: {c.synthetic}" if c.synthetic else ""),
        limit,
        "look whether acceptance is synthetic, the drafter is the model itself, or the answers repeat themselves; use "
        "--api chat and natural prompts",
    )


def _synthetic_acceptance(c: Context) -> Verdict | None:
    if c.synthetic is None:
        return None
    return Verdict(
        "synthetic_acceptance",
        WARN,
        f"the server accepts drafts by a rule, not by its model: {c.synthetic}",
        "acceptance that the model decides",
        "take this speed for a what-if, not for a measurement of the drafter",
    )


def _foreign_traffic(c: Context) -> Verdict | None:
    e = c.evidence
    if not e.foreign_tokens and not e.restless:
        return None
    if e.foreign_tokens:
        evidence = f"the server made {e.generated:,.0f} tokens, and at most {e.expected:,} of them were ours"
    else:
        evidence = "the server was at work before this point sent anything"
    return Verdict(
        "foreign_traffic",
        WARN,
        evidence,
        "5 % and 64 tokens" if e.foreign_tokens else "none",
        "measure a server that nobody else uses",
    )


def _counters_broken(c: Context) -> Verdict | None:
    e = c.evidence
    if e.broken is None and not e.unseen:
        return None
    evidence = e.broken or f"the counters miss {e.unseen:.0%} of the tokens we received"
    return Verdict(
        "counters_broken",
        WARN,
        evidence,
        "counters that only grow, of every replica",
        "look whether the server was restarted; read each replica's own metrics (metrics_url) rather than a balancer's",
    )


_RULES: tuple[Callable[[Context], Verdict | None], ...] = (
    _interrupted,
    _errors,
    _too_few,
    _not_streamed,
    _rate_limited,
    _client_bound,
    _buffered,
    _cache_hits,
    _server_capped,
    _drifting,
    _emptying,
    _osl_mismatch,
    _hidden_tokens,
    _dropped_events,
    _mixed_tokens,
    _estimated_tokens,
    _tpot_bias,
    _lockstep,
    _reused_prompts,
    _backend_changed,
    _not_speculating,
    _unexpected_speculation,
    _implausible_acceptance,
    _synthetic_acceptance,
    _foreign_traffic,
    _counters_broken,
)
