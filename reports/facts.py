"""What was run against what, as (label, text) pairs for the page and the markdown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from reports.formats import MISSING, clean, integer, seconds, usd

UNVERIFIED = " (its TLS certificate was not verified)"


def arm_facts(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One dict an arm: name, url, model, api, speculation, server and why its curve ended, all as text."""
    return [
        {
            "name": clean(name, 60),
            "url": _word(arm["url"]) + (UNVERIFIED if arm.get("verify_tls") is False else "") + _started(arm),
            "model": _word(arm["model"]),
            "api": _word(arm["api"]),
            "speculation": flat(arm["speculation"]) or "none declared",
            "server": server_text(arm["server"]) or MISSING,
            "end": clean(summary["ends"][name]["text"]) if name in summary["ends"] else MISSING,
        }
        for name, arm in summary["arms"].items()
    ]


def _started(arm: Mapping[str, Any]) -> str:
    launch = arm.get("launch")
    return f", started by this run: {clean(shlex.join(launch['command']), 500)}" if launch else ""


def server_text(server: Mapping[str, Any] | None) -> str:
    """What the probe found, 'name; what: seen; …', then anything it noted besides."""
    known = dict(server or {})
    name, findings = known.pop("name", None), known.pop("findings", None) or []
    seen = [f"{clean(f.get('what'), 80)}: {clean(f.get('seen'), 200)}" for f in findings if isinstance(f, Mapping)]
    rest = flat({key: value for key, value in known.items() if value not in ([], {}, None)})
    return "; ".join(part for part in (clean(name, 120) if name else "", *seen, rest) if part)


def run_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    tool, totals = summary["tool"] or {}, summary["totals"]
    libraries = flat(summary.get("libraries"))
    version = f"{clean(tool.get('name') or 'endsweep', 40)} {clean(tool.get('version') or '', 40)}"
    if summary.get("git_commit"):
        version += f" (git {clean(summary['git_commit'])[:12]})"
    cost = f", {usd(totals['usd'])}" if totals["usd"] is not None else ""
    spent = (
        f"{integer(totals['requests'])} requests, {integer(totals['input_tokens'])} input and "
        f"{integer(totals['output_tokens'])} output tokens, {seconds(totals['seconds'])} of measuring{cost}"
    )
    facts = [
        ("Workload", flat(summary["workload"])),
        ("Load", flat(summary["load"])),
        ("Order", clean(summary["order"]["text"], 1000)),
        ("Limits", flat(summary["limits"])),
        ("Seed", _word(summary["seed"])),
        ("Started", _word(summary["created_at"])),
        ("Spent", spent),
        ("Measured by", version),
        ("Python and libraries", ", ".join(x for x in (_python(summary), libraries) if x)),
        ("Client host", flat(summary["host"])),
        ("Fingerprints", flat(summary.get("fingerprints"))),
    ]
    return [(label, text or MISSING) for label, text in facts]


def _python(summary: Mapping[str, Any]) -> str:
    return f"Python {clean(summary['python'], 20)}" if summary.get("python") else ""


def _word(value: Any) -> str:
    return MISSING if value is None else clean(value, 300)


def flat(value: Any, limit: int = 1500) -> str:
    """A nested dict as one line, 'a 1, b.c 2'; nulls are left out."""
    return clean(", ".join(_pairs(value, "")), limit)


def _pairs(value: Any, name: str) -> list[str]:
    if isinstance(value, Mapping):
        return [p for key, inner in value.items() for p in _pairs(inner, f"{name}.{key}" if name else str(key))]
    if value is None:
        return []
    if isinstance(value, list | tuple) and all(not isinstance(v, Mapping | list | tuple) for v in value):
        text = " ".join(str(v) for v in value)
    elif isinstance(value, list | tuple):
        text = "; ".join(", ".join(_pairs(v, "")) for v in value)
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    else:
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return [f"{name.replace('_', ' ')} {text}".strip()]
