"""From a sweep file and the command line's options to a sweep that can be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from profiles.errors import ProfileError, Refusal, did_you_mean
from profiles.files import read_text, user_path
from profiles.hosts import origin
from profiles.launching import ResolvedLaunch, check_command, refuse_secrets, resolve_launch
from profiles.merging import displace, merge, overlay_sweep
from profiles.models import Arm, Auth, Hook, Limits, Load, Prices, Speculation, SweepFile, Tls, Workload
from profiles.names import clash, slug
from profiles.secrets import REDACTED, looks_secret, redact_sweep
from profiles.validating import validate
from profiles.variables import escape, expand
from profiles.workloads import load_workload, ready_names, ready_path
from profiles.yamltext import check_values, dump, parse

LARGEST_FILE = 1 << 20  # bytes
OWN_MAX_TOKENS = 256  # for prompts of the user's own
DEFAULT_SECONDS, DEFAULT_REQUESTS = 30.0, 40

_OPTIONS = {
    "endpoint.url": "URL",
    "endpoint.model": "--model",
    "endpoint.api": "--api",
    "endpoint.auth.env": "--key-env",
    "endpoint.auth.file": "--key-file",
    "endpoint.headers": "--header",
    "workload.max_tokens": "--max-tokens",
    "load.concurrency": "--concurrency",
    "load.seconds": "--seconds",
    "load.requests": "--requests",
    "load.exact": "--exact",
    "load.warmup": "--warmup",
    "load.trials": "--trials",
    "load.workers": "--workers",
    "limits.usd": "--max-usd",
    "limits.tokens": "--max-total-tokens",
    "limits.minutes": "--max-minutes",
    "check_equal": "--check-equal",
    "seed": "--seed",
}
COMMAND_LINE = "command line"

Path_ = tuple[str, ...]
Place = Callable[[Path_], tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class ResolvedArm:
    """One arm with everything it inherits. `url` is a base to which routes are appended (before its query, if any); of
    an arm that is launched it has no port yet."""

    name: str
    slug: str
    url: str
    model: str | None
    api: str  # chat | completions
    auth: Auth | None
    headers: dict[str, str]
    extra_body: dict[str, Any]
    prices: Prices | None
    metrics_url: tuple[str, ...]  # empty: looked for beside the URL
    metrics: dict[str, str]  # quantity -> series name, over the known ones
    tls: Tls
    proxy: str  # none | env
    stream: bool
    max_tokens_field: str  # auto | max_tokens | max_completion_tokens
    chunk_tokens: str  # none | usage | ids
    tokenizer: str | None  # the absolute path of a tokenizer.json
    speculation: Speculation | None
    launch: ResolvedLaunch | None = None
    before_point: Hook | None = None


@dataclass(frozen=True, slots=True)
class ResolvedWorkload:
    """`prompts_source` is a workload file (.yaml) or a file of prompts (JSONL), by its absolute path."""

    name: str
    prompts_source: Path
    max_tokens: int
    salt: bool
    system: str | None
    sampling: dict[str, int | float]


@dataclass(frozen=True, slots=True)
class ResolvedLoad:
    """Levels ascending; where both `seconds` and `requests` are given, both are minima."""

    levels: tuple[int, ...]
    seconds: float | None
    requests: int | None
    exact: bool
    warmup: int | str  # requests, or "auto"
    trials: int
    workers: int | str  # client processes, or "auto"
    chunks: Literal["all", "sample", "none"]  # of which requests the arrivals of single fragments are stored
    anchor: bool | None = None  # measure one point again at the end; None: when arms run in blocks


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep, ready to be planned. `stored` is the document as asked: `${NAME}` unexpanded, secrets redacted.

    `check_equal`: of how many prompts the arms' greedy answers are compared.
    """

    name: str
    arms: tuple[ResolvedArm, ...]
    workload: ResolvedWorkload
    load: ResolvedLoad
    limits: Limits
    seed: int
    stored: dict[str, Any]
    check_equal: int = 0

    @property
    def slug(self) -> str:
        """The name as a folder name."""
        return slug(self.name)


def load_sweep(path: Path | None, overrides: Mapping[str, Any], env: Mapping[str, str]) -> Sweep:
    """The sweep of the file at `path` (if any) with `overrides` (a document of the same shape) laid over it.

    `${NAME}` is expanded from `env` in both. Paths in the file are relative to its folder, those in `overrides` to the
    working directory. Raises ProfileError on
    any bad input, naming the option where the fault is in `overrides`.
    """
    where = COMMAND_LINE if path is None else str(path)
    check_values(dict(overrides), COMMAND_LINE)
    raw = {} if path is None else _read(path)
    place = _placing(where, raw, overrides)
    raw = _anchored(raw, Path.cwd() if path is None else path.absolute().parent, env)
    raw = overlay_sweep(raw, _anchored(overrides, Path.cwd(), env))
    refuse_secrets(raw, place)
    document = _expanded(raw, env, place)

    asked = validate(SweepFile, document, place)
    arms = _arms(document, place)
    name = asked.name or _default_name(path, arms[0])
    return Sweep(
        name=name,
        arms=arms,
        workload=_workload(asked.workload, place),
        load=_load(asked.load),
        limits=asked.limits,
        seed=asked.seed,
        stored=redact_sweep({**raw, "name": raw.get("name") or escape(name)}),
        check_equal=asked.check_equal,
    )


def dump_stored(sweep: Sweep) -> str:
    """`sweep.stored` as YAML. Loading it again gives an equal sweep, unless a secret was redacted: that is refused."""
    return dump(sweep.stored)


def env_as_asked(sweep: Sweep, arm: str) -> dict[str, str]:
    """The environment that an arm's server is started with, its `${NAME}` unexpanded, so that no secret is in it."""
    endpoint, own = sweep.stored.get("endpoint") or {}, (sweep.stored.get("arms") or {}).get(arm) or {}
    launch = merge(displace(endpoint, own), own).get("launch")
    asked = launch.get("env") if isinstance(launch, Mapping) else None
    return {name: str(value) for name, value in (asked or {}).items()}


def _read(path: Path) -> dict[str, Any]:
    document = parse(read_text(path, LARGEST_FILE), str(path))
    if document is None:
        raise ProfileError(
            str(path), None, "the file is empty", "write a sweep, or start from `endsweep profiles new sweep`"
        )
    if not isinstance(document, dict):
        raise ProfileError(str(path), None, "the file is not a map of keys and values", "begin with endpoint:")
    return document


def _placing(where: str, file: Mapping[str, Any], overrides: Mapping[str, Any]) -> Place:
    """Says where a path of the merged document came from: the file, or an option."""

    def place(path: Path_) -> tuple[str, str | None]:
        key = ".".join(path) or None
        if not path or not _gives(overrides, path) or (_gives(file, path) and not _replaces(overrides, path)):
            return where, key
        if path[0] == "arms" and path[2:] == ("url",):
            return f"--arm {path[1]}", None
        option = _OPTIONS.get(".".join(path)) or _OPTIONS.get(".".join(path[:-1]))
        return (option, None) if option else (COMMAND_LINE, key)

    return place


def _gives(document: Any, path: Path_) -> bool:
    return not path or (isinstance(document, Mapping) and path[0] in document and _gives(document[path[0]], path[1:]))


def _replaces(document: Any, path: Path_) -> bool:
    """True when what `document` has at `path` is no map: it is not merged with what is below it."""
    for step in path:
        document = document[step]
    return not isinstance(document, Mapping)


def _expanded(value: Any, env: Mapping[str, str], place: Place, path: Path_ = ()) -> Any:
    """`value` with `${NAME}` replaced in its strings, never in its keys."""
    if isinstance(value, Mapping):
        return {name: _expanded(below, env, place, (*path, name)) for name, below in value.items()}
    if isinstance(value, list):
        return [_expanded(below, env, place, (*path, str(number))) for number, below in enumerate(value)]
    if not isinstance(value, str):
        return value
    if REDACTED in value:
        raise ProfileError(*place(path), "the value was redacted when the sweep was stored", "give it again")
    try:
        return expand(value, env)
    except Refusal as refusal:
        raise ProfileError(*place(path), refusal.problem, refusal.remedy) from None


def _anchored(document: Mapping[str, Any], folder: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """`document` with the paths in it made absolute, so that it means the same wherever it is read again."""

    def anchor(section: Any, key: str, only_files: bool = False) -> Any:
        value = section.get(key) if isinstance(section, Mapping) else None
        if not isinstance(value, str) or not value.strip():
            return section
        try:
            meant = expand(value, env)
        except Refusal:
            return section
        if (only_files and not _is_file_name(meant)) or Path(meant).is_absolute() or meant.startswith("~"):
            return section
        return {**section, key: escape(str(folder)) + "/" + value}

    def anchor_files(section: Any) -> Any:
        if not isinstance(section, Mapping):
            return section
        anchored = dict(section)
        if "launch" in anchored:
            anchored["launch"] = anchor(anchored["launch"], "cwd")
        if "auth" in anchored:
            anchored["auth"] = anchor(anchored["auth"], "file")
        if "tls" in anchored:
            anchored["tls"] = anchor(anchor(anchor(anchored["tls"], "ca"), "cert"), "key")
        return {**anchored, **anchor(anchored, "tokenizer")}

    anchored = dict(document)
    if "workload" in anchored:
        anchored["workload"] = anchor(anchor(anchored["workload"], "prompts"), "use", only_files=True)
    if "endpoint" in anchored:
        anchored["endpoint"] = anchor_files(anchored["endpoint"])
    if isinstance(anchored.get("arms"), Mapping):
        anchored["arms"] = {name: anchor_files(arm) for name, arm in anchored["arms"].items()}
    return anchored


def _is_file_name(text: str) -> bool:
    return "/" in text or text.endswith((".yaml", ".yml"))


def _arms(document: Mapping[str, Any], place: Place) -> tuple[ResolvedArm, ...]:
    endpoint = document.get("endpoint") or {}
    asked = {name: arm or {} for name, arm in (document.get("arms") or {}).items()}
    if not asked:
        return (_arm("default", {}, endpoint, ("endpoint",), place),)
    pair = clash(asked)
    if pair is not None:
        problem = f'the arms "{pair[0]}" and "{pair[1]}" would share the folder {slug(pair[0])}'
        raise ProfileError(place(("arms",))[0], "arms", problem, "rename one of them")
    shared = _inherited_by(asked, endpoint, place)
    arms = tuple(_arm(name, arm, shared(arm), ("arms", name), place) for name, arm in asked.items())
    for arm in arms:
        if arm.chunk_tokens != arms[0].chunk_tokens:
            problem = f"counting each chunk loads a server, and {arms[0].name} asks for {arms[0].chunk_tokens}"
            where = place(("arms", arm.name, "chunk_tokens"))[0]
            raise ProfileError(where, f"arms.{arm.name}.chunk_tokens", problem, "give it once, to the endpoint")
    return arms


def _inherited_by(
    arms: Mapping[str, dict[str, Any]], endpoint: dict[str, Any], place: Place
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What an arm takes over of the endpoint: on another origin neither its credentials nor its metrics.

    An endpoint without a url is where its arms are, when they all share one origin. Servers that we start share one.
    """
    elsewhere = {key: value for key, value in endpoint.items() if key not in ("auth", "metrics_url")}
    for fields in ("headers", "extra_body"):
        if isinstance(elsewhere.get(fields), Mapping):
            elsewhere[fields] = without_secrets(elsewhere[fields])
    if isinstance(elsewhere.get("tls"), Mapping):
        elsewhere["tls"] = {name: value for name, value in elsewhere["tls"].items() if name not in ("cert", "key")}
    if _place_of(endpoint) is not None:
        home = _place_of(endpoint)
    else:
        origins = {_place_of(arm) for arm in arms.values()}
        home = origins.pop() if len(origins) == 1 else None
        if home is None and elsewhere != endpoint and len(origins) > 1:
            problem = "it holds credentials or a metrics_url but no url, and the arms are on several hosts or ports"
            raise ProfileError(place(("endpoint",))[0], "endpoint", problem, "give them to the arms they belong to")
    return lambda arm: endpoint if _place_of(arm) in (None, home) else elsewhere


def _place_of(section: Mapping[str, Any]) -> object:
    """The origin it names, or that it is launched; None where it names no place."""
    if section.get("launch") is not None:
        return "launched"
    return None if section.get("url") is None else _origin(section["url"]) or "nowhere"


def _arm(name: str, own: dict[str, Any], endpoint: dict[str, Any], path: Path_, place: Place) -> ResolvedArm:
    def place_here(below: Path_) -> tuple[str, str | None]:
        inherited = below[:1] and below[0] not in own and below[0] in endpoint
        return place(("endpoint", *below) if inherited else (*path, *below))

    arm = validate(Arm, merge(displace(endpoint, own), own), place_here)
    launch: ResolvedLaunch | None = None
    if arm.launch is not None:
        try:
            launch = resolve_launch(arm.launch, arm.speculation)
        except Refusal as refusal:
            raise ProfileError(
                *place_here(("speculation", refusal.key or "")), refusal.problem, refusal.remedy
            ) from None
    hook = arm.before_point and arm.before_point.command
    for key, words in (("launch", launch.command if launch else ()), ("before_point", hook or ())):
        try:
            check_command(words)
        except Refusal as refusal:
            raise ProfileError(*place_here((key,)), refusal.problem, refusal.remedy) from None
    url = launch.shown_url if launch else arm.url
    if url is None:
        where, _ = place(())
        remedy = "give the URL" if where == COMMAND_LINE else "add endpoint.url, or a url (or launch) to every arm"
        raise ProfileError(where, ".".join((*path, "url")), "there is no url", remedy)
    return ResolvedArm(
        name=name,
        slug=slug(name),
        url=url,
        model=arm.model,
        api=arm.api,
        auth=arm.auth and arm.auth.model_copy(update={"file": arm.auth.file and str(user_path(arm.auth.file))}),
        headers=arm.headers,
        extra_body=arm.extra_body,
        prices=arm.prices,
        metrics_url=arm.metrics_url or (),
        metrics=arm.metrics.model_dump(exclude_none=True),
        tls=arm.tls.model_copy(update={name: path and str(user_path(path)) for name, path in _tls_files(arm.tls)}),
        proxy=arm.proxy,
        stream=arm.stream,
        max_tokens_field=arm.max_tokens_field,
        chunk_tokens=arm.chunk_tokens,
        tokenizer=arm.tokenizer and str(user_path(arm.tokenizer)),
        speculation=arm.speculation,
        launch=launch,
        before_point=arm.before_point,
    )


def _tls_files(tls: Tls) -> list[tuple[str, str | None]]:
    return [("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)]


def without_secrets(value: Any) -> Any:
    """`value` without the fields that are named like secrets."""
    if isinstance(value, Mapping):
        return {name: without_secrets(below) for name, below in value.items() if not looks_secret(name)}
    return [without_secrets(below) for below in value] if isinstance(value, list) else value


def _origin(url: Any) -> object:
    try:
        return origin(url)
    except (ValueError, TypeError, AttributeError):
        return None


def _default_name(path: Path | None, first: ResolvedArm) -> str:
    host = urlsplit(first.url).hostname or ""
    return next((name for name in (slug(path.stem) if path else "", slug(host)) if name), "sweep")[:100]


def _workload(asked: Workload, place: Place) -> ResolvedWorkload:
    sampling = asked.sampling.model_dump(exclude_none=True)
    if asked.prompts is not None:
        source = user_path(asked.prompts)
        if source.suffix in (".yaml", ".yml"):
            raise ProfileError(
                *place(("workload", "prompts")), "this is a YAML file", "name a workload file by the key use"
            )
        return ResolvedWorkload(
            source.stem, source, asked.max_tokens or OWN_MAX_TOKENS, asked.salt, asked.system, sampling
        )
    name = asked.use or ""
    if _is_file_name(name):
        source = user_path(name)
        if source.suffix not in (".yaml", ".yml"):
            raise ProfileError(
                *place(("workload", "use")), "this is not a YAML file", "name prompts by the key prompts"
            )
    elif name in ready_names():
        source = ready_path(name)
    else:
        problem = "there is no ready-made workload of this name"
        raise ProfileError(*place(("workload", "use")), problem, did_you_mean(name, ready_names()))
    ready = load_workload(source)
    return ResolvedWorkload(
        source.stem, source, asked.max_tokens or ready.max_tokens, asked.salt, asked.system or ready.system, sampling
    )


def _load(asked: Load) -> ResolvedLoad:
    seconds, requests = asked.seconds, asked.requests
    if seconds is None and requests is None:
        # Exact counts requests: a window of seconds would send as many as fit into it.
        seconds, requests = None if asked.exact else DEFAULT_SECONDS, DEFAULT_REQUESTS
    return ResolvedLoad(
        asked.concurrency,
        seconds,
        requests,
        asked.exact,
        asked.warmup,
        asked.trials,
        asked.workers,
        asked.chunks,
        asked.anchor,
    )
