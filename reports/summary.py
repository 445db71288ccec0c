"""summary.json: everything a run found, put together from what the sweep stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from reports.comparison import compare
from reports.drift import drifts, order_of
from reports.equality import alarm, synthetic
from reports.formats import clean, listing
from reports.pairs import Sample, Samples, read_sample
from reports.points import get, is_measured, load_label, load_order, num, verdicts
from sweeps import records
from sweeps.equality import with_meaningless
from sweeps.files import write_atomically
from sweeps.frontier import frontier, is_valid

SCHEMA_VERSION = 1
T = TypeVar("T")

# What everything after reading relies on; a point that breaks it would fail far from its cause.
SHAPE: dict[str, Callable[[Any], bool]] = {
    "arm": lambda v: isinstance(v, str),
    "concurrency": lambda v: v is None or (isinstance(v, int) and v > 0),
    "trial": lambda v: v is None or isinstance(v, int),
    "verdicts": lambda v: isinstance(v, list) and all(isinstance(x, dict) and "severity" in x for x in v),
    "intervals": lambda v: isinstance(v, dict) and all(isinstance(x, dict) for x in v.values()),
    "system_tps": lambda v: v is None or isinstance(v, int | float),
    "tps_per_user": lambda v: v is None or isinstance(v, int | float),
}


class ReportError(Exception):
    """A stored run cannot be read; the message is one sentence that names the file."""


def summarise(run: Path) -> dict[str, Any]:
    """The dict of summary.json for one run folder.

    A killed run is fine: a cut last line of the journal and points that never finished are left out and told in `ends`.
    Raises ReportError when the folder is no run, or when a file in it is corrupt or of another schema version.
    """
    manifest = read_manifest(run)
    found = read_points(run)
    journal = read_journal(run)
    samples = stored_samples(found, manifest)
    return assemble(manifest, [point for _, point in found], journal, read_equality(run), samples)


def write_summary(run: Path, summary: Mapping[str, Any]) -> None:
    """Write `summary.json`. Raises OSError."""
    write(run / "summary.json", json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_summary(run: Path) -> dict[str, Any]:
    """What `write_summary` wrote. Raises ReportError."""
    return _object(run / "summary.json")


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all. What UTF-8 cannot hold (a lone surrogate) is written as its escape."""
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    write_atomically(path, lambda temporary: temporary.write_bytes(data))


def stored_samples(found: Iterable[tuple[Path, dict[str, Any]]], manifest: Mapping[str, Any]) -> Samples:
    """The requests of a run's points (folder, point), read when they are asked for."""
    folders = {point_key(point): folder for folder, point in found if is_measured(point)}  # an anchor has a twin
    workload = str(get(manifest, "workload", "hash"))

    def samples(point: Mapping[str, Any]) -> Sample | None:
        folder = folders.get(point_key(point))
        return None if folder is None else read_sample(folder / "requests.parquet", workload)

    return samples


def point_key(point: Mapping[str, Any]) -> tuple[Any, ...]:
    return point["arm"], load_label(point), point.get("trial") or 1


def assemble(
    manifest: Mapping[str, Any],
    points: Sequence[dict[str, Any]],
    journal: Sequence[Mapping[str, Any]],
    equality: Mapping[str, Any] | None = None,
    samples: Samples = lambda _point: None,
) -> dict[str, Any]:
    """The same from what was read (pure, but for `samples`). Points are put into the arms' order, then by load, then by
    trial."""
    arms = {
        name: {
            "url": arm.get("url"),
            "model": arm.get("model"),
            "api": arm.get("api"),
            "speculation": arm.get("speculation"),
            "verify_tls": arm.get("verify_tls", True),
            "launch": arm.get("launch"),
            "server": {"name": arm.get("server"), **(arm.get("probe") or {})},
        }
        for name, arm in manifest["arms"].items()
    }
    for point in points:  # an arm that only the points know still has a curve
        arms.setdefault(
            point["arm"], dict.fromkeys(("url", "model", "api", "speculation", "server", "verify_tls", "launch"))
        )
    order = list(arms)
    points = sorted(points, key=lambda p: (order.index(p["arm"]), load_order(p), p.get("trial") or 1))
    skipped = skipped_points(journal, points)
    found = frontier([p for p in points if is_measured(p)])
    load = manifest.get("load") or {}
    asked = [line["spent"] for line in journal if line["event"] == "equality_asked" and line.get("spent")]
    return {
        "schema_version": SCHEMA_VERSION,
        "name": manifest.get("name"),
        "created_at": manifest.get("created_at"),
        "tool": manifest.get("tool"),
        "python": manifest.get("python"),
        "libraries": manifest.get("libraries"),
        "git_commit": manifest.get("git_commit"),
        "host": manifest.get("host"),
        "arms": arms,
        "workload": manifest.get("workload") or {},
        "load": load,
        "limits": manifest.get("limits") or {},
        "seed": manifest.get("seed"),
        "fingerprints": manifest.get("fingerprints"),
        "points": points,
        "skipped": skipped,
        "frontier": found,
        "comparison": compare(points, order, found, samples),
        "ends": {arm: end_of_curve(arm, points, skipped, journal, load) for arm in order},
        "equality": equality and with_meaningless(equality, synthetic(arms, points)) | {"spent": asked},
        "totals": totals(points, asked),
        "order": order_of(points, arms),
        "drift": drifts(points),
        "caveats": [],
    }


def skipped_points(journal: Sequence[Mapping[str, Any]], points: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Points skipped or failed for good, with the last reason given; one that a later resume did measure is not among
    them."""
    done = {(p["arm"], p["concurrency"], p.get("trial"), p.get("kind", "measure")) for p in points}
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in journal:
        key = (line.get("arm"), line.get("concurrency"), line.get("trial"), line.get("kind", "measure"))
        if line["event"] in ("point_skipped", "point_failed") and key not in done:
            reason = line.get("reason") or line.get("text") or "no reason was noted"
            last[key] = dict(zip(("arm", "concurrency", "trial"), key[:3], strict=True)) | {"reason": reason}
            last[key] |= {"kind": line["kind"]} if "kind" in line else {}
    return list(last.values())


def end_of_curve(
    arm: str,
    points: Sequence[Mapping[str, Any]],
    skipped: Sequence[Mapping[str, Any]],
    journal: Sequence[Mapping[str, Any]],
    load: Mapping[str, Any],
) -> dict[str, Any]:
    """Why an arm's curve ended: {"reason", "at": highest valid concurrency or None, "text": one sentence}.

    An adaptive sweep says it itself: its journal has a `decision` with reason "curve_end" and the sentence as text.
    """
    mine = [p for p in points if p["arm"] == arm and is_measured(p)]
    at = max((p["concurrency"] for p in mine if is_valid(p)), default=None)
    above = at or 0
    up_to = f"valid up to {at}" if at else "no valid point"

    asked = [c for c in load.get("levels") or [] if isinstance(c, int)]
    invalid = [p for p in mine if p["concurrency"] > above]
    left_out = [s for s in skipped if s["arm"] == arm and (s["concurrency"] or 0) > above]
    decisions = [
        e for e in journal if e["event"] == "decision" and e.get("arm") == arm and e.get("reason") == "curve_end"
    ]
    cut = [e for e in journal if e["event"] in ("interrupted", "run_finished")]
    interrupted = not cut or cut[-1]["event"] == "interrupted"

    if decisions and decisions[-1].get("code"):
        decided = decisions[-1]
        return {"reason": decided["code"], "at": decided["concurrency"], "text": f"{up_to}; {clean(decided['text'])}"}
    if invalid:
        codes = sorted({v["code"] for p in invalid for v in verdicts(p) if v.get("severity") == "invalid"})
        why = f"invalid ({listing(codes)})" if codes else "not finished"
        levels = listing([str(c) for c in sorted({p["concurrency"] for p in invalid})])
        many = "are" if len({p["concurrency"] for p in invalid}) > 1 else "is"
        return {"reason": "points invalid above", "at": at, "text": f"{up_to}; the point at {levels} {many} {why}"}
    if left_out:
        first = min(left_out, key=lambda s: s["concurrency"])
        text = f"{up_to}; {first['concurrency']} was skipped: {clean(first['reason'])}"
        return {"reason": "skipped", "at": at, "text": text}
    if interrupted and (at is None or not asked or at < max(asked)):
        return {"reason": "interrupted", "at": at, "text": f"{up_to}; the run was cut short before it went higher"}
    if decisions:
        text = clean(decisions[-1].get("text") or "the sweep saw no reason to go higher")
        return {"reason": "decided", "at": at, "text": f"{up_to}; {text}"}
    if at is None:
        return {"reason": "nothing measured", "at": None, "text": "no point was measured"}
    if asked and at < max(asked):
        return {"reason": "not measured", "at": at, "text": f"{up_to}; higher levels were asked for but not measured"}
    return {"reason": "highest level asked", "at": at, "text": f"{at} was the highest level asked"}


def totals(points: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Sums over all points, and over what the check for equal answers spent (`asked`); usd is null unless every one
    knows its cost."""
    spent = [*(get(p, "spent") for p in points), *asked]
    costs = [num(s or {}, "usd") for s in spent]
    return {
        "points": len(points),
        "valid": sum(is_valid(p) for p in points),
        "warned": sum(is_valid(p) and bool(verdicts(p)) for p in points),
        "requests": round(sum(num(s or {}, "requests") or 0 for s in spent)),
        "input_tokens": round(sum(num(s or {}, "input_tokens") or 0 for s in spent)),
        "output_tokens": round(sum(num(s or {}, "output_tokens") or 0 for s in spent)),
        "usd": sum(c for c in costs if c is not None) if points and None not in costs else None,
        "seconds": sum(num(p, "duration_s") or 0.0 for p in points),
    }


def merge(summaries: Sequence[tuple[str, dict[str, Any]]], samples: Sequence[Samples] | None = None) -> dict[str, Any]:
    """Several runs, each with a name, as one summary. Arms keep their names unless two runs share one: then run/arm.
    `samples`: each run's, for what is paired by prompt."""
    seen: dict[str, int] = {}
    for _, summary in summaries:
        for arm in summary["arms"]:
            seen[arm] = seen.get(arm, 0) + 1
    arms: dict[str, Any] = {}
    points: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    ends: dict[str, Any] = {}
    stored: dict[str, tuple[Samples, str]] = {}  # of an arm on this page: its run's samples, its name there
    for number, (run, summary) in enumerate(summaries):
        names = {arm: f"{run}/{arm}" if seen[arm] > 1 else arm for arm in summary["arms"]}
        arms |= {names[arm]: value for arm, value in summary["arms"].items()}
        stored |= {names[arm]: (samples[number], arm) for arm in names} if samples else {}
        points += [p | {"arm": names[p["arm"]]} for p in summary["points"]]
        skipped += [s | {"arm": names.get(s["arm"], s["arm"])} for s in summary["skipped"]]
        ends |= {names[arm]: end for arm, end in summary["ends"].items()}

    def sample_of(point: Mapping[str, Any]) -> Sample | None:
        if point["arm"] not in stored:
            return None
        of_run, own_name = stored[point["arm"]]
        return of_run({**point, "arm": own_name})

    first = summaries[0][1]
    found = frontier([p for p in points if is_measured(p)])
    return first | {
        "name": " and ".join(run for run, _ in summaries),
        "arms": arms,
        "points": points,
        "skipped": skipped,
        "frontier": found,
        "comparison": compare(points, list(arms), found, sample_of),
        "ends": ends,
        "equality": None,
        "totals": totals(points, [spent for _, s in summaries for spent in get(s, "equality", "spent") or []]),
        "order": order_of(points, arms),
        "drift": drifts(points),
        "caveats": [*differences(summaries), *_alarms(summaries)],
    }


def differences(summaries: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """What differs between runs and so may explain a difference between their curves, a sentence each."""
    watched = {
        "the workload": ("workload", "hash"),
        "the output length": ("workload", "max_tokens"),
        "the sampling": ("workload", "sampling"),
        "the salting of prompts": ("workload", "salt"),
        "the client's version": ("tool", "version"),
        "the client's host": ("host",),
    }
    (first_name, first), *others = summaries
    return [
        f"Between {clean(first_name, 80)} and {clean(name, 80)}, {what} differs, so their curves may not be comparable."
        for name, other in others
        for what, path in watched.items()
        if get(first, *path) != get(other, *path)
    ]


def _alarms(summaries: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Each run's own warning that its arms answer differently."""
    return [f"In {clean(run, 80)}, {text}" for run, summary in summaries if (text := alarm(summary))]


def read_equality(run: Path) -> dict[str, Any] | None:
    """What the check for equal answers found; None where it was not asked for."""
    path = run / "equality.json"
    if not path.is_file():
        return None
    found = _object(path)
    if not {"base", "arms", "floor", "failures", "status", "text"} <= set(found):
        raise ReportError(f"{path} is corrupt: it is no comparison of answers.")
    return found


def read_manifest(run: Path) -> dict[str, Any]:
    return _read(records.read_manifest, run)


def read_points(run: Path) -> list[tuple[Path, dict[str, Any]]]:
    """(folder, point) of every finished point, in folder order. A folder without point.json was cut short: left out."""
    found = []
    for path in sorted(run.glob("points/*/*/point.json")):
        point = _object(path)
        wrong = [key for key, is_right in SHAPE.items() if not is_right(point.get(key))]
        if wrong or "concurrency" not in point:
            raise ReportError(f"{path} is corrupt: {(wrong or ['concurrency'])[0]} is missing or of the wrong kind.")
        found.append((path.parent, point))
    return found


def read_journal(run: Path) -> list[dict[str, Any]]:
    return _read(records.read_journal, run)


def _object(path: Path) -> dict[str, Any]:
    return _read(records.read_document, path)


def _read(reader: Callable[[Path], T], path: Path) -> T:
    try:
        return reader(path)
    except records.StoreError as error:
        raise ReportError(f"{clean(error, 4000)}.") from None
