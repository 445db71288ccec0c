"""What a sweep file may say: strict models of its sections, each refusing unknown keys, wrong types and odd values."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from profiles.engines import ENGINES
from profiles.errors import Refusal, did_you_mean
from profiles.hosts import origin
from profiles.levels import AUTO, parse_levels
from profiles.names import check_name
from profiles.secrets import looks_secret

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FRAMING = {
    "connection",
    "content-length",
    "transfer-encoding",
    "accept-encoding",
    "expect",
    "upgrade",
    "te",
    "trailer",
}
_OURS = {
    "messages": "prompts come from the workload",
    "prompt": "prompts come from the workload",
    "stream": "say whether replies are streamed by the key stream beside it",
    "model": "name the model by the key model beside it",
}
_ROUTES = ("/chat/completions", "/completions")


def clean_url(url: str) -> str:
    """An endpoint's base URL as the client uses it: no trailing slash, no pasted route, `/v1` when it has no path.

    `http://h:1` becomes `http://h:1/v1`, which is where OpenAI-compatible servers listen; `https://h/v1/chat/completions`
    becomes `https://h/v1`. Raises Refusal unless it is http(s) with a host and without anything secret.
    """
    parts = urlsplit(check_url(url))
    path = parts.path.rstrip("/")
    route = next((route for route in _ROUTES if path.endswith(route)), "")
    path = path.removesuffix(route).rstrip("/") if route else path or "/v1"
    return urlunsplit(parts._replace(path=path))


def check_url(url: str) -> str:
    """`url` when it is http(s) with a host, and carries no user, password, key or fragment. Raises Refusal."""
    if re.search(r"[\s\\\x00-\x1f\x7f]", url):
        raise Refusal("the URL holds a blank, a backslash or a control character", "remove it")
    try:
        origin(url)
        parts = urlsplit(url)
    except ValueError:
        raise Refusal("this is not an http(s) URL with a host", "write it like https://api.example.com/v1") from None
    if "@" in parts.netloc:
        raise Refusal("the URL holds a user or password", "use auth: {env: NAME} or {file: PATH} instead")
    names = [unquote(item.partition("=")[0]) for item in re.split("[&;]", parts.query)]
    if any(looks_secret(name) for name in names):
        raise Refusal("the URL's query holds a key", "use auth, or a header with ${NAME}, instead")
    if parts.fragment:
        raise Refusal("the URL has a fragment (#)", "remove it")
    return url


def _env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise Refusal("this is not the name of an environment variable", "name the variable that holds the key")
    return name


def _not_blank(text: str) -> str:
    if not text.strip():
        raise Refusal("the text is empty", "fill it in, or leave the key out")
    return text


def _headers(headers: dict[str, str]) -> dict[str, str]:
    seen: set[str] = set()
    for name, value in headers.items():
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            raise Refusal("a header's name has a character that HTTP does not allow", "correct the name")
        if lower in seen:
            raise Refusal(f"the header {name} is given twice", "keep one of them")
        if lower in _FRAMING:
            raise Refusal(f"the header {name} belongs to the client", "leave it out")
        if any(ord(c) < 32 or 127 <= ord(c) < 160 or ord(c) > 255 for c in value) or value != value.strip():
            raise Refusal(
                f"the value of the header {name} cannot go into a header", "write it on one line in plain text"
            )
        seen.add(lower)
    return headers


def _extra_body(body: dict[str, Any]) -> dict[str, Any]:
    for name, reason in _OURS.items():
        if name in body:
            raise Refusal(f'"{name}" cannot be set here', reason)
    return body


def _warmup(value: object) -> object:
    if value != "auto" and (type(value) is not int or not 0 <= value <= 10_000_000):
        raise Refusal("this should be auto or a whole number of 0 or more", "write auto or a number of requests")
    return value


def _workers(value: object) -> object:
    if value != "auto" and (type(value) is not int or not 1 <= value <= 256):
        raise Refusal("this should be auto or a whole number from 1 to 256", "write auto or a number of processes")
    return value


def _as_tuple(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _urls(value: object) -> object:
    urls = _as_tuple(value)
    return tuple(check_url(url) if isinstance(url, str) else url for url in urls) if isinstance(urls, tuple) else urls


def _words(value: object) -> object:
    """Words of a command; numbers among them are taken as they are written."""
    words = value if isinstance(value, list | tuple) else [value]
    return tuple(str(word) if type(word) in (int, float) else word for word in words)


def _env_values(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {name: str(text) if type(text) in (int, float) else text for name, text in value.items()}


def _env(values: dict[str, str]) -> dict[str, str]:
    for name, value in values.items():
        _env_name(name)
        if "\0" in value:
            raise Refusal(f"the value of {name} holds a null character", "remove it")
    return values


def _launch(value: object) -> object:
    """A list is a command."""
    return {"command": value} if isinstance(value, list) else value


def _launch_url(url: str) -> str:
    clean_url(url.replace("{port}", "8000"))
    return url


def _engine(name: str) -> str:
    if name not in ENGINES:
        raise Refusal("there is no profile of this engine", did_you_mean(name, ENGINES))
    return name


def _route(route: str) -> str:
    if not re.fullmatch(r"/[!-~]*", route):
        raise Refusal("this is not a route", "write it like /reset_prefix_cache")
    check_url(f"http://host{route}")
    return route


Text = Annotated[str, AfterValidator(_not_blank)]
Name = Annotated[str, AfterValidator(check_name)]
EndpointUrl = Annotated[str, AfterValidator(clean_url)]
Levels = Annotated[tuple[int, ...], BeforeValidator(parse_levels)]
Price = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, le=31_536_000)]  # seconds or minutes; a year is a slip of the pen
Count = Annotated[int, Field(ge=1, le=10**15)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class Strict(BaseModel):
    """A section: its keys and their types, nothing else, never changed. A key that is null counts as left out."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for key in data:
            if key not in cls.model_fields:
                raise Refusal("there is no such key", did_you_mean(str(key), cls.model_fields), str(key))
        return {key: value for key, value in data.items() if value is not None}


def _exactly_one(model: Strict, first: str, second: str, remedy: str) -> None:
    given = sum(getattr(model, name) is not None for name in (first, second))
    if given != 1:
        problem = f"{first} and {second} exclude each other" if given else f"neither {first} nor {second} is given"
        raise Refusal(problem, remedy)


class Auth(Strict):
    """Where the key is: in an environment variable or in a file. Sent as `Authorization: Bearer`."""

    env: Annotated[str, AfterValidator(_env_name)] | None = None
    file: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> Auth:
        _exactly_one(self, "env", "file", "write {env: NAME} or {file: PATH}")
        return self


class Prices(Strict):
    """What `per` tokens cost, in US dollars."""

    input: Price
    output: Price
    per: Annotated[float, Field(gt=0)] = 1_000_000


class Speculation(Strict):
    """What an arm declares about its speculative decoding. Only an engine that we start is told of it, by flags."""

    method: Text
    drafter: Text | None = None
    draft_tokens: Annotated[int, Field(ge=1, le=10_000)] | None = None
    synthetic: bool = False  # the server accepts by a rule, not by its model


class MetricNames(Strict):
    """Which series of a page of metrics holds what, for a server whose names are not known here.

    Counters: `drafts` (how often a draft was verified), tokens drafted, accepted, generated, `accepted_per_position`
    (with a label `position`), prefix-cache queries and hits in tokens. Gauges: requests running and waiting, `kv_use`
    (0 to 1), and a server's own mean of accepted ÷ drafted and of tokens a step.
    """

    drafts: Text | None = None
    draft_tokens: Text | None = None
    accepted_tokens: Text | None = None
    accepted_per_position: Text | None = None
    generated_tokens: Text | None = None
    prefix_queries: Text | None = None
    prefix_hits: Text | None = None
    prefix_misses: Text | None = None
    running: Text | None = None
    waiting: Text | None = None
    kv_use: Text | None = None
    acceptance_gauge: Text | None = None
    tokens_per_step_gauge: Text | None = None


class Tls(Strict):
    """Whom to trust: `verify: false` trusts anyone (and is shown in the report); `ca`, `cert`, `key`: PEM files.

    `ca` replaces the system's authorities; `cert` and `key` are the client's own (the key may be in the cert file).
    """

    verify: bool = True
    ca: Text | None = None
    cert: Text | None = None
    key: Text | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Tls:
        if self.key is not None and self.cert is None:
            raise Refusal("a key is given without its certificate", "add cert: FILE")
        if self.ca is not None and not self.verify:
            raise Refusal("ca is given and verify is false", "keep one of them")
        return self


class Launch(Strict):
    """A server that we start: a `command`, or an `engine` with its `model`. `{port}` in either is a free port we pick.

    `program` stands in place of the engine's own first words, `args` are put behind its command, `options` into the
    options file of an engine that has one. `url`: where it is found, when not at http://127.0.0.1:{port}/v1.
    """

    command: Annotated[tuple[Text, ...], BeforeValidator(_words), Field(min_length=1)] | None = None
    engine: Annotated[str, AfterValidator(_engine)] | None = None
    model: Text | None = None
    program: Annotated[tuple[Text, ...], BeforeValidator(_words), Field(min_length=1)] | None = None
    args: Annotated[tuple[Text, ...], BeforeValidator(_words)] = ()
    options: dict[str, Any] = Field(default_factory=dict)
    env: Annotated[dict[str, str], BeforeValidator(_env_values), AfterValidator(_env)] = Field(default_factory=dict)
    cwd: Text | None = None
    url: Annotated[str, AfterValidator(_launch_url)] | None = None
    ready_seconds: Positive = 600.0
    stop_seconds: Annotated[float, Field(ge=0, le=600)] = 10.0

    @model_validator(mode="after")
    def _one(self) -> Launch:
        _exactly_one(self, "command", "engine", "write the command as a list of words, or engine and model")
        for name in ("model", "program", "args", "options"):
            if self.command is not None and getattr(self, name):
                raise Refusal("it belongs to an engine, and a command is given", "put it into the command", name)
        if self.engine is not None and self.model is None:
            raise Refusal(f"{self.engine} is not told what to serve", "add model: NAME or PATH", "model")
        if self.options and ENGINES[str(self.engine)].options is None:
            raise Refusal(f"{self.engine} takes no options file", "use args", "options")
        placed = (*(self.command or ()), *self.args, *self.env.values(), "{port}" if self.engine else "")
        if not any("{port}" in word for word in placed) and (self.url is None or "{port}" in self.url):
            remedy = "write {port} where the command takes its port, or give url: where the server is found"
            raise Refusal("nothing tells the server its port", remedy, "command")
        return self


class Hook(Strict):
    """What is done before each point: POST to a route beside the API's /v1, or a command. It has `seconds` to end."""

    post: Annotated[str, AfterValidator(_route)] | None = None
    command: Annotated[tuple[Text, ...], BeforeValidator(_words), Field(min_length=1)] | None = None
    seconds: Positive = 60.0

    @model_validator(mode="after")
    def _one(self) -> Hook:
        _exactly_one(self, "post", "command", "write {post: /reset_prefix_cache} or {command: [...]}")
        return self


class Endpoint(Strict):
    """One endpoint. `url` may be missing where every arm names its own; `launch` starts a server in its place.

    `stream: false` is for an endpoint that cannot stream; `proxy: env` goes through HTTP(S)_PROXY, and never unasked.
    `max_tokens_field` is the name tried first for the length; where it is refused, the other one is taken.
    `chunk_tokens` asks the server how many tokens each chunk holds, by running usage or by token ids (vLLM, SGLang);
    `tokenizer`, a tokenizer.json, counts what the server does not tell.
    """

    url: EndpointUrl | None = None
    launch: Annotated[Launch, BeforeValidator(_launch)] | None = None
    before_point: Hook | None = None
    model: Text | None = None
    api: Literal["chat", "completions"] = "chat"
    auth: Auth | None = None
    headers: Annotated[dict[str, str], AfterValidator(_headers)] = Field(default_factory=dict)
    extra_body: Annotated[dict[str, Any], AfterValidator(_extra_body)] = Field(default_factory=dict)
    prices: Prices | None = None
    metrics_url: Annotated[tuple[str, ...] | None, BeforeValidator(_urls)] = None  # one a replica
    metrics: MetricNames = Field(default_factory=MetricNames)
    tls: Tls = Field(default_factory=Tls)
    proxy: Literal["none", "env"] = "none"
    stream: bool = True
    max_tokens_field: Literal["auto", "max_tokens", "max_completion_tokens"] = "auto"
    chunk_tokens: Literal["none", "usage", "ids"] = "none"
    tokenizer: Text | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Endpoint:
        if self.url is not None and self.launch is not None:
            raise Refusal("url and launch exclude each other", "keep one of them", "launch")
        return self

    @model_validator(mode="after")
    def _one_authorization(self) -> Endpoint:
        if self.auth is not None and any(name.lower() == "authorization" for name in self.headers):
            raise Refusal("auth and an Authorization header are both given", "keep one of them")
        return self


class Arm(Endpoint):
    """One configuration under comparison: the endpoint with what differs laid over it."""

    speculation: Speculation | None = None


class Sampling(Strict):
    """Sampling fields of the request; those left out are not sent."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None


class Workload(Strict):
    """What is asked of the endpoint: a ready-made workload (or a workload file of one's own), or a file of prompts."""

    use: Text | None = None
    prompts: Text | None = None
    max_tokens: Tokens | None = None
    salt: bool = True
    system: Text | None = None
    sampling: Sampling = Field(default_factory=Sampling)

    @model_validator(mode="before")
    @classmethod
    def _default_use(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("use") is None and data.get("prompts") is None:
            return {**data, "use": "chat-short"}
        return data

    @model_validator(mode="after")
    def _one(self) -> Workload:
        _exactly_one(self, "use", "prompts", "keep one of them")
        return self


class Load(Strict):
    """How hard: the levels of concurrency, and how much is measured at each."""

    concurrency: Levels = parse_levels(AUTO)
    seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    requests: Annotated[int, Field(ge=2, le=10_000_000)] | None = None
    exact: bool = False
    warmup: Annotated[int | Literal["auto"], BeforeValidator(_warmup)] = "auto"
    trials: Annotated[int, Field(ge=1, le=1_000)] = 1
    workers: Annotated[int | Literal["auto"], BeforeValidator(_workers)] = "auto"
    chunks: Literal["all", "sample", "none"] = "all"  # of which requests the arrivals of single fragments are stored
    anchor: bool | None = None  # measure one point again at the end; left out: when arms run in blocks

    @model_validator(mode="after")
    def _exact_counts(self) -> Load:
        if self.exact and self.requests is None and self.seconds is not None:
            raise Refusal("exact counts requests, and only seconds are given", "give requests")
        return self


class Limits(Strict):
    """Ceilings of the whole sweep (minutes, tokens, usd), of a point (seconds), and of a single request's waits."""

    minutes: Positive | None = None
    tokens: Count | None = None
    usd: Positive | None = None
    error_rate: Annotated[float, Field(ge=0, le=1)] = 0.01
    point_seconds: Positive | None = None
    first_byte_seconds: Positive = 300.0
    idle_seconds: Positive = 120.0
    connect_seconds: Positive = 30.0


class SweepFile(Strict):
    """A whole sweep file. Its arms are checked one by one, after each has inherited the endpoint."""

    name: Name | None = None
    endpoint: Endpoint = Field(default_factory=Endpoint)
    arms: dict[Name, dict[str, Any] | None] = Field(default_factory=dict)
    workload: Workload = Field(default_factory=lambda: Workload(use="chat-short"))
    load: Load = Field(default_factory=Load)
    limits: Limits = Field(default_factory=Limits)
    check_equal: Annotated[int, Field(ge=0, le=10_000)] = 0  # prompts whose greedy answers are compared between arms
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class Compose(Strict):
    """Long prompts built from parts: each of `per_prompt` passages of one category, and a question."""

    passages: Text
    questions: Text
    per_prompt: Annotated[int, Field(ge=1, le=1_000)]
    count: Annotated[int, Field(ge=2, le=100_000)]


class WorkloadFile(Strict):
    """A workload: its prompts (JSONL files beside it or shipped with endsweep) and how they are sent."""

    description: Text
    max_tokens: Tokens
    system: Text | None = None
    prompts: Annotated[tuple[Text, ...], BeforeValidator(_as_tuple)] = ()
    compose: Compose | None = None

    @model_validator(mode="after")
    def _some(self) -> WorkloadFile:
        if not self.prompts and self.compose is None:
            raise Refusal("neither prompts nor compose is given", "give the names of JSONL files as prompts")
        return self
