"""The front door: the command line, one thin function a command. Heavy imports wait until a command needs them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from profiles.errors import ProfileError
from profiles.hosts import is_local

if TYPE_CHECKING:
    from profiles.loading import Sweep
    from sweeps.runner import SweepOutcome, SweepRun
    from sweeps.session import Prepared

DONE, ANSWER_IS_NO, BAD_INPUT = 0, 1, 2
INTERRUPTED, TERMINATED = 130, 143

app = typer.Typer(
    help="Sweep an OpenAI-compatible endpoint over concurrency: total throughput against speed per user.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

# -- options that several commands share -----------------------------------------------------------------------------

Spec = Annotated[str | None, typer.Argument(metavar="SPEC|URL", help="a sweep file, or the endpoint's URL")]
Model = Annotated[str | None, typer.Option(help="the model's name; default: the only one the server lists")]
Arms = Annotated[list[str] | None, typer.Option("--arm", metavar="NAME=URL", help="an arm to compare; repeatable")]
Api = Annotated[str | None, typer.Option(help="chat or completions")]
Concurrency = Annotated[str | None, typer.Option(help="levels: 1,2,4 or 1..64 (powers of two) or auto (now 1..64)")]
Seconds = Annotated[float | None, typer.Option(help="window seconds a point, at least (default 30, with 40 requests)")]
Requests = Annotated[int | None, typer.Option(help="measured requests a point, at least")]
Exact = Annotated[bool, typer.Option("--exact", help="send exactly --requests counted requests and no filler")]
Warmup = Annotated[str | None, typer.Option(help="requests before the window, or auto; 0 for none")]
MaxTokens = Annotated[int | None, typer.Option(help="output tokens asked of each request")]
Trials = Annotated[int | None, typer.Option(help="repeat every point so many times")]
Workers = Annotated[str | None, typer.Option(help="client processes, or auto: as the load needs and the cores allow")]
CheckEqual = Annotated[
    int | None, typer.Option(metavar="N", help="compare the arms' greedy answers to N prompts, before the points")
]
Seed = Annotated[int | None, typer.Option(help="seed of prompt order and salts")]
KeyEnv = Annotated[str | None, typer.Option(metavar="NAME", help="environment variable that holds the API key")]
KeyFile = Annotated[str | None, typer.Option(metavar="FILE", help="file that holds the API key")]
Header = Annotated[list[str] | None, typer.Option(metavar="'K: V'", help="an extra request header; repeatable")]
MaxUsd = Annotated[float | None, typer.Option(help="spend no more than this (needs prices)")]
MaxTotalTokens = Annotated[int | None, typer.Option(help="use no more tokens than this, input and output together")]
MaxMinutes = Annotated[float | None, typer.Option(help="run no longer than this")]
AsJson = Annotated[bool, typer.Option("--json", help="print the answer as JSON on stdout")]


@app.command(epilog="Example:  endsweep run http://127.0.0.1:8000/v1 --model my-model --concurrency 1..32")
def run(
    context: typer.Context,
    spec: Spec = None,
    model: Model = None,
    arm: Arms = None,
    api: Api = None,
    concurrency: Concurrency = None,
    seconds: Seconds = None,
    requests: Requests = None,
    exact: Exact = False,
    warmup: Warmup = None,
    max_tokens: MaxTokens = None,
    trials: Trials = None,
    workers: Workers = None,
    check_equal: CheckEqual = None,
    seed: Seed = None,
    key_env: KeyEnv = None,
    key_file: KeyFile = None,
    header: Header = None,
    max_usd: MaxUsd = None,
    max_total_tokens: MaxTotalTokens = None,
    max_minutes: MaxMinutes = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask before spending on a host that is not local")] = False,
    out: Annotated[Path | None, typer.Option(help="the run's folder; default runs/<name>-<UTC time>")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="exit 1 when any point is invalid, or answers differ or are missing")
    ] = False,
    json: AsJson = False,
) -> None:
    """Measure: sweep concurrency on every arm, write a report."""
    if resume and out is None and spec is not None and (Path(spec) / "manifest.json").is_file():
        out, spec = Path(spec), None  # a run's folder where a sweep file may stand
    if resume and out is None:
        fail("--resume needs to know which run to go on with: name its folder with --out")
    if resume and out is not None and spec is None and not arm:
        spec = str(out / "sweep.yaml")
    sweep = _sweep(spec, _overrides(context.params))
    capped = any(getattr(sweep.limits, name) is not None for name in ("minutes", "tokens", "usd"))
    prepared = _prepared(sweep)
    _consent(prepared, yes or capped)
    raise typer.Exit(_run(prepared, out or _default_folder(sweep), resume=resume, strict=strict, json=json))


@app.command(epilog="Example:  endsweep plan sweep.yaml --json")
def plan(
    context: typer.Context,
    spec: Spec = None,
    model: Model = None,
    arm: Arms = None,
    api: Api = None,
    concurrency: Concurrency = None,
    seconds: Seconds = None,
    requests: Requests = None,
    exact: Exact = False,
    warmup: Warmup = None,
    max_tokens: MaxTokens = None,
    trials: Trials = None,
    check_equal: CheckEqual = None,
    seed: Seed = None,
    json: AsJson = False,
) -> None:
    """Print what a run would do and cost; send nothing."""
    from sweeps.plan import plan_json

    prepared = _prepared(_sweep(spec, _overrides(context.params)), keys=False)
    if json:
        _print_json(plan_json(prepared.points, prepared.checks))
        return
    from reports.preview import print_plan

    print_plan(plan_json(prepared.points, prepared.checks))


@app.command(epilog="Example:  endsweep probe https://api.example.com/v1 --model my-model --key-env EXAMPLE_API_KEY")
def probe(
    context: typer.Context,
    spec: Annotated[
        str, typer.Argument(metavar="URL|SPEC", help="the endpoint's URL, or a sweep file (its first arm)")
    ],
    model: Model = None,
    api: Api = None,
    key_env: KeyEnv = None,
    key_file: KeyFile = None,
    header: Header = None,
    json: AsJson = False,
) -> None:
    """See what an endpoint accepts and sends.

    At most 12 requests of 32 tokens. What it prints is a commented sweep file, ready for `endsweep run`.
    """
    from endpoints.loops import run_loop
    from endpoints.probe import PreflightError, as_json, profile_of
    from endpoints.probe import probe as probe_endpoint
    from endpoints.target import target_of, timeouts_of
    from profiles.yamltext import dump

    sweep = _sweep(spec, _overrides(context.params))
    arm, workload = sweep.arms[0], sweep.workload
    if arm.launch is not None:
        fail(f"arm {arm.name} is a server that `endsweep run` starts: start it yourself, and probe its URL")
    try:
        target = target_of(arm, workload.max_tokens, workload.sampling, timeouts_of(sweep.limits), os.environ)
        found = run_loop(probe_endpoint(target, _say))
    except (ProfileError, PreflightError) as exc:
        fail(str(exc))
    profile = profile_of(sweep, arm, found)
    if json:
        _print_json({"profile": profile, **as_json(found)})
        return
    from reports.preview import print_probe

    print_probe(as_json(found), dump(profile))


@app.command(epilog="Example:  endsweep report runs/my-run-20261130T120000Z")
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="folders of runs")],
    out: Annotated[Path | None, typer.Option(help="where several runs' common report goes")] = None,
    json: AsJson = False,
) -> None:
    """Rebuild the report from stored runs.

    Page, pictures and tables; several runs go on one page.
    """
    from reports.build import build, build_many
    from reports.summary import ReportError
    from reports.terminal import print_report

    alone = len(runs) == 1 and out is None
    folder = runs[0] if alone else out or Path("runs") / f"report-{_stamp()}"
    try:
        summary = build(folder) if alone else build_many(runs, folder)
    except ReportError as exc:
        fail(str(exc))
    except OSError as exc:
        fail(f"cannot write the report into {folder}: {exc.strerror or exc}")
    _print_summary(summary, json)
    if not json:
        print_report(folder / "report.html")


@app.command(epilog="Example:  endsweep demo")
def demo(
    out: Annotated[Path | None, typer.Option(help="the run's folder; default runs/demo-<UTC time>")] = None,
    json: AsJson = False,
) -> None:
    """Sweep the embedded endpoint, speculation off and on.

    No network, under 90 seconds, ends with a report.
    """
    from endpoints.simulator.process import SimulatorProcess
    from sweeps.demo import ARMS, overrides

    folder = out or Path("runs") / f"demo-{_stamp()}"
    with SimulatorProcess(ARMS["off"]) as off, SimulatorProcess(ARMS["on"]) as on:
        sweep = _sweep(None, overrides({"off": off.url, "on": on.url}))
        code = _run(_prepared(sweep), folder, resume=False, strict=False, json=json)
    raise typer.Exit(code)


@app.command(epilog="Example:  endsweep simulate --port 8000 --speculation k=4,p=0.7")
def simulate(
    port: Annotated[int, typer.Option(help="port; 0 takes any free one")] = 0,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="the one model it serves")] = "sim",
    speculation: Annotated[str, typer.Option(help="off, or k=4,p=0.7[,draft_ms=..][,verify_ms=..]")] = "off",
    burst: Annotated[bool, typer.Option("--burst", help="one event per token, a step's tokens in a burst")] = False,
    decode_base_ms: Annotated[float | None, typer.Option(help="decode step: fixed part, ms")] = None,
    decode_ms_per_sequence: Annotated[float | None, typer.Option(help="decode step: ms per running request")] = None,
    prefill_base_ms: Annotated[float | None, typer.Option(help="prefill step: fixed part, ms")] = None,
    prefill_ms_per_token: Annotated[float | None, typer.Option(help="prefill step: ms per prompt token")] = None,
    max_batch: Annotated[int | None, typer.Option(help="most requests running at once")] = None,
    kv_tokens: Annotated[int | None, typer.Option(help="KV space in tokens, over all running requests")] = None,
    natural_tokens: Annotated[int | None, typer.Option(help="mean natural length of answers; 0: as asked")] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="ask for the key in this variable")] = None,
    seed: Annotated[int, typer.Option(help="seed of what speculation accepts")] = 0,
    diverge: Annotated[float, typer.Option(help="share of prompts whose text turns into another half way")] = 0.0,
    hostile: Annotated[
        str | None, typer.Option(metavar="CASE", help="serve this bad behaviour instead; `list` names them all")
    ] = None,
) -> None:
    """Serve the embedded endpoint alone.

    Prints its URL when it is ready; GET /truth tells what it truly did.
    """
    if hostile is not None:
        _simulate_hostile(hostile, host, port)
        return
    from endpoints.simulator.options import SimulatorOptions
    from endpoints.simulator.process import serve

    given = {
        "decode_base_ms": decode_base_ms,
        "decode_ms_per_sequence": decode_ms_per_sequence,
        "prefill_base_ms": prefill_base_ms,
        "prefill_ms_per_token": prefill_ms_per_token,
        "max_batch": max_batch,
        "kv_tokens": kv_tokens,
        "natural_tokens": natural_tokens,
    }
    try:
        options = SimulatorOptions(
            port=port,
            host=host,
            model=model,
            speculation=speculation,
            burst=burst,
            api_key_env=api_key_env,
            seed=seed,
            diverge=diverge,
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )
        options.engine_config()
        serve(options)
    except ValueError as exc:
        fail(str(exc))
    except OSError as exc:
        fail(f"cannot listen on {host}:{port}: {exc.strerror or exc}; choose another --port")


def _simulate_hostile(case: str, host: str, port: int) -> None:
    from endpoints.simulator.hostile import serve
    from endpoints.simulator.hostile.cases import CASES

    if case == "list":
        for known in CASES.values():
            typer.echo(f"{known.name:32} {known.what}")
        return
    try:
        serve(case, host, port)
    except ValueError as exc:
        fail(str(exc))
    except OSError as exc:
        fail(f"cannot listen on {host}:{port}: {exc.strerror or exc}; choose another --port")


@app.command(epilog="Example:  endsweep selftest --quick")
def selftest(
    quick: Annotated[bool, typer.Option("--quick", help="fewer levels and shorter streams: under 15 seconds")] = False,
    json: AsJson = False,
) -> None:
    """Measure what this machine's client can carry, and how exactly.

    Against a built-in server whose true times are known; under a minute, no network. Runs go by what it found.
    """
    from endpoints.loops import run_loop
    from reports.selftest import print_selftest
    from sweeps.selftest import selftest as measure
    from sweeps.selftest import store

    try:
        found = run_loop(measure(quick, _say))
    except RuntimeError as exc:
        fail(str(exc))
    stored: str | None = None
    try:
        stored = str(store(found, os.environ))
    except OSError as exc:
        _say(f"the limits cannot be kept in {exc.filename}: {exc.strerror}; runs will not know them")
    if json:
        _print_json(found)
        return
    print_selftest(found, stored)


profiles_app = typer.Typer(help="List ready-made workloads; write a commented starter file.", add_completion=False)
app.add_typer(profiles_app, name="profiles")


@profiles_app.callback(invoke_without_command=True, epilog="Example:  endsweep profiles new sweep > sweep.yaml")
def profiles(context: typer.Context, json: AsJson = False) -> None:
    """List the ready-made workloads, the engines that a sweep can start, and the kinds of starter files."""
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from profiles.engines import ENGINES
    from profiles.starters import STARTERS, about
    from profiles.workloads import list_ready

    ready = list_ready()
    if json:
        _print_json([asdict(row) for row in ready])
        return
    for row in ready:
        typer.echo(f"{row.name:12} {row.prompts:4} prompts, {row.max_tokens:4} tokens  {row.description}")
        typer.echo(f"{'':12} {', '.join(row.categories)}")
    typer.echo(
        "\nEngines that a sweep can start, by launch: {engine: NAME, model: ...}; off, and on by a declared method:"
    )
    for name, engine in ENGINES.items():
        typer.echo(f"{name:12} {engine.title}: off, {', '.join(engine.methods)}")
    typer.echo("\nStarter files, printed by `endsweep profiles new KIND`:")
    for kind in STARTERS:
        typer.echo(f"{kind:12} {about(kind)}")


@profiles_app.command(epilog="Example:  endsweep profiles new sweep > sweep.yaml")
def new(kind: Annotated[str, typer.Argument(metavar="KIND", help="a kind that `endsweep profiles` lists")]) -> None:
    """Print a commented starter file."""
    from profiles.starters import starter

    try:
        typer.echo(starter(kind), nl=False)
    except ProfileError as exc:
        fail(str(exc))


# -- what the commands are made of -----------------------------------------------------------------------------------


def _overrides(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as a document of the sweep file's shape: what was not given is not in it."""
    option = given.get  # by the name of the command's parameter; a command without it has not been given it
    env, file, spec, seed = option("key_env"), option("key_file"), option("spec"), option("seed")
    if env is not None and file is not None:
        fail("--key-env and --key-file exclude each other: keep one of them")
    endpoint = {
        "url": spec if _is_url(spec) else None,
        "model": option("model"),
        "api": option("api"),
        "auth": _given({"env": env, "file": file}) or None,
        "headers": _headers(option("header")),
    }
    load = {
        "concurrency": option("concurrency"),
        "seconds": option("seconds"),
        "requests": option("requests"),
        "exact": option("exact") or None,
        "warmup": _whole(option("warmup")),
        "trials": option("trials"),
        "workers": _whole(option("workers")),
    }
    limits = {"usd": option("max_usd"), "tokens": option("max_total_tokens"), "minutes": option("max_minutes")}
    document: dict[str, Any] = {
        "endpoint": _given(endpoint),
        "arms": {name: {"url": url} for name, url in _arms(option("arm"))},
        "workload": _given({"max_tokens": option("max_tokens")}),
        "load": _given(load),
        "limits": _given(limits),
    }
    document = {name: section for name, section in document.items() if section}
    return document | _given({"check_equal": option("check_equal"), "seed": seed})


def _whole(text: str | None) -> int | str | None:
    """A number where there is one; what is left is a word, such as auto, for the sweep file's model to judge."""
    return int(text) if text is not None and text.isdecimal() else text


def _given(section: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if value is not None}


def _arms(given: list[str] | None) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for text in given or []:
        name, equals, url = text.partition("=")
        if not equals or not name or not url:
            fail(f"--arm {text!r} is not NAME=URL: write it like --arm on=http://127.0.0.1:8001/v1")
        if name in dict(pairs):
            fail(f"--arm {name} is given twice: name each arm once")
        pairs.append((name, url))
    return pairs


def _headers(given: list[str] | None) -> dict[str, str] | None:
    headers = {}
    for text in given or []:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            fail(f"--header needs 'Name: value', and {name.strip()[:40]!r} has no colon")
        headers[name.strip()] = value.strip()
    return headers or None


def _is_url(spec: str | None) -> bool:
    return spec is not None and "://" in spec


def _sweep(spec: str | None, overrides: dict[str, Any]) -> Sweep:
    from profiles.loading import load_sweep

    try:
        return load_sweep(None if spec is None or _is_url(spec) else Path(spec), overrides, os.environ)
    except ProfileError as exc:
        fail(str(exc))


def _prepared(sweep: Sweep, *, keys: bool = True) -> Prepared:
    from sweeps.session import prepare

    try:
        return prepare(sweep, os.environ, keys=keys)
    except ProfileError as exc:
        fail(str(exc))


def _consent(prepared: Prepared, given: bool) -> None:
    """Before spending on someone else's machine: say what it will be, and ask."""
    from reports.formats import usd
    from sweeps.plan import totals_of

    away = sorted({arm.url for arm in prepared.sweep.arms if not is_local(arm.url)})
    if not away:
        return
    totals = totals_of(prepared.points, prepared.checks)
    price = f", about {usd(totals['usd'])}" if totals["usd"] is not None else ""
    typer.echo(
        f"About to send about {totals['requests']:,} requests, {totals['tokens']:,} tokens{price}, "
        f"in about {totals['seconds'] / 60:.0f} minutes, to {', '.join(away)}.",
        err=True,
    )
    if given:
        return
    if not sys.stdin.isatty():
        fail("a host that is not local needs --yes, or a cap: --max-usd, --max-total-tokens or --max-minutes")
    if not typer.confirm("Go on?", err=True):
        raise typer.Exit(BAD_INPUT)


def _run(prepared: Prepared, out: Path, *, resume: bool, strict: bool, json: bool) -> int:
    """Look at the arms, open the folder, sweep, report. Returns the exit code."""
    from endpoints.findings import PreflightError
    from endpoints.loops import run_loop
    from reports import equality
    from reports.live import LiveView
    from sweeps.records import StoreError
    from sweeps.selftest import capacity_from
    from sweeps.session import look_at_arms, new_run, open_store

    try:
        prepared, probed = run_loop(look_at_arms(prepared, _say))
        store = open_store(prepared, probed, out, resume=resume)
    except (PreflightError, StoreError, ProfileError) as exc:
        fail(str(exc))
    try:
        with LiveView() as view:
            capacity = capacity_from(os.environ)
            outcome, signal_code = run_loop(_swept(new_run(prepared, store, view, capacity)))
    except OSError as exc:
        fail(f"cannot write to {out}: {exc.strerror or exc}; what was finished is kept, go on with --resume")
    finally:
        store.close()
    summary = _summarised(out)
    try:
        _print_summary(summary, json)
    except BrokenPipeError:
        _hush()  # whoever read has left; the page is drawn all the same
    _draw(out, json)
    if signal_code:
        return signal_code
    arms = {point["arm"] for point in summary["points"] if point["valid"] and point["kind"] == "measure"}
    unanswered = [arm.name for arm in prepared.sweep.arms if arm.name not in arms]
    invalid = strict and (
        outcome.skipped or not all(point["valid"] for point in summary["points"]) or equality.fails(summary)
    )
    return ANSWER_IS_NO if unanswered or invalid else DONE


def _summarised(run: Path) -> dict[str, Any]:
    """The answer, stored; without loading anything that draws."""
    from reports.summary import ReportError, summarise, write_summary

    try:
        summary = summarise(run)
        write_summary(run, summary)
    except ReportError as exc:
        fail(str(exc))
    except OSError as exc:
        fail(f"cannot write the summary into {run}: {exc.strerror or exc}; the points are kept, see `endsweep report`")
    return summary


def _draw(run: Path, json: bool) -> None:
    """Page, pictures and tables, by a process of their own; where they are is the last that is said."""
    import signal

    from reports.drawing import DrawingError, draw
    from reports.terminal import print_report

    again = f"all that was measured is kept, `endsweep report {run}` draws it"
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))  # so that the child ends with us
    try:
        draw(run)
    except DrawingError as exc:
        fail(f"the page is not drawn: {exc}; {again}")
    except (KeyboardInterrupt, SystemExit):
        _say(f"endsweep: interrupted while the page was drawn; {again}")
        raise
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print_report(run / "report.html", sys.stderr if json else None)


async def _swept(run: SweepRun) -> tuple[SweepOutcome, int]:
    """Run the sweep; the first Ctrl-C or SIGTERM stops it cleanly. Returns the outcome and the signal's exit code."""
    import asyncio
    import signal

    code = 0

    def stop(number: int) -> None:
        nonlocal code
        code = INTERRUPTED if number == signal.SIGINT else TERMINATED
        run.stop(f"interrupted by {signal.Signals(number).name}")
        loop.remove_signal_handler(number)  # a second one ends the program at once

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        return await run.run(), code
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)  # uvloop would keep them when it is closed, and swallow what comes later


def _print_summary(summary: dict[str, Any], json: bool) -> None:
    if json:
        _print_json(summary)
        return
    from reports.terminal import print_result

    print_result(summary)


def _print_json(document: Any) -> None:
    import json

    typer.echo(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1))


def _default_folder(sweep: Sweep) -> Path:
    return Path("runs") / f"{sweep.slug}-{_stamp()}"


def _stamp() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def _say(sentence: str) -> None:
    """Progress, on stderr."""
    typer.echo(sentence, err=True)


def _hush() -> None:
    """Nothing more on stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(sentence: str) -> NoReturn:
    """One sentence on stderr, exit code 2."""
    typer.echo(f"endsweep: {sentence}", err=True)
    raise typer.Exit(BAD_INPUT)


def main() -> None:
    """The `endsweep` command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _hush()
        sys.exit(DONE)


if __name__ == "__main__":
    main()
