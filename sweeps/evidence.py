"""What a server's counters, its replies, or at least its chunks say of the speculation behind a point's numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from endpoints.counters import COUNTERS, GAUGES, PER_POSITION, Labels, Reading, position_of
from sweeps.arrow import Bools, Ints, floats, ints, texts
from sweeps.columns import USAGE
from sweeps.requests import Requests
from sweeps.watch import Observed

_SLACK = 0.05  # of the tokens, by which a server's count and ours may differ
_SLACK_TOKENS = 64
_SILENT_SAMPLES = 10  # a second apart, before a gauge that stays at zero means something
_GAUGE = "the server's own mean of its last steps, sampled once a second"
TELEMETRY = pa.schema(
    [("at_ns", pa.int64()), ("quantity", pa.string()), ("labels", pa.string()), ("value", pa.float64())]
)
"""Of `telemetry.parquet`: ns from the point's origin (negative before it), the quantity, its labels as JSON."""


@dataclass(frozen=True, slots=True)
class Growth:
    """By how much each counter grew over a point, in tokens (`drafts`: verified drafts), summed over replicas.

    `broken`: why that cannot be told; `per_position` from position 0.
    """

    grown: Mapping[str, float] = field(default_factory=dict)
    per_position: tuple[float, ...] = ()
    broken: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a point's speculation, and of whom the server worked for.

    `source`: "counters" (of the server, at rest), "replies" (each says its own), "gauge" (the server's mean of the last
    steps, sampled), "inferred" (from tokens a chunk) or "none". Numbers that cannot be told are None, with a `reason`.
    """

    tokens_per_step: float | None
    by_category: Mapping[str, Mapping[str, Any]]
    generated: float | None  # by the server, for anyone
    received: int  # by us, at least
    expected: int  # by us, at most: all that failed or cancelled requests asked for with it
    server: Mapping[str, Any]
    broken: str | None
    restless: bool  # the server was at work before anything was sent
    silent: bool  # a server that shows its speculation when it is on shows none
    ever_drafted: bool  # before or in this point, as far as its counters say
    source: str = "none"
    reason: str | None = None
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    per_position: tuple[float, ...] = ()

    @property
    def foreign_tokens(self) -> float:
        """Tokens that the server made for others; 0 where that is within what counting may differ by."""
        if self.generated is None:
            return 0.0
        over = self.generated - self.expected
        return over if over > max(_SLACK * self.expected, _SLACK_TOKENS) else 0.0

    @property
    def unseen(self) -> float:
        """The share of the tokens we received that the counters do not hold; 0 within the slack."""
        if self.generated is None or not self.received:
            return 0.0
        share = 1 - self.generated / self.received
        return share if share > _SLACK and self.received - self.generated > _SLACK_TOKENS else 0.0

    @property
    def speculates(self) -> bool | None:
        """Whether it was seen to speculate; None where nothing tells."""
        if self.draft_tokens is not None:
            return self.draft_tokens > 0
        return True if self.source == "gauge" else None

    @property
    def most_per_step(self) -> int | None:
        """Tokens that one step can bring, as far as the counters show; None without drafts."""
        if not self.drafts or not self.draft_tokens:
            return None
        return 1 + max(len(self.per_position), math.ceil(self.draft_tokens / self.drafts))

    def as_json(self) -> dict[str, Any]:
        """The `speculation` block of point.json."""
        return {
            "source": self.source,
            "reason": self.reason,
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_step": self.tokens_per_step,
            "drafts": self.drafts,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
            "per_position": list(self.per_position) or None,
            "by_category": {name: dict(of) for name, of in self.by_category.items()},
            "server_tokens": self.generated,
            "received_tokens": self.received,
        }


def evidence_of(r: Requests, bursts: Ints, observed: Observed | None, speculates: bool | None = None) -> Evidence:
    """Put together what there is: the counters where they can be trusted, else what stands behind them.

    `bursts`: of each request's fragments, shape (n,); 0 where they are too few to say. They count as steps only where
    something is drafted, or the arm says that it `speculates` and nothing tells: a stalled machine bunches chunks too.
    """
    observed = observed or Observed()
    growth = growth_of(observed)
    received, expected, counted = _ours(r)
    replies = _replies(r)
    drafted = growth.grown.get("draft_tokens", replies["draft_tokens"] if replies else None)
    if not (speculates if drafted is None else drafted):
        bursts = np.zeros_like(bursts)
    steps, several = _steps(r, bursts)
    found = Evidence(
        tokens_per_step=steps,
        by_category=_by_category(r, bursts),
        generated=growth.grown.get("generated_tokens") if counted else None,
        received=received,
        expected=expected,
        server=_server(observed, growth),
        broken=growth.broken,
        restless=observed.restless,
        silent=_silent(observed, growth),
        ever_drafted=bool(observed.after and (observed.after.total("draft_tokens") or 0.0) > 0),
    )
    why_not = _distrust(found, growth, observed)
    if why_not is None:
        told = _drafted(found, "counters", growth.grown, growth.per_position)
        gauge = _mean_gauge(observed, "tokens_per_step_gauge")
        if told.draft_tokens and told.acceptance_length is None and gauge is not None:
            return replace(told, acceptance_length=gauge, reason=f"the length: {_GAUGE}")
        return told
    if replies is not None and (replies["draft_tokens"] or not growth.grown):
        return _drafted(found, "replies", replies)
    if (gauge := _mean_gauge(observed, "tokens_per_step_gauge")) is not None:
        return replace(
            found,
            source="gauge",
            reason=_GAUGE,
            acceptance_length=gauge,
            acceptance_rate=_mean_gauge(observed, "acceptance_gauge"),
        )
    if several:
        return replace(found, source="inferred", reason=f"{why_not}; tokens a step are inferred from the stream")
    return replace(found, reason=why_not)


def _distrust(found: Evidence, growth: Growth, observed: Observed) -> str | None:
    """Why the counters do not tell how our requests were speculated for; None where they do."""
    if found.foreign_tokens:
        return "the counters hold another client's requests too"
    if found.unseen:
        return f"the counters miss {found.unseen:.0%} of the tokens we received: not every replica is read"
    if growth.broken is not None:
        return growth.broken
    if "draft_tokens" in growth.grown:
        return None
    return observed.unread or "the server has no counters of speculation"


def _drafted(
    found: Evidence, source: str, counts: Mapping[str, float], per_position: tuple[float, ...] = ()
) -> Evidence:
    """With acceptance by its definition: 1 + accepted ÷ drafts, and accepted ÷ drafted."""
    drafts, drafted, accepted = (counts.get(name) for name in ("drafts", "draft_tokens", "accepted_tokens"))
    length = 1 + accepted / drafts if drafts and accepted is not None else None
    rate = accepted / drafted if drafted and accepted is not None else None
    reason = None
    if length is None:
        reason = "nothing was drafted" if not drafted else "it is not told how many drafts there were"
    return replace(
        found,
        source=source,
        reason=reason,
        acceptance_length=length,
        acceptance_rate=rate,
        drafts=drafts,
        draft_tokens=drafted,
        accepted_tokens=accepted,
        per_position=per_position,
    )


def growth_of(observed: Observed) -> Growth:
    """By how much the counters grew from rest to rest; a counter that fell, began anew or vanished breaks it."""
    before, after = observed.before, observed.after
    if before is None or after is None:
        return Growth(
            broken=None if before is None else f"the counters could not be read afterwards ({observed.unread})"
        )
    if observed.disagree:
        return Growth(broken="the page shows less from one look to the next: several processes answer behind it")
    added = [reading.added for _, reading in observed.samples] + [after.added]
    if any(added) and observed.missed:
        return Growth(broken="a look at counts that are handed out once brought nothing")
    if any(added):
        return Growth({q: sum(a.get(q, 0.0) for a in added) for q in COUNTERS if any(q in a for a in added)})
    chain = [before, *(reading for _, reading in observed.samples), after]
    for quantity in (*COUNTERS, PER_POSITION):
        if (why := _break(quantity, chain)) is not None:
            return Growth(broken=why)
    grown = {
        quantity: sum(after.values[quantity].values()) - sum(before.values.get(quantity, {}).values())
        for quantity in COUNTERS
        if quantity in after.values
    }
    positions: dict[int, float] = {}
    for sign, reading in ((1, after), (-1, before)):
        for labels, value in reading.values.get(PER_POSITION, {}).items():
            if (position := position_of(labels)) is not None:
                positions[position] = positions.get(position, 0.0) + sign * value
    return Growth(grown, tuple(positions.get(i, 0.0) for i in range(max(positions, default=-1) + 1)))


def _break(quantity: str, chain: Sequence[Reading]) -> str | None:
    """Why what a counter shows over these readings is not one growth. One that appears where there was none began at
    zero; one that appears beside others is a replica with a past of its own."""
    name = quantity.replace("_", " ")
    known: dict[Labels, float] = {}
    born: dict[Labels, float] = {}
    for i, reading in enumerate(chain):
        here, births = reading.values.get(quantity, {}), reading.born.get(quantity, {})
        if gone := known.keys() - here.keys():
            return f"a replica disappeared while it was measured (its counter of {name}{_said(next(iter(gone)))})"
        for labels, value in here.items():
            if labels in known and value < known[labels]:
                return f"the server's counter of {name} went back while it was measured: it was restarted or reset"
            if labels in born and births.get(labels, born[labels]) != born[labels]:
                return f"the server's counter of {name} began anew while it was measured: another process answers"
            if i and known and labels not in known and quantity != PER_POSITION:
                return f"a replica appeared while it was measured (its counter of {name}{_said(labels)})"
        known = dict(here)
        born |= births
    return None


def _said(labels: Labels) -> str:
    return f" {{{', '.join(f'{name}={value}' for name, value in labels)}}}"[:120] if labels else ""


def _ours(r: Requests) -> tuple[int, int, bool]:
    """(tokens received at least, tokens the server can have made for us at most, whether they were counted by it)."""
    output, asked, chunks = (r.ints(name) for name in ("output_tokens", "requested_tokens", "chunks"))
    known = output >= 0
    least = np.where(known, output, chunks)
    most = np.where(r.ok & known, output, np.maximum(asked, least))
    sources = set(r.texts("token_source")[r.ok])
    return int(least.sum()), int(most.sum()), sources == {USAGE}


def _replies(r: Requests) -> dict[str, float] | None:
    """Sums over the successful replies, of which nearly all tell of their own drafts; None where they do not."""
    drafts, drafted, accepted = (r.ints(name) for name in ("drafts", "drafted_tokens", "accepted_tokens"))
    told = r.ok & (drafted >= 0) & (accepted >= 0)
    if not told.any() or told.sum() < 0.95 * r.ok.sum():
        return None
    sums = {"draft_tokens": float(drafted[told].sum()), "accepted_tokens": float(accepted[told].sum())}
    return sums | ({"drafts": float(drafts[told].sum())} if (drafts[told] >= 0).all() else {})


def _steps(r: Requests, bursts: Ints, keep: Bools | None = None) -> tuple[float | None, bool]:
    """(tokens after the first ÷ steps that brought them, whether a step was seen to bring several).

    A step is a chunk where chunks hold several tokens, and a burst of chunks where a server sends a step's tokens one
    by one; so cut last steps and steps without drafts are in it, as they are in what a user sees.
    """
    use = r.ok & (r.ints("chunks") > 1) & (r.ints("output_tokens_after_first_chunk") > 0)
    if keep is not None:
        use = use & keep
    if not use.any():
        return None, False
    chunks, after = r.ints("chunks")[use], r.ints("output_tokens_after_first_chunk")[use]
    in_chunks = float(after.sum() / (chunks - 1).sum())
    if in_chunks >= 1.1:
        return in_chunks, True
    clear = bursts[use] > 1
    if clear.any() and np.median(chunks[clear] / bursts[use][clear]) >= 1.1:
        return float(after[clear].sum() / (bursts[use][clear] - 1).sum()), True
    return in_chunks, False


def _by_category(r: Requests, bursts: Ints) -> dict[str, dict[str, Any]]:
    """By the prompts' category: replies, and where they tell, what was drafted and accepted for them."""
    codes, words = r.codes("category")
    drafted, accepted = r.ints("drafted_tokens"), r.ints("accepted_tokens")
    found: dict[str, dict[str, Any]] = {}
    for code, name in enumerate(words.to_pylist()):
        mine = r.ok & (codes == code)
        if not mine.any():
            continue
        told = mine & (drafted >= 0)
        d, a = (int(x[told].sum()) if told.any() else None for x in (drafted, accepted))
        found[name] = {
            "n": int(mine.sum()),
            "drafted": d,
            "accepted": a,
            "acceptance_rate": a / d if d and a is not None else None,
            "tokens_per_step": _steps(r, bursts, mine)[0],
        }
    return dict(sorted(found.items()))


def _silent(observed: Observed, growth: Growth) -> bool:
    """Whether a server that would show it shows no sign of speculation: vLLM has its series only when it is on, and
    SGLang's gauge leaves zero within a few dozen steps."""
    after = observed.after
    if after is None or growth.broken is not None or "draft_tokens" in after.values:
        return False
    if after.engine == "vllm":
        return bool(growth.grown)
    gauges = [r.values.get("tokens_per_step_gauge") for _, r in observed.samples if r.busy]
    if after.engine != "sglang" or len(gauges) < _SILENT_SAMPLES:
        return False
    return not any(
        value for found in [*gauges, after.values.get("tokens_per_step_gauge")] for value in (found or {}).values()
    )


def _mean_gauge(observed: Observed, quantity: str) -> float | None:
    """Mean over the samples at which requests ran, of what an engine has renewed (0 is what it begins with); without
    any, the reading afterwards."""
    values = [v for _, s in observed.samples if s.busy and (v := _mean(s, quantity))]
    if not values and observed.after is not None:
        return _mean(observed.after, quantity) or None
    return float(np.mean(values)) if values else None


def _mean(reading: Reading, quantity: str) -> float | None:
    found = reading.values.get(quantity)
    return float(np.mean(list(found.values()))) if found else None


def _server(observed: Observed, growth: Growth) -> dict[str, Any]:
    """Gauges over the point's samples, the share of prefix-cache hits, and how many replicas the series tell apart."""
    running, waiting = (
        [v for _, s in observed.samples if (v := s.total(q)) is not None] for q in ("running", "waiting")
    )
    kv = [v for _, s in observed.samples if (v := _mean(s, "kv_use")) is not None]
    hits, misses = growth.grown.get("prefix_hits"), growth.grown.get("prefix_misses")
    queries = growth.grown.get("prefix_queries") if misses is None else (hits or 0.0) + misses
    after = observed.after
    replicas = (
        max((len(after.values[q]) for q in ("generated_tokens", "running") if q in after.values), default=0)
        if after
        else 0
    )
    return {
        "engine": after.engine if after else None,
        "samples": len(observed.samples),
        "replicas": replicas,
        "running": _gauge(running),
        "waiting": _gauge(waiting),
        "kv_use": _gauge(kv),
        "prefix_hit_rate": hits / queries if queries and hits is not None else None,
        "unread": observed.unread or None,
    }


def _gauge(values: Sequence[float]) -> dict[str, float | None]:
    return {"mean": float(np.mean(values)), "max": float(max(values))} if values else {"mean": None, "max": None}


def telemetry_table(observed: Observed, duration_ns: int) -> pa.Table:
    """`telemetry.parquet`: every reading, a row a series. The one before stands at -1 ns, the last at the end."""
    readings = [(-1, observed.before), *observed.samples, (duration_ns, observed.after)]
    rows = [row for at, reading in readings if reading is not None for row in _rows(at, reading)]
    at, quantity, labels, value = list(zip(*rows, strict=True)) or [()] * len(TELEMETRY)
    columns = [ints(np.array(at, np.int64)), texts(quantity), texts(labels), floats(np.array(value, float))]
    return pa.Table.from_arrays(columns, schema=TELEMETRY)


def _rows(at: int, reading: Reading) -> Iterator[tuple[int, str, str, float]]:
    for quantity in (*COUNTERS, PER_POSITION, *GAUGES):
        for labels, value in reading.values.get(quantity, {}).items():
            yield at, quantity, json.dumps(dict(labels)), value
    for quantity, value in reading.added.items():
        yield at, quantity, '{"handed_out": "since the last reading"}', value
