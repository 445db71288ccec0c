"""Servers to be started: commands of one's own and of engines, inheritance, and no secret in any of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.engines import ENGINES
from profiles.errors import ProfileError
from profiles.loading import ResolvedArm, Sweep, dump_stored, load_sweep
from profiles.starters import starter
from profiles.yamltext import parse


def load(document: dict[str, Any], env: dict[str, str] | None = None) -> Sweep:
    return load_sweep(None, document, env or {})


def arm(document: dict[str, Any], env: dict[str, str] | None = None) -> ResolvedArm:
    return load({"arms": {"a": document}}, env).arms[0]


def words(method: str, engine: str, drafter: str | None = None, **more: Any) -> list[str]:
    speculation = {"method": method, "draft_tokens": 3} | ({"drafter": drafter} if drafter else {})
    launch = arm({"launch": {"engine": engine, "model": "M", **more}, "speculation": speculation}).launch
    assert launch is not None
    return list(launch.command)


def refused(document: dict[str, Any], env: dict[str, str] | None = None) -> ProfileError:
    with pytest.raises(ProfileError) as error:
        load(document, env)
    return error.value


def test_a_command_of_ones_own() -> None:
    found = arm({"launch": ["serve", "--port", "{port}", "-n", 4]})
    assert found.launch is not None
    assert found.launch.command == ("serve", "--port", "{port}", "-n", "4")
    assert found.url == "http://127.0.0.1/v1"
    assert found.launch.at(8123) == "http://127.0.0.1:8123/v1"
    assert (found.launch.ready_seconds, found.launch.stop_seconds) == (600, 10)
    fixed = arm({"launch": {"command": ["serve"], "url": "http://localhost:9000/api/v1"}}).launch
    assert fixed is not None
    assert fixed.at(8123) == "http://localhost:9000/api/v1"
    by_env = arm({"launch": {"command": ["serve"], "env": {"PORT": "{port}", "N": 4}}}).launch
    assert by_env is not None
    assert by_env.env == {"PORT": "{port}", "N": "4"}


# -- engines ----------------------------------------------------------------------------------------------------------

VLLM_OFF = ["vllm", "serve", "M", "--host", "127.0.0.1", "--port", "{port}"]
SGLANG_OFF = ["python3", "-m", "sglang.launch_server", "--model-path", "M", "--host", "127.0.0.1", "--port", "{port}"]
SGLANG_OFF += ["--enable-metrics"]
LLAMA_OFF = ["llama-server", "-m", "M", "--host", "127.0.0.1", "--port", "{port}", "--metrics"]
TRT_OFF = ["trtllm-serve", "M", "--host", "127.0.0.1", "--port", "{port}", "--extra_llm_api_options", "{options}"]
TRT_METRICS = {"enable_iter_perf_stats": True, "return_perf_metrics": True}


@pytest.mark.parametrize(
    ("engine", "off"), [("vllm", VLLM_OFF), ("sglang", SGLANG_OFF), ("llamacpp", LLAMA_OFF), ("trtllm", TRT_OFF)]
)
def test_off_is_the_engines_command_alone(engine: str, off: list[str]) -> None:
    launch = arm({"launch": {"engine": engine, "model": "M", "args": ["--seed", 1]}}).launch
    assert launch is not None
    assert list(launch.command) == [*off, "--seed", "1"]
    assert (launch.options and parse(launch.options, "options")) == (TRT_METRICS if engine == "trtllm" else None)


@pytest.mark.parametrize(
    ("method", "drafter", "config"),
    [
        ("ngram", None, {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}),
        ("draft_model", "D", {"method": "draft_model", "model": "D"}),
        ("eagle", "D", {"method": "eagle", "model": "D"}),
        ("eagle3", "D", {"method": "eagle3", "model": "D"}),
        ("mtp", None, {"method": "mtp"}),
        ("nextn", None, {"method": "mtp"}),
    ],
)
def test_vllm(method: str, drafter: str | None, config: dict[str, Any]) -> None:
    command = words(method, "vllm", drafter)
    assert command[:-2] == VLLM_OFF
    assert command[-2] == "--speculative-config"
    assert json.loads(command[-1]) == config | {"num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("method", "drafter", "flags"),
    [
        ("ngram", None, "--speculative-algorithm NGRAM --speculative-ngram-max-bfs-breadth 1"),
        ("standalone", "D", "--speculative-algorithm STANDALONE --speculative-draft-model-path D STEPS"),
        ("eagle", "D", "--speculative-algorithm EAGLE --speculative-draft-model-path D STEPS"),
        ("eagle3", "D", "--speculative-algorithm EAGLE3 --speculative-draft-model-path D STEPS"),
        ("mtp", None, "--speculative-algorithm NEXTN STEPS"),
    ],
)
def test_sglang_drafts_a_chain(method: str, drafter: str | None, flags: str) -> None:
    wanted = flags.replace("STEPS", "--speculative-num-steps 3 --speculative-eagle-topk 1")
    assert words(method, "sglang", drafter) == [
        *SGLANG_OFF,
        *wanted.split(),
        "--speculative-num-draft-tokens",
        "4",
    ]


@pytest.mark.parametrize(
    ("method", "drafter", "flags"),
    [
        ("ngram", None, "--spec-type ngram-simple --spec-ngram-simple-size-m 3"),
        ("draft", "D", "--spec-type draft-simple -md D --spec-draft-n-max 3"),
        ("eagle3", "D", "--spec-type draft-eagle3 -md D --spec-draft-n-max 3"),
        ("mtp", None, "--spec-type draft-mtp --spec-draft-n-max 3"),
    ],
)
def test_llamacpp(method: str, drafter: str | None, flags: str) -> None:
    assert words(method, "llamacpp", drafter) == [*LLAMA_OFF, *flags.split()]


@pytest.mark.parametrize(
    ("method", "drafter", "config"),
    [
        ("ngram", None, {"decoding_type": "NGram", "max_draft_len": 3}),
        ("draft_model", "D", {"decoding_type": "DraftTarget", "max_draft_len": 3, "speculative_model": "D"}),
        ("eagle3", "D", {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "D"}),
        ("mtp", None, {"decoding_type": "MTP", "num_nextn_predict_layers": 3}),
    ],
)
def test_tensorrt_llm_is_told_by_a_file(method: str, drafter: str | None, config: dict[str, Any]) -> None:
    more = {"options": {"kv_cache_config": {"enable_block_reuse": False}}}
    assert words(method, "trtllm", drafter, **more) == TRT_OFF
    speculation = {"method": method, "draft_tokens": 3, "drafter": drafter}
    launch = arm({"launch": {"engine": "trtllm", "model": "M", **more}, "speculation": speculation}).launch
    assert launch is not None and launch.options is not None
    assert parse(launch.options, "options") == {**TRT_METRICS, "speculative_config": config, **more["options"]}


def test_the_options_file_is_the_users_own_where_he_says_otherwise() -> None:
    options = {"return_perf_metrics": False, "max_batch_size": 8}
    launch = arm({"launch": {"engine": "trtllm", "model": "M", "options": options}}).launch
    assert launch is not None and launch.options is not None
    assert parse(launch.options, "options") == TRT_METRICS | options


def test_a_program_in_place_of_the_engines_own() -> None:
    command = words("mtp", "vllm", program=["python", "-m", "vllm.entrypoints.openai.api_server", "--model"])
    assert command[:5] == ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "M"]


@pytest.mark.parametrize(
    ("speculation", "key", "problem"),
    [
        ({"method": "eagel3", "draft_tokens": 3}, "speculation.method", "no such method"),
        ({"method": "eagle3", "draft_tokens": 3}, "speculation.drafter", "needs a drafter"),
        ({"method": "ngram", "draft_tokens": 3, "drafter": "D"}, "speculation.drafter", "has no drafter"),
        ({"method": "ngram"}, "speculation.draft_tokens", "how many tokens to draft"),
    ],
)
def test_what_an_engine_cannot_be_told(speculation: dict[str, Any], key: str, problem: str) -> None:
    fault = refused({"arms": {"a": {"launch": {"engine": "vllm", "model": "M"}, "speculation": speculation}}})
    assert fault.key == f"arms.a.{key}"
    assert problem in fault.problem


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_each_engine_has_a_starter_for_off_and_on(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(starter(engine))
    off, on = load_sweep(path, {}, {}).arms
    assert off.launch is not None and on.launch is not None
    assert (off.launch.command, off.launch.options) != (on.launch.command, on.launch.options)
    assert off.launch.engine == engine


# -- inheritance ------------------------------------------------------------------------------------------------------


def test_a_url_and_a_launch_replace_each_other() -> None:
    endpoint = {"launch": {"engine": "vllm", "model": "M", "env": {"A": "1"}}}
    arms = {"ours": {}, "theirs": {"url": "http://h:1/v1"}, "own": {"launch": {"command": ["x", "{port}"]}}}
    ours, theirs, own = load({"endpoint": endpoint, "arms": arms}).arms
    assert ours.launch is not None and ours.launch.engine == "vllm"
    assert (theirs.launch, theirs.url) == (None, "http://h:1/v1")
    assert own.launch is not None
    assert (own.launch.command, own.launch.env) == (("x", "{port}"), {"A": "1"})
    (swept,) = load({"endpoint": {"url": "http://h:1/v1"}, "arms": {"a": {"launch": ["x", "{port}"]}}}).arms
    assert swept.launch is not None
    (listed,) = load({"endpoint": {"launch": ["x", "{port}"]}, "arms": {"a": {"launch": {"env": {"B": "2"}}}}}).arms
    assert listed.launch is not None
    assert (listed.launch.command, listed.launch.env) == (("x", "{port}"), {"B": "2"})
    fault = refused({"endpoint": {"url": "http://h:1/v1", "launch": ["x", "{port}"]}})
    assert "exclude each other" in fault.problem


def test_what_is_launched_does_not_get_the_clouds_key() -> None:
    endpoint = {"url": "https://api.example.com/v1", "auth": {"env": "KEY"}, "headers": {"api-key": "${KEY}"}}
    cloud, ours = load({"endpoint": endpoint, "arms": {"a": {}, "b": {"launch": ["x", "{port}"]}}}, {"KEY": "k"}).arms
    assert cloud.auth is not None
    assert (ours.auth, ours.headers) == (None, {})
    shared = {"auth": {"env": "KEY"}}
    arms = {"a": {"launch": ["x", "{port}"]}, "b": {"launch": ["y", "{port}"]}}
    assert all(a.auth is not None for a in load({"endpoint": shared, "arms": arms}).arms)


def test_the_working_directory_is_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("endpoint: {launch: {command: [x, '{port}'], cwd: serving}}\n")
    sweep = load_sweep(path, {}, {})
    assert sweep.arms[0].launch is not None
    assert sweep.arms[0].launch.cwd == str(tmp_path / "serving")
    again = tmp_path / "stored.yaml"
    again.write_text(dump_stored(sweep))
    assert load_sweep(again, {}, {}).arms == sweep.arms


# -- secrets and slips ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launch", "key"),
    [
        ({"command": ["x", "{port}", "--api-key", "abc"]}, "command"),
        ({"command": ["x", "{port}", "--api-key=abc"]}, "command"),
        ({"command": ["x", "{port}", "--api-key", "${KEY}"]}, "command"),
        ({"command": ["x", "{port}", "${MY_API_KEY}"]}, "command"),
        ({"command": ["sh", "-c", "x {port} --hf-token abc"]}, "command"),
        ({"command": ["env", "HF_TOKEN=abc", "x", "{port}"]}, "command"),
        ({"command": ["x", "{port}", "sk-0123456789abcdefghij"]}, "command"),
        ({"command": ["x", "{port}", "--proxy", "http://me:abc@h"]}, "command"),
        ({"command": ["x", "{port}", "-H", "Authorization: abc"]}, "command"),
        ({"engine": "vllm", "model": "M", "args": ["--api-key", "abc"]}, "args"),
        ({"command": ["x", "{port}"], "env": {"API_KEY": "abc"}}, "env.API_KEY"),
        ({"command": ["x", "{port}"], "env": {"MORE": "sk-0123456789abcdefghij"}}, "env.MORE"),
        ({"command": ["x", "{port}", '{"api_key": "abc"}']}, "command"),
        ({"command": ["x", "{port}", '{"a":{"b":1,"api_key":"abc"}}']}, "command"),
        ({"command": ["x", "{port}", "--config={api_key: abc}"]}, "command"),
        ({"command": ["sh", "-c", 'x {port} --config "{\\"auth\\": {\\"hf_token\\": \\"abc\\"}}"']}, "command"),
        ({"command": ["x", "{port}", '{"a": "${MY_API_KEY}"}']}, "command"),
        ({"engine": "trtllm", "model": "M", "options": {"api_key": "abc"}}, "options.api_key"),
        ({"engine": "trtllm", "model": "M", "options": {"a": {"api_key": "abc"}}}, "options.a.api_key"),
        ({"engine": "trtllm", "model": "M", "options": {"a": [{"auth": {"x": "abc"}}]}}, "options.a.0.auth.x"),
        ({"engine": "trtllm", "model": "M", "options": {"a": ["http://me:abc@h"]}}, "options.a.0"),
        ({"engine": "trtllm", "model": "M", "options": {"a": {"b": "${MY_API_KEY}"}}}, "options.a.b"),
        ({"engine": "trtllm", "model": "M", "options": {"a": "sk-0123456789abcdefghij"}}, "options.a"),
        # Seen only when variables are expanded, or in a word that is not in the command as it is asked.
        ({"command": ["x", "{port}", "${SRV_ARGS}"]}, ""),
        ({"command": ["sh", "-c", "x {port} ${SRV_ARGS}"]}, ""),
        ({"command": ["x", "{port}", "${A_KEYS_FIELD}"]}, ""),
        ({"command": "x {port} --api-key abc"}, ""),
        ({"engine": "vllm", "model": "http://me:abc@h/m"}, ""),
        ({"engine": "vllm", "model": "M", "args": ["${SRV_ARGS}"]}, ""),
    ],
)
def test_secrets_are_refused_and_not_repeated(launch: dict[str, Any], key: str) -> None:
    env = {"KEY": "abc", "MY_API_KEY": "abc", "SRV_ARGS": "--api-key=abc", "A_KEYS_FIELD": '{"api_key": "abc"}'}
    fault = refused({"arms": {"a": {"launch": launch}}}, env)
    assert fault.key == f"arms.a.launch.{key}".rstrip(".")
    assert "secret" in fault.problem
    assert "abc" not in str(fault)


@pytest.mark.parametrize(
    "command",
    [
        ["x", "{port}", "--max-tokens", "5", "--speculative-token-map", "f", "--tokenizer", "t"],
        ["x", "{port}", "--api-key-file", "/run/key", "--ssl-keyfile", "k.pem"],
        ["docker", "run", "-e", "HF_TOKEN", "--rm", "image", "{port}"],
        ["x", "{port}", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'],
        ["x", "{port}", "--eos-token", "</s>"],
        ["x", "{port}", '{"api_key": null, "use_auth_token": false, "token": ""}', "-v", "{a:b,c:d}"],
        ["sh", "-c", "x {port} $${MY_API_KEY}"],
    ],
)
def test_words_that_only_sound_secret_are_fine(command: list[str]) -> None:
    assert arm({"launch": command}).launch is not None


@pytest.mark.parametrize("hook", [["curl", "${MORE}"], ["curl", '{"api_key":"abc"}'], "curl -H 'Authorization: abc'"])
def test_secrets_of_a_hooks_command_are_refused(hook: Any) -> None:
    env = {"MORE": "--token=abc"}
    fault = refused({"arms": {"a": {"url": "http://h:1", "before_point": {"command": hook}}}}, env)
    assert "secret in a command line" in fault.problem
    assert "abc" not in str(fault)


def test_an_options_file_of_other_things_is_fine() -> None:
    options = {"kv_cache_config": {"tokens_per_block": 32}, "use_auth_token": False, "eos_token": "x", "max_tokens": 5}
    assert arm({"launch": {"engine": "trtllm", "model": "M", "options": options}}).launch is not None


def test_secrets_may_come_by_the_environment_and_are_stored_as_names() -> None:
    document = {"endpoint": {"launch": {"command": ["x", "{port}"], "env": {"HF_TOKEN": "${HF_TOKEN}"}}}}
    sweep = load(document, {"HF_TOKEN": "hf_secret"})
    assert sweep.arms[0].launch is not None
    assert sweep.arms[0].launch.env == {"HF_TOKEN": "hf_secret"}
    assert "hf_secret" not in dump_stored(sweep)
    assert "${HF_TOKEN}" in dump_stored(sweep)


@pytest.mark.parametrize(
    ("section", "key", "problem"),
    [
        ({"launch": {"command": ["x"]}}, "launch.command", "nothing tells the server its port"),
        ({"launch": {"command": ["x", "{port}"], "engine": "vllm"}}, "launch", "exclude each other"),
        ({"launch": {}}, "launch", "neither command nor engine"),
        ({"launch": []}, "launch.command", ""),
        ({"launch": {"engine": "vlm", "model": "M"}}, "launch.engine", "no profile of this engine"),
        ({"launch": {"engine": "vllm"}}, "launch.model", "not told what to serve"),
        ({"launch": {"engine": "vllm", "model": "M", "options": {"a": 1}}}, "launch.options", "no options file"),
        ({"launch": {"command": ["x", "{port}"], "args": ["y"]}}, "launch.args", "belongs to an engine"),
        ({"launch": {"command": ["x", "{port}"], "url": "nowhere"}}, "launch.url", "not an http(s) URL"),
        ({"launch": {"comand": ["x", "{port}"]}}, "launch.comand", "no such key"),
        ({"launch": {"command": ["x", "{port}"], "env": {"A B": "1"}}}, "launch.env", "not the name"),
        ({"url": "http://h:1", "before_point": {}}, "before_point", "neither post nor command"),
        ({"url": "http://h:1", "before_point": {"post": "reset"}}, "before_point.post", "not a route"),
        ({"url": "http://h:1", "before_point": {"post": "/r?api_key=abc"}}, "before_point.post", "holds a key"),
        ({"url": "http://h:1", "before_point": {"post": "/r?a=1;api%5Fkey=abc"}}, "before_point.post", "holds a key"),
        ({"url": "http://h:1", "before_point": {"command": ["x", "a\0b"]}}, "before_point", "null character"),
        ({"launch": ["x", "{port}", "a\0b"]}, "launch", "null character"),
        ({"launch": {"engine": "vllm", "model": "a\0b"}}, "launch", "null character"),
        ({"launch": {"command": 5}}, "launch.command", "nothing tells the server its port"),
        ({"launch": ["x", "{port}", True]}, "launch.command.2", "should be text"),
    ],
)
def test_slips_are_one_sentence(section: dict[str, Any], key: str, problem: str) -> None:
    fault = refused({"arms": {"a": section}})
    assert (fault.key, problem in fault.problem) == (f"arms.a.{key}", True), str(fault)
