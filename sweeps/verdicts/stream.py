"""Whether arrivals were stamped in time, and came as the server sent them: the client, and what stands on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sweeps.metrics import Mask
from sweeps.verdicts.frame import INVALID, WARN, Context, Verdict, share

_UNHURRIED = "give the client more free cores, or lower --concurrency, and measure again"


def not_streamed(c: Context) -> Verdict | None:
    if c.streamed:
        return None
    return Verdict(
        "not_streamed",
        WARN,
        "the endpoint is declared with stream: false, so no first token and no pace can be seen",
        "a streamed reply",
        "read throughput and latency of whole replies; there is no place for this point on the chart",
    )


def client_bound(c: Context) -> Verdict | None:
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


def buffered(c: Context) -> Verdict | None:
    """Fragments that come in bursts: a step's tokens sent one by one (speculation), or a proxy that holds them back.

    A proxy that releases B bursts delays the first fragment by up to one burst's period, so it can shorten
    (last - first), and with it tpot, by up to 1 / (B - 1) of itself. A client that is late by as much as lies between
    two bursts makes bursts of its own, and hides those that come.
    """
    r = c.requests
    if not c.streamed:
        return None
    in_one_piece = (r.ints("chunks") == 1) & (r.ints("streamed_tokens") > 1)
    if (whole := share(in_one_piece | _at_once(c), c.good)) > 0.05:
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


def _bursts(c: Context) -> tuple[float | None, float]:
    """Medians over requests of 8 fragments or more: (fragments a burst, bursts). A gap below a tenth of the request's
    mean gap lies within a burst."""
    use = c.good & (c.bursts > 0)
    if not use.any():
        return None, 0.0
    bursts = c.bursts[use]
    return float(np.median(c.requests.ints("chunks")[use] / bursts)), float(np.median(bursts))


def dropped_events(c: Context) -> Verdict | None:
    part = share(c.requests.ints("dropped_events") > 0, c.good)
    if part <= 0.01:
        return None
    return Verdict(
        "dropped_events",
        WARN,
        f"in {part:.0%} of the replies some events were no JSON and were passed over",
        "1 % of the replies",
        "look at what the server (or a gateway) writes into its streams: fragments may be missing",
    )
