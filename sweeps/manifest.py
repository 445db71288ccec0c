"""What identifies a run: versions, machine, what was asked of whom, and the fingerprints that resuming goes by."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from endpoints.dialects import RequestShape
from endpoints.findings import Probed, as_json
from endpoints.target import Target
from profiles.loading import ResolvedArm, Sweep, env_as_asked, without_secrets
from profiles.workloads import Prompt, workload_hash
from sweeps.events import MEASURE
from sweeps.metrics import METRICS_VERSION
from sweeps.plan import PlannedPoint
from sweeps.point import SCHEMA_VERSION
from sweeps.store import utc_now

_LIBRARIES = ("aiohttp", "numpy", "scipy", "pandas", "altair", "pydantic", "orjson", "pyarrow", "uvloop")


def manifest_of(
    sweep: Sweep, targets: Mapping[str, Target], probed: Mapping[str, Probed], prompts: Sequence[Prompt]
) -> dict[str, Any]:
    """`manifest.json`. No header, key or body field of an endpoint is in it, only their digests."""
    load, workload = sweep.load, sweep.workload
    facts = comparable(sweep, targets, prompts)
    arms = {}
    for arm in sweep.arms:
        found = probed.get(arm.name)
        shape = targets[arm.name].shape
        arms[arm.name] = {
            "slug": arm.slug,
            "url": arm.url,
            "model": shape.model,
            "api": arm.api,
            "speculation": arm.speculation.model_dump() if arm.speculation else None,
            "prices": arm.prices.model_dump() if arm.prices else None,
            "launch": launch_facts(arm, targets[arm.name]),
            "before_point": _hook_facts(arm, targets[arm.name]),
            "verify_tls": arm.tls.verify,
            "proxy": arm.proxy,
            "stream": arm.stream,
            "request": request_facts(shape),
            "metrics_url": list(targets[arm.name].metrics_url),
            "probe": as_json(found) if found else None,
            "server": found.server if found else None,
        }
    return {
        "schema_version": SCHEMA_VERSION,
        "name": sweep.name,
        "created_at": utc_now(),
        "tool": {"name": "endsweep", "version": _version("endsweep")},
        "python": platform.python_version(),
        "libraries": libraries(),
        "git_commit": _commit(),
        "host": host(),
        "seed": sweep.seed,
        "arms": arms,
        "workload": {
            "name": workload.name,
            "hash": facts["workload.prompts"],
            "prompts": len(prompts),
            "categories": sorted({p.category for p in prompts}),
            "max_tokens": workload.max_tokens,
            "salt": workload.salt,
            "system": workload.system,
            "sampling": workload.sampling,
        },
        "load": {
            "levels": list(load.levels),
            "seconds": load.seconds,
            "requests": load.requests,
            "exact": load.exact,
            "warmup": load.warmup,
            "trials": load.trials,
            "workers": load.workers,
        },
        "limits": sweep.limits.model_dump(),
        "check_equal": sweep.check_equal,
        "comparable": facts,
    }


def request_facts(shape: RequestShape) -> dict[str, Any]:
    """How requests are put, as far as an endpoint may have a say in it."""
    return {
        "max_tokens_field": shape.max_tokens_field,
        "include_usage": shape.include_usage,
        "chunk_tokens": shape.chunk_tokens,
    }


def launch_facts(arm: ResolvedArm, target: Target) -> dict[str, Any] | None:
    """What the manifest says of how an arm is started. Of the environment only the names: values may come of secrets,
    and sweep.yaml holds them as they were written."""
    if arm.launch is None:
        return None
    launch = arm.launch
    return {
        "command": [target.scrub(word) for word in launch.command],
        "options": launch.options and target.scrub(launch.options),
        "env": sorted(launch.env),
        "cwd": launch.cwd,
        "engine": launch.engine,
        "ready_seconds": launch.ready_seconds,
        "stop_seconds": launch.stop_seconds,
    }


def _hook_facts(arm: ResolvedArm, target: Target) -> dict[str, Any] | None:
    if arm.before_point is None:
        return None
    facts = arm.before_point.model_dump(exclude_none=True)
    return facts | ({"command": [target.scrub(word) for word in facts["command"]]} if "command" in facts else {})


def fingerprints(comparable: Mapping[str, Any], points: Sequence[PlannedPoint]) -> dict[str, str]:
    """Two digests: what makes points comparable, and the plan itself."""
    plan = [
        [p.key.arm, p.key.concurrency, p.key.trial, *([] if p.key.kind == MEASURE else [p.key.kind])] for p in points
    ]
    return {"comparable": _digest(comparable), "plan": _digest(plan)}


def comparable(sweep: Sweep, targets: Mapping[str, Target], prompts: Sequence[Prompt]) -> dict[str, Any]:
    """What must be the same for points to stand on one curve, by name. Levels, trials and limits may change.

    No secret is in it, nor a digest of one: a key that was renewed changes nothing, and cannot be guessed at by it.
    """
    workload, load = sweep.workload, sweep.load
    facts: dict[str, Any] = {
        "workload.prompts": workload_hash(prompts, workload),
        "workload.max_tokens": workload.max_tokens,
        "workload.salt": workload.salt,
        "workload.system": workload.system,
        "workload.sampling": dict(workload.sampling),
        "load.seconds": load.seconds,
        "load.requests": load.requests,
        "load.exact": load.exact,
        "load.warmup": load.warmup,
        "seed": sweep.seed,
        "metrics_version": METRICS_VERSION,
        "arms": [arm.name for arm in sweep.arms],
    }
    for arm in sweep.arms:
        target, shape = targets[arm.name], targets[arm.name].shape
        facts |= {
            f"arms.{arm.name}.url": arm.url,
            f"arms.{arm.name}.model": shape.model,
            f"arms.{arm.name}.api": arm.api,
            f"arms.{arm.name}.extra_body": _digest(without_secrets(arm.extra_body)),
            f"arms.{arm.name}.headers": sorted(arm.headers),
            f"arms.{arm.name}.tokenizer": arm.tokenizer,
            f"arms.{arm.name}.speculation": arm.speculation.model_dump() if arm.speculation else None,
            f"arms.{arm.name}.request": [shape.max_tokens_field, shape.include_usage, shape.chunk_tokens],
        }
        if (launch := launch_facts(arm, target)) is not None:
            facts[f"arms.{arm.name}.launch"] = shlex.join(launch["command"])
            facts |= {f"arms.{arm.name}.launch.{key}": launch[key] for key in ("options", "cwd")}
            facts |= {f"arms.{arm.name}.launch.env.{key}": text for key, text in env_as_asked(sweep, arm.name).items()}
        if (hook := _hook_facts(arm, target)) is not None:
            facts[f"arms.{arm.name}.before_point"] = {key: hook[key] for key in hook if key != "seconds"}
    return facts


def libraries() -> dict[str, str | None]:
    """Versions of the libraries that numbers may depend on."""
    return {name: _version(name) for name in _LIBRARIES}


def host() -> dict[str, Any]:
    """The machine the client runs on."""
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "memory_bytes": _memory(),
        "python": sys.implementation.name,
    }


def _cpu() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout that endsweep runs from; None when it was installed."""
    home = Path(__file__).resolve().parent.parent
    if not (home / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(home), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]
