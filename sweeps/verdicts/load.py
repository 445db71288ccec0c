"""Whether a point was measured as it was meant: to its end, at its load, in a steady state, with prompts of its own."""

from __future__ import annotations

import numpy as np

from endpoints.outcomes import Outcome
from sweeps.arrow import Ints
from sweeps.metrics import tpot_ms, ttft_ms
from sweeps.requests import Requests
from sweeps.trend import trend
from sweeps.verdicts.frame import INVALID, WARN, Context, Verdict

_NO_FAILURE = ("ok", "cancelled", "rate_limited")


def interrupted(c: Context) -> Verdict | None:
    if c.cut_short is None:
        return None
    return Verdict("interrupted", INVALID, c.cut_short, "a point runs to its end", "measure it again with --resume")


def errors(c: Context) -> Verdict | None:
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


def rate_limited(c: Context) -> Verdict | None:
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


def too_few(c: Context) -> Verdict | None:
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


def cache_hits(c: Context) -> Verdict | None:
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


def server_capped(c: Context) -> Verdict | None:
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


def drifting(c: Context) -> Verdict | None:
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


def emptying(c: Context) -> Verdict | None:
    if c.emptying <= 0.05:
        return None
    return Verdict(
        "emptying",
        WARN,
        f"no request was left to send in the last {c.emptying:.0%} of the window, while the load thinned out",
        "5 % of the window",
        "raise --requests well above the concurrency, or leave --exact out: filler keeps the load up",
    )


def lockstep(c: Context) -> Verdict | None:
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


def reused_prompts(c: Context) -> Verdict | None:
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


def backend_changed(c: Context) -> Verdict | None:
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
