"""Getting a sweep ready to run: keys, prompts, plan, a look at every arm, and the folder, new or gone on with."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from endpoints.findings import PreflightError, Probed, Say
from endpoints.preflight import preflight, seen
from endpoints.resources import descriptor_shortage, raise_descriptor_limit
from endpoints.target import Target, target_of, timeouts_of
from profiles.errors import ProfileError
from profiles.hosts import is_local
from profiles.loading import Sweep, dump_stored
from profiles.workloads import load_prompts, split
from sweeps.capacity import ASSUMED, Capacity, warning_for
from sweeps.cores import cores_here
from sweeps.events import Listener, Note
from sweeps.manifest import fingerprints, manifest_of
from sweeps.measure import Prompts
from sweeps.plan import PlannedCheck, PlannedPoint, plan_checks, plan_sweep
from sweeps.records import StoreError, read_manifest
from sweeps.runner import SweepRun
from sweeps.servers import Servers
from sweeps.store import RunStore, differences


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sweep with everything that can be known of it without sending anything."""

    sweep: Sweep
    targets: dict[str, Target]
    prompts: Prompts
    points: tuple[PlannedPoint, ...]
    checks: tuple[PlannedCheck, ...] = ()


def prepare(sweep: Sweep, env: Mapping[str, str], *, keys: bool = True) -> Prepared:
    """Read keys (unless only a plan is wanted) and prompts, and plan the points; no traffic. Raises ProfileError."""
    limits = sweep.limits
    if limits.usd is not None and any(arm.prices is None for arm in sweep.arms):
        unpriced = next(arm.name for arm in sweep.arms if arm.prices is None)
        remedy = "give endpoint.prices {input, output} in a sweep file, or cap --max-total-tokens instead"
        raise ProfileError("--max-usd", None, f"a limit in USD cannot be kept: arm {unpriced} has no prices", remedy)
    workload, timeouts = sweep.workload, timeouts_of(limits)
    targets = {
        arm.name: target_of(arm, workload.max_tokens, workload.sampling, timeouts, env)
        for arm in (sweep.arms if keys else ())
    }
    if keys:
        _can_start(sweep, targets, env)
    measured, warmup = split(load_prompts(workload))
    points, checks = plan_sweep(sweep, measured), plan_checks(sweep, measured)
    return Prepared(sweep, targets, Prompts(measured, warmup), points, checks)


async def look_at_arms(prepared: Prepared, say: Say | None = None) -> tuple[Prepared, dict[str, Probed]]:
    """Check this machine's limits and every arm that is up (all at once); the targets come back as the probe would have
    them.

    `say` is told when an arm's rate limit makes us wait. Raises PreflightError.
    """
    highest = max(p.key.concurrency for p in prepared.points)
    if shortage := descriptor_shortage(highest, raise_descriptor_limit()):
        raise PreflightError(shortage)
    names = [arm.name for arm in prepared.sweep.arms if arm.launch is None]  # others are looked at when they are up
    looks = (preflight(prepared.targets[name], say) for name in names)
    found = await asyncio.gather(*looks, return_exceptions=True)
    probed: dict[str, Probed] = {}
    for name, result in zip(names, found, strict=True):
        if isinstance(result, BaseException):
            raise result
        probed[name] = result
    targets = {n: seen(t, probed[n]) if n in probed else t for n, t in prepared.targets.items()}
    return replace(prepared, targets=targets), probed


def open_store(prepared: Prepared, probed: Mapping[str, Probed], out: Path, *, resume: bool) -> RunStore:
    """The run's folder: a new one, or the one to go on with, when its points are comparable with what is asked now.

    Raises StoreError, naming each difference.
    """
    sweep, prompts = prepared.sweep, prepared.prompts.all
    manifest = manifest_of(sweep, prepared.targets, probed, prompts)
    manifest["fingerprints"] = fingerprints(manifest["comparable"], prepared.points)
    if not resume:
        return RunStore.create(out, manifest, dump_stored(sweep))
    before = read_manifest(out)
    if unlike := differences(before["comparable"], manifest["comparable"]):
        raise StoreError(
            f"cannot go on with {out}, its points would not be comparable: {'; '.join(unlike)}; "
            "ask as before, or measure into a new folder (--out)"
        )
    store = RunStore.reopen(out)
    added = sorted(set(manifest["load"]["levels"]) - set(before["load"]["levels"]))
    store.note("decision", text="resumed" + (f", levels added: {added}" if added else ""))
    levels = sorted({*manifest["load"]["levels"], *before["load"]["levels"]})
    arms = manifest["arms"]
    for name, facts in before.get("arms", {}).items():
        if facts.get("started") and name in arms:  # what its server showed when it was up
            arms[name] |= {key: facts[key] for key in ("model", "request", "probe", "server", "started")}
    kept = {"created_at": before["created_at"], "load": manifest["load"] | {"levels": levels}}
    store.update(manifest | kept, dump_stored(sweep))
    return store


def new_run(prepared: Prepared, store: RunStore, listen: Listener, capacity: Capacity | None = None) -> SweepRun:
    """The sweep over a prepared plan and an open folder. `capacity`: what a selftest found; None without one."""
    for note in _warnings(prepared, capacity):
        listen(Note(note, "warn"))
    servers = Servers(prepared.sweep, prepared.targets, store, listen)
    return SweepRun(prepared.sweep, prepared.points, servers, prepared.prompts, store, listen, capacity or ASSUMED)


def _can_start(sweep: Sweep, targets: Mapping[str, Target], env: Mapping[str, str]) -> None:
    """Raises ProfileError where a server, or a hook, cannot be started as it is asked, as far as that can be seen
    beforehand."""
    for arm in sweep.arms:
        where, launch, hook = f"arm {arm.name}", arm.launch, arm.before_point
        if launch is not None:
            if launch.cwd is not None and not Path(launch.cwd).is_dir():
                raise ProfileError(where, "launch.cwd", f"{launch.cwd} is not a folder", "correct the path")
            if launch.options is not None and targets[arm.name].scrub(launch.options) != launch.options:
                problem = "they are written into a file of the run, and hold a secret"
                raise ProfileError(where, "launch.options", problem, "give it to the server by its environment")
            remedy = "install it, give its path, or name what starts it (launch.program for an engine)"
            _find(launch.command[0], launch.cwd, launch.env.get("PATH", env.get("PATH")), where, "launch", remedy)
        if hook is not None and hook.command is not None:
            remedy = "install it, or give its path"
            _find(hook.command[0], None, env.get("PATH"), where, "before_point", remedy)


def _find(program: str, cwd: str | None, path: str | None, where: str, key: str, remedy: str) -> None:
    if "/" in program:
        named = Path(cwd or ".") / program
        found = named.is_file() and os.access(named, os.X_OK)
    else:
        found = shutil.which(program, path=path) is not None
    if not found:
        raise ProfileError(where, key, f"there is no program {program} to start", remedy)


def _warnings(prepared: Prepared, capacity: Capacity | None) -> list[str]:
    sweep = prepared.sweep
    unsafe = [arm.name for arm in sweep.arms if not arm.tls.verify]
    notes = [f"TLS certificates are not verified for arm {name} (tls: {{verify: false}})" for name in unsafe]
    asked = None if sweep.load.workers == "auto" else int(sweep.load.workers)
    local = any(is_local(arm.url) for arm in sweep.arms)
    beyond = warning_for(max(sweep.load.levels), asked, capacity, cores=cores_here(), local=local)
    return [*notes, beyond] if beyond else notes
