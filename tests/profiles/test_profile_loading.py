import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.engines import ENGINES
from profiles.errors import ProfileError
from profiles.loading import Sweep, dump_stored, load_sweep
from profiles.models import Auth, Prices, Speculation
from profiles.names import slug
from profiles.starters import STARTERS, about, starter
from profiles.workloads import load_workload, ready_names

URL = "endpoint: {url: 'http://h:1/v1'}\n"
LINES = '{"prompt": "a"}\n{"prompt": "b"}\n'


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def load(text: str | bytes, overrides: dict[str, Any] | None = None, env: dict[str, str] | None = None) -> Sweep:
        path = tmp_path / "sweep.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_sweep(path, overrides or {}, env or {})

    return load


def test_the_whole_of_a_sweep_file(load: Any, tmp_path: Path) -> None:
    sweep = load(
        """
name: gpt-oss speculation
endpoint:
  url: https://api.example.com/v1/
  model: org/model
  auth: {env: EXAMPLE_KEY}
  headers: {X-Title: mine}
  extra_body: {reasoning: {effort: low}, stop: [a, b]}
  prices: {input: 0.15, output: 0.60}
arms:
  off: {}
  on:
    model: org/fast
    extra_body: {reasoning: {effort: null, on: yes}, stop: [c]}
    prices: {output: 1}
    speculation: {method: eagle3, drafter: org/d, draft_tokens: 3}
workload: {prompts: p.jsonl, max_tokens: 64, salt: false, system: Be brief., sampling: {temperature: 0, seed: 7}}
load: {concurrency: 1..8, seconds: 60, exact: false, warmup: 4, trials: 2}
limits: {minutes: 60, tokens: 2000000, usd: 5.00, error_rate: 0.05}
seed: 3
"""
    )
    off, on = sweep.arms
    assert (sweep.name, sweep.slug, sweep.seed) == ("gpt-oss speculation", "gpt-oss-speculation", 3)
    assert (off.name, off.slug, off.url, off.model, off.api) == (
        "off",
        "off",
        "https://api.example.com/v1",
        "org/model",
        "chat",
    )
    assert off.auth == on.auth == Auth(env="EXAMPLE_KEY")
    assert off.prices == Prices(input=0.15, output=0.6, per=1_000_000)
    assert off.speculation is None
    assert on.model == "org/fast"
    assert on.headers == {"X-Title": "mine"}
    assert on.extra_body == {"reasoning": {"on": "yes"}, "stop": ["c"]}
    assert on.prices == Prices(input=0.15, output=1)
    assert on.speculation == Speculation(method="eagle3", drafter="org/d", draft_tokens=3)
    assert sweep.workload.prompts_source == tmp_path / "p.jsonl"
    assert (sweep.workload.name, sweep.workload.max_tokens, sweep.workload.salt) == ("p", 64, False)
    assert sweep.workload.sampling == {"temperature": 0, "seed": 7}
    assert sweep.load.levels == (1, 2, 4, 8)
    assert (sweep.load.seconds, sweep.load.requests, sweep.load.warmup, sweep.load.trials) == (60, None, 4, 2)
    assert (sweep.limits.minutes, sweep.limits.tokens, sweep.limits.usd, sweep.limits.error_rate) == (
        60,
        2_000_000,
        5,
        0.05,
    )


def test_defaults() -> None:
    sweep = load_sweep(None, {"endpoint": {"url": "http://127.0.0.1:8000"}}, {})
    assert [arm.name for arm in sweep.arms] == ["default"]
    assert sweep.arms[0].url == "http://127.0.0.1:8000/v1"
    assert sweep.name == "127.0.0.1"
    assert sweep.workload.name == "chat-short"
    assert (sweep.load.seconds, sweep.load.requests, sweep.load.warmup, sweep.load.trials) == (30, 40, "auto", 1)
    assert sweep.load.levels == (1, 2, 4, 8, 16, 32, 64)
    assert sweep.limits.error_rate == 0.01
    assert (sweep.limits.first_byte_seconds, sweep.limits.idle_seconds, sweep.limits.connect_seconds) == (300, 120, 30)


def test_null_sections_count_as_left_out(load: Any) -> None:
    sweep = load(URL + "arms:\n  off:\nworkload:\nload:\nlimits:\nname:\nseed:\n")
    assert [arm.name for arm in sweep.arms] == ["off"]
    assert sweep.name == "sweep"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("", None, "empty"),
        ("# nothing\n", None, "empty"),
        ("- a\n", None, "not a map"),
        ("hello\n", None, "not a map"),
        (b"\xff\xfe", None, "UTF-8"),
        (b"a: 1\n\n# " + b"x" * (1 << 20), None, "larger"),
        ("endpoint: {ulr: 'http://h'}\n", "endpoint.ulr", 'did you mean "url"'),
        (URL + "limits: {minuts: 3}\n", "limits.minuts", 'did you mean "minutes"'),
        (URL + "arms: {on: {speculation: {metod: x}}}\n", "arms.on.speculation.metod", 'did you mean "method"'),
        (URL + "load: {rules: endpoints-v1}\n", "load.rules", "no such key"),
        (URL + "load: {requests: '4'}\n", "load.requests", "whole number"),
        (URL + "load: {requests: 1}\n", "load.requests", "at least 2"),
        (URL + "load: {requests: true}\n", "load.requests", "whole number"),
        (URL + "load: {seconds: 0}\n", "load.seconds", "above 0"),
        (URL + "load: {seconds: '30'}\n", "load.seconds", "number"),
        (URL + "load: {warmup: -1}\n", "load.warmup", "auto"),
        (URL + "load: {trials: 0}\n", "load.trials", "at least 1"),
        (URL + "load: {exact: yes}\n", "load.exact", "true or false"),
        (URL + "load: {exact: true, seconds: 5}\n", "load", "give requests"),
        (URL + "load: {concurrency: [0]}\n", "load.concurrency", "1 to 65536"),
        (URL + "limits: {error_rate: 1.5}\n", "limits.error_rate", "at most 1"),
        (URL + "limits: [1]\n", "limits", "map"),
        (URL + "arms: [off, on]\n", "arms", "map"),
        (URL + "arms: {off: 5}\n", "arms.off", "map"),
        (URL + "arms: {on: {launch: [vllm, serve]}}\n", "arms.on.launch.command", "nothing tells the server its port"),
        (URL + "arms: {A b: {}, a-b: {}}\n", "arms", '"A b" and "a-b"'),
        (URL + "arms: {'../..': {}}\n", "arms.../..", "folder name"),
        (URL + "name: '日本'\n", "name", "folder name"),
        (URL + "seed: -1\n", "seed", "at least 0"),
        (URL + "workload: {use: chat-shrot}\n", "workload.use", 'did you mean "chat-short"'),
        (URL + "workload: {use: chat-short, prompts: p.jsonl}\n", "workload", "exclude"),
        (URL + "workload: {max_tokens: 0}\n", "workload.max_tokens", "at least 1"),
        (URL + "workload: {sampling: {temperature: hot}}\n", "workload.sampling.temperature", "number"),
        (URL + "workload: {prompts: w.yaml}\n", "workload.prompts", "use"),
        (URL + "workload: {use: ./p.jsonl}\n", "workload.use", "prompts"),
        ("arms: {on: {model: m}}\n", "arms.on.url", "no url"),
        ("name: x\n", "endpoint.url", "no url"),
        ("endpoint: {url: 'http://u:pa55@h'}\n", "endpoint.url", "use auth"),
        ("endpoint: {url: 'http://h', auth: pa55}\n", "endpoint.auth", "map"),
        ("endpoint: {url: 'http://h', auth: {}}\n", "endpoint.auth", "{env: NAME}"),
        ("endpoint: {url: 'http://h', auth: {env: A, file: f}}\n", "endpoint.auth", "exclude"),
        ("endpoint: {url: 'http://h', auth: {env: sk-pa55}}\n", "endpoint.auth.env", "environment variable"),
        ("endpoint: {url: 'http://h', auth: {env: A}, headers: {authorization: pa55}}\n", "endpoint", "keep one"),
        ("endpoint: {url: 'http://h', headers: {A: 'pa55', a: x}}\n", "endpoint.headers", "twice"),
        ('endpoint: {url: "http://h", headers: {A: "pa55\\r\\nB: x"}}\n', "endpoint.headers", "header A"),
        ("endpoint: {url: 'http://h', headers: {Content-Length: '5'}}\n", "endpoint.headers", "belongs to the client"),
        ("endpoint: {url: 'http://h', headers: {a: 5}}\n", "endpoint.headers.a", "text"),
        ("endpoint: {url: 'http://h', extra_body: {stream: false}}\n", "endpoint.extra_body", "stream"),
        ("endpoint: {url: 'http://h', api: chatt}\n", "endpoint.api", 'did you mean "chat"'),
        ("endpoint: {url: 'http://h', prices: {input: 1}}\n", "endpoint.prices.output", "missing"),
        ("endpoint: {url: 'http://h', prices: {input: -1, output: 1}}\n", "endpoint.prices.input", "at least 0"),
        ("endpoint: {url: 'http://h', prices: {input: 1, output: 1, per: 0}}\n", "endpoint.prices.per", "above 0"),
        ("endpoint: {url: 'http://h', metrics_url: 'http://u:pa55@h'}\n", "endpoint.metrics_url", "use auth"),
        (
            "endpoint: {url: 'http://h', headers: {Authorization: <redacted>}}\n",
            "endpoint.headers.Authorization",
            "redacted",
        ),
        (URL + "name: ${UNSET_ONE}\n", "name", "UNSET_ONE"),
        (URL + "name: ${sk-pa55}\n", "name", "${NAME}"),
    ],
)
def test_bad_input_is_one_sentence_with_file_key_and_remedy(
    load: Any, tmp_path: Path, text: str, key: str, words: str
) -> None:
    with pytest.raises(ProfileError) as error:
        load(text)
    fault = error.value
    assert (fault.where, fault.key) == (str(tmp_path / "sweep.yaml"), key)
    assert words in str(fault)
    assert fault.remedy in str(fault)
    assert "pa55" not in str(fault)
    assert str(fault).isprintable()


@pytest.mark.parametrize("name", ["missing.yaml", ".", "a\0b"])
def test_a_path_that_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProfileError):
        load_sweep(tmp_path / name, {}, {})


@pytest.mark.parametrize(
    ("overrides", "where", "key"),
    [
        ({"load": {"concurrency": "x"}}, "--concurrency", None),
        ({"limits": {"usd": 0}}, "--max-usd", None),
        ({"arms": {"on": {"url": "nope"}}}, "--arm on", None),
        ({"endpoint": {"headers": {"a b": "x"}}}, "--header", None),
        ({"endpoint": {"url": "x"}}, "URL", None),
        ({"endpoint": {"auth": {"env": "sk-1"}}}, "--key-env", None),
        ({"zap": 1}, "command line", "zap"),
        ({"load": {"seconds": float("nan")}}, "command line", "load.seconds"),
    ],
)
def test_a_fault_in_an_option_names_the_option(
    load: Any, overrides: dict[str, Any], where: str, key: str | None
) -> None:
    with pytest.raises(ProfileError) as error:
        load(URL, overrides)
    assert (error.value.where, error.value.key) == (where, key)


def test_overrides_are_laid_over_the_file_before_it_is_checked(load: Any) -> None:
    sweep = load(
        "endpoint: {model: m, auth: {env: A}}\nload: {seconds: 5}\nworkload: {use: code}\n",
        {
            "endpoint": {"url": "http://h", "auth": {"env": "B"}},
            "arms": {"on": {"model": "n"}},
            "load": {"seconds": None, "requests": 9},
            "workload": {"max_tokens": 3},
        },
    )
    assert [(arm.name, arm.url, arm.model, arm.auth) for arm in sweep.arms] == [
        ("on", "http://h/v1", "n", Auth(env="B"))
    ]
    assert (sweep.load.seconds, sweep.load.requests) == (None, 9)
    assert (sweep.workload.name, sweep.workload.max_tokens) == ("code", 3)


SECRETIVE = """
endpoint:
  url: https://api.example.com/v1
  auth: {env: A}
  headers: {X-Api-Key: pa55, X-Title: mine}
  extra_body: {top: 1, provider: {api_key: pa55, name: p}}
  metrics_url: https://api.example.com/metrics
"""


@pytest.mark.parametrize(
    "url", ["http://api.example.com/v1", "https://api.example.com:8443/v1", "https://other.example.com"]
)
def test_credentials_stay_within_their_origin(load: Any, url: str) -> None:
    (arm,) = load(f"{SECRETIVE}arms: {{on: {{url: '{url}'}}}}\n").arms
    assert arm.auth is None
    assert arm.headers == {"X-Title": "mine"}
    assert arm.extra_body == {"top": 1, "provider": {"name": "p"}}
    assert arm.metrics_url == ()


@pytest.mark.parametrize("url", ["https://API.example.com:443/other", "https://api.example.com/v1"])
def test_the_same_origin_inherits_credentials(load: Any, url: str) -> None:
    (arm,) = load(f"{SECRETIVE}arms: {{on: {{url: '{url}'}}}}\n").arms
    assert arm.auth == Auth(env="A")
    assert arm.headers == {"X-Api-Key": "pa55", "X-Title": "mine"}
    assert arm.metrics_url == ("https://api.example.com/metrics",)


def test_an_arm_elsewhere_may_bring_its_own_key(load: Any) -> None:
    (arm,) = load(f"{SECRETIVE}arms: {{on: {{url: 'http://h', auth: {{env: B}}, headers: {{x-api-key: own}}}}}}\n").arms
    assert arm.auth == Auth(env="B")
    assert arm.headers == {"X-Title": "mine", "x-api-key": "own"}


def test_an_endpoint_without_url_is_where_its_arms_are() -> None:
    auth = {"endpoint": {"auth": {"env": "A"}}}
    same = load_sweep(None, {**auth, "arms": {"a": {"url": "http://h/a"}, "b": {"url": "http://h/b"}}}, {})
    assert [arm.auth for arm in same.arms] == [Auth(env="A")] * 2
    with pytest.raises(ProfileError, match="several hosts"):
        load_sweep(None, {**auth, "arms": {"a": {"url": "http://h"}, "b": {"url": "http://g"}}}, {})


def test_variables_are_expanded_in_values_only(load: Any) -> None:
    text = "endpoint: {url: 'http://${HOST}/v1', extra_body: {'${HOST}': ['${HOST}', '$$5 $HOST $${HOST}', 5]}}\n"
    sweep = load(text, env={"HOST": "h"})
    assert sweep.arms[0].url == "http://h/v1"
    assert sweep.arms[0].extra_body == {"${HOST}": ["h", "$5 $HOST ${HOST}", 5]}
    assert load(URL + "name: ${A}", env={"A": "${B}"}, overrides={"name": "x"}).name == "x"
    assert load(URL + "workload: {system: '${A}'}", env={"A": "${B} $$"}).workload.system == "${B} $$"


def test_the_stored_copy_loads_as_the_same_sweep(load: Any, tmp_path: Path) -> None:
    env = {"HOST": "h", "KEY": "pa55", "DIR": str(tmp_path)}
    sweep = load(
        """
name: on ${HOST}
endpoint:
  {url: 'http://${HOST}/v1', auth: {file: key}, headers: {X-A-Key: 'Bearer ${KEY}'}, extra_body: {a: '$$x', b: null}}
arms: {on: {auth: {file: '${DIR}/other'}}, off: , 'no': {extra_body: {n: 1e-3}}}
workload: {prompts: sub/p.jsonl}
load: {concurrency: {from: 1, to: 9, points: 3}}
""",
        {"limits": {"usd": 2}, "seed": 5},
        env,
    )
    text = dump_stored(sweep)
    assert sweep.name == "on h"
    assert "on ${HOST}" in text
    assert "http://${HOST}/v1" in text
    assert "pa55" not in text
    assert sweep.workload.prompts_source == tmp_path / "sub/p.jsonl"
    assert [arm.auth for arm in sweep.arms][:2] == [
        Auth(file=str(tmp_path / "other")),
        Auth(file=str(tmp_path / "key")),
    ]
    (tmp_path / "run").mkdir()
    stored = tmp_path / "run" / "sweep.yaml"
    stored.write_text(text, encoding="utf-8")
    again = load_sweep(stored, {}, env)
    assert again == sweep
    assert dump_stored(again) == text


def test_a_redacted_copy_must_be_given_its_secret_again(load: Any, tmp_path: Path) -> None:
    sweep = load("endpoint: {url: 'http://h', headers: {X-Api-Key: pa55}, extra_body: {token: pa55}}\n")
    assert "pa55" not in json.dumps(sweep.stored)
    stored = tmp_path / "stored.yaml"
    stored.write_text(dump_stored(sweep))
    with pytest.raises(ProfileError, match="redacted"):
        load_sweep(stored, {}, {})
    given = {"endpoint": {"headers": {"X-Api-Key": "pa55"}, "extra_body": {"token": "pa55"}}}
    assert load_sweep(stored, given, {}).arms == sweep.arms


def test_paths_of_options_are_relative_to_the_working_directory(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "else$where"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    sweep = load(
        URL + "workload: {use: code}", {"workload": {"prompts": "p.jsonl"}, "endpoint": {"auth": {"file": "k"}}}
    )
    assert sweep.workload.prompts_source == elsewhere / "p.jsonl"
    assert sweep.arms[0].auth == Auth(file=str(elsewhere / "k"))


def test_a_workload_file_of_ones_own(load: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("description: d\nmax_tokens: 9\nsystem: s\nprompts: p.jsonl\n")
    (tmp_path / "p.jsonl").write_text(LINES)
    workload = load(URL + "workload: {use: mine.yaml}").workload
    assert (workload.name, workload.max_tokens, workload.system) == ("mine", 9, "s")
    with pytest.raises(ProfileError, match=r"gone\.yaml"):
        load(URL + "workload: {use: ./gone.yaml}")


@pytest.mark.parametrize("kind", sorted(STARTERS.keys() - {"workload"}))
def test_starters_load(load: Any, kind: str) -> None:
    names = ("EXAMPLE_API_KEY", "AZURE_OPENAI_API_KEY", "OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")
    sweep = load(starter(kind), env=dict.fromkeys((*names, "GATEWAY_KEY"), "k"))
    assert sweep.workload.name == "chat-short"
    assert len(sweep.arms) == (2 if kind in {"sweep", "launch", *ENGINES} else 1)


def test_the_workload_starter_loads(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(starter("workload"))
    assert load_workload(tmp_path / "w.yaml").max_tokens > 0


def test_an_unknown_starter_is_refused() -> None:
    with pytest.raises(ProfileError, match='no starter "sweeep"') as caught:
        starter("sweeep")
    assert all(kind in str(caught.value) for kind in STARTERS)
    clouds, engines = {"azure", "organisation", "gateway", "tls"}, {"launch", "vllm", "sglang", "trtllm", "llamacpp"}
    assert set(STARTERS) == {"sweep", "endpoint", "workload"} | clouds | engines
    assert all(about(kind)[-1].isalpha() for kind in STARTERS)
    assert "chat-short" in ready_names()


@given(st.text(max_size=30))
def test_a_slug_is_a_safe_folder_name(name: str) -> None:
    made = slug(name)
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert not made.startswith((".", "-"))
    assert slug(made) == made
