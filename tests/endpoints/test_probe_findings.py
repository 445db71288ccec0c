"""The long look at endpoints of every habit: what is found, what it costs, and that its profile is accepted."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from endpoints import preflight as preflight_room
from endpoints.findings import PreflightError, Probed, as_json
from endpoints.preflight import preflight
from endpoints.probe import MOST_REQUESTS, MOST_TOKENS, probe, profile_of
from endpoints.target import target_of, timeouts_of
from profiles.loading import Sweep, load_sweep
from profiles.yamltext import dump
from tests.endpoints.fake_endpoint import FakeEndpoint

KEY = "sk-probe/secret+key=0123456789"
VLLM_METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.79e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 30.0
vllm:num_requests_running{engine="0",model_name="m"} 0.0
"""


async def probed(fake: FakeEndpoint, endpoint: dict[str, Any] | None = None) -> tuple[Probed, Sweep]:
    """Probe the fake as the command does."""
    async with fake.running() as root:
        given = {"url": root + fake.base, "model": "m", **(endpoint or {})}
        sweep = load_sweep(None, {"endpoint": given}, {"KEY": KEY})
        target = target_of(sweep.arms[0], 256, {}, timeouts_of(sweep.limits), {"KEY": KEY})
        found = await probe(target)
    cost = found.cost
    assert cost.requests == len(fake.asked) <= MOST_REQUESTS
    assert all(name not in body or body[name] <= MOST_TOKENS for body in fake.asked for name in fake.length_fields)
    return found, sweep


def seen(found: Probed, what: str) -> str:
    (finding,) = [f for f in found.findings if f.what == what]
    assert finding.seen and finding.effect
    return finding.seen


def loaded(found: Probed, sweep: Sweep, tmp_path: Path) -> Any:
    """The arm that the printed profile gives when it is loaded."""
    path = tmp_path / "profile.yaml"
    path.write_text(dump(profile_of(sweep, sweep.arms[0], found)))
    return load_sweep(path, {}, {"KEY": KEY, "TEAM": "t"}).arms[0]


async def test_an_endpoint_that_stops_by_itself_and_knows_no_way_to_go_on(tmp_path: Path) -> None:
    fake = FakeEndpoint(natural=9)
    found, sweep = await probed(fake)
    assert seen(found, "length of replies") == "asked for 32 tokens and it stopped at 9 (finish reason stop)"
    for name in ("ignore_eos", "min_tokens"):
        assert seen(found, name) == "accepted and ignored: asked for 32 tokens and it stopped at 9 (finish reason stop)"
    assert found.profile == {} and found.refusals == []
    assert (seen(found, "/completions"), seen(found, "max_completion_tokens")[:8]) == ("works", "accepted")
    assert {seen(found, name) for name in ("temperature", "seed", "stream_options.include_usage")} == {"accepted"}
    assert seen(found, "stream_options.continuous_usage_stats") == seen(found, "return_token_ids")
    assert seen(found, "return_token_ids") == "accepted, and ignored"
    assert seen(found, "metrics") == "no page of metrics"
    assert seen(found, "address").startswith("127.0.0.1:") and "IPv4" in seen(found, "address")
    said = as_json(found)
    assert said["cost"]["requests"] == 8 and said["cost"]["input_tokens"] == 8 * 11
    assert said["cost"]["output_tokens"] == sum(fake.length(body)[0] for body in fake.asked)
    arm = loaded(found, sweep, tmp_path)
    assert (arm.model, arm.api, arm.extra_body, arm.stream) == ("m", "chat", {}, True)


async def test_a_length_that_is_honoured_goes_into_the_profile(tmp_path: Path) -> None:
    found, sweep = await probed(FakeEndpoint(honours=frozenset({"ignore_eos"})), {"extra_body": {"top_k": 5}})
    assert seen(found, "ignore_eos").startswith("accepted and honoured: asked for 32 tokens and got as many")
    assert seen(found, "min_tokens").startswith("accepted and ignored")
    assert loaded(found, sweep, tmp_path).extra_body == {"top_k": 5, "ignore_eos": True}
    found, _ = await probed(FakeEndpoint(honours=frozenset({"min_tokens"})), {"extra_body": {"ignore_eos": True}})
    assert seen(found, "min_tokens").startswith("accepted and honoured")
    assert seen(found, "length of replies").startswith("asked for 32 tokens and it stopped at 9")


async def test_replies_of_full_length_tell_nothing_of_what_fixes_it() -> None:
    found, _ = await probed(FakeEndpoint(natural=1000))
    assert "got as many (finish reason length)" in seen(found, "length of replies")
    assert [f.effect for f in found.findings if f.what == "ignore_eos"] == [
        "cannot be told: replies are as long as asked without it"
    ]
    assert found.profile == {}


async def test_refused_fields_are_listed_one_by_one() -> None:
    names = ("ignore_eos", "min_tokens", "temperature", "continuous_usage_stats", "return_token_ids")
    found, _ = await probed(FakeEndpoint(refuses={name: f"Unknown field: {name}" for name in names}))
    for name in ("ignore_eos", "min_tokens", "temperature", "return_token_ids"):
        assert seen(found, name) == f"refused (HTTP 400: Unknown field: {name})"
        assert any(name in refusal for refusal in found.refusals)
    assert seen(found, "stream_options.continuous_usage_stats").startswith("refused")
    assert seen(found, "seed") == "accepted"
    assert found.cost.requests == MOST_REQUESTS


async def test_no_more_requests_than_promised() -> None:
    everything = ("include_usage", "max_tokens", "temperature", "seed", "ignore_eos", "min_tokens", "return_token_ids")
    found, _ = await probed(
        FakeEndpoint(limits=2, refuses={name: f"Unknown field: {name}, stream_options" for name in everything})
    )
    assert found.cost.requests == MOST_REQUESTS
    assert any(f.seen.startswith("not looked at") for f in found.findings)
    assert seen(found, "stream_options.include_usage") == "refused"


@pytest.mark.parametrize("asked", ["max_tokens", "max_completion_tokens"])
async def test_the_name_of_the_length_is_found_and_remembered(asked: str, tmp_path: Path) -> None:
    """Refused by name, or silently ignored: both ways the other one is used, and the profile says so."""
    other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[asked]
    refusing = FakeEndpoint(refuses={asked: f"Unsupported parameter: '{asked}'. Use '{other}' instead."})
    ignoring = FakeEndpoint(natural=40, length_fields=(other,))
    for fake in (refusing, ignoring):
        found, sweep = await probed(fake, {"max_tokens_field": asked})
        assert found.shape.max_tokens_field == other
        arm = loaded(found, sweep, tmp_path)
        assert target_of(arm, 1, {}, timeouts_of(sweep.limits), {}).shape.max_tokens_field == other
    effects = {f.what: f.effect for f in found.findings}
    assert (effects[asked], effects[other]) == ("it does not bound the reply", "it is used, since the other is ignored")
    assert seen(found, asked) == "accepted: at most 16 tokens asked for, 40 came, so it is ignored"


async def test_an_endpoint_that_does_not_stream(tmp_path: Path) -> None:
    found, sweep = await probed(FakeEndpoint(streams=False))
    assert seen(found, "stream").startswith("refused or ignored")
    assert not found.shape.stream
    arm = loaded(found, sweep, tmp_path)
    assert arm.stream is False
    found, sweep = await probed(FakeEndpoint(refuses={"stream": "Streaming is not supported"}))
    assert loaded(found, sweep, tmp_path).stream is False
    found, _ = await probed(FakeEndpoint(), {"stream": False})  # could stream, and is not asked to
    assert seen(found, "stream").startswith("not asked for") and found.profile == {}


async def test_an_endpoint_that_has_only_completions(tmp_path: Path) -> None:
    found, sweep = await probed(FakeEndpoint(missing=("/chat/completions",)))
    assert (found.shape.api, loaded(found, sweep, tmp_path).api) == ("completions", "completions")
    assert seen(found, "/chat/completions") == "HTTP 404: Not Found"
    assert seen(found, "/completions") == "9 fragments, 9 tokens"


async def test_usage_that_is_ignored_and_tokens_that_are_counted_by_fragments() -> None:
    found, _ = await probed(FakeEndpoint(usage=False))
    assert seen(found, "stream_options.include_usage") == "ignored"
    assert seen(found, "length of replies").endswith("it stopped at 9 (finish reason stop, counted in fragments)")


async def test_tokens_of_each_fragment() -> None:
    found, _ = await probed(FakeEndpoint(honours=frozenset({"continuous_usage_stats", "return_token_ids"})))
    told = "accepted, and tells the tokens of each fragment"
    assert seen(found, "stream_options.continuous_usage_stats") == seen(found, "return_token_ids") == told


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_reasoning_and_details_of_usage(name: str) -> None:
    details = {
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 0},
    }
    found, _ = await probed(FakeEndpoint(text_field=name, usage_details=details, refuses={"/completions": "no"}))
    assert seen(found, "text fields") == name
    assert seen(found, "usage details") == (
        "completion_tokens_details.reasoning_tokens, prompt_tokens_details.cached_tokens"
    )
    assert seen(found, "/completions") == "HTTP 400: no (/completions)"


async def test_headers_of_limits_and_servers() -> None:
    headers = {"X-RateLimit-Remaining-Requests": "59", "Server": "proxy/1", "Via": "1.1 edge"}
    found, _ = await probed(FakeEndpoint(headers=headers))
    assert seen(found, "rate-limit headers") == "x-ratelimit-remaining-requests: 59"
    assert seen(found, "server headers") == "server: proxy/1; via: 1.1 edge"


# --- pages beside the API


@pytest.mark.parametrize(("base", "page"), [("/v1", "/metrics"), ("/x/v1", "/x/metrics"), ("/x/v1", "/metrics"),
                                            ("/v1", "/v1/metrics"), ("/v1", "/prometheus/metrics")])  # fmt: skip
async def test_metrics_are_found_where_servers_put_them(base: str, page: str) -> None:
    found, _ = await probed(FakeEndpoint(base=base, pages={page: (200, VLLM_METRICS)}))
    assert found.profile["metrics_url"].partition("127.0.0.1")[2].partition("/")[2] == page[1:]
    assert "vLLM: 3 series, 2 about speculative decoding" in seen(found, "metrics")


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ('sglang:spec_accept_length{tp_rank="0"} 2.9', "SGLang: 1 series, 1 "),
        ("llamacpp:spec_decode_num_drafts_total 0\nllamacpp:requests_deferred 0", "llama.cpp: 2 series, 1 "),
        ("trtllm_spec_decode_accepted_tokens_total 5", "TensorRT-LLM: 1 series, 1 "),
        ('nv_inference_count{model="m"} 5', "Triton: 1 series, 0 "),
        ("dynamo_frontend_requests_total 5", "Dynamo: 1 series, 0 "),
        ("tgi_request_skipped_tokens_count 5", "Text Generation Inference: 1 series, 1 "),
        ("process_cpu_seconds_total 5", "1 series of no engine known here"),
    ],
)
async def test_metrics_name_their_engine(text: str, engine: str) -> None:
    found, _ = await probed(FakeEndpoint(pages={"/metrics": (200, text + "\n")}))
    assert engine in seen(found, "metrics")
    assert ("metrics_url" in found.profile) == ("no engine" not in engine)


async def test_versions_settings_and_health() -> None:
    info = (
        '{"version": "0.5.4", "api_key": "sk-of-the-server", "max_running_requests": 48, "context_length": 8192,'
        ' "speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4, "internal_states": [{"version": "x"}]}'
    )
    pages = {"/server_info": (200, info), "/health": (200, ""), "/health_generate": (503, "")}
    fake = FakeEndpoint(
        pages=pages, models={"data": [{"id": "n", "max_model_len": 1}, {"id": "m", "owned_by": "sglang"}]}
    )
    found, _ = await probed(fake)
    assert seen(found, "engine") == "SGLang; /server_info says 0.5.4"
    assert (seen(found, "requests at once"), seen(found, "context")) == ("48", "8192 tokens")
    (speculation,) = [f for f in found.findings if f.what == "speculation"]
    assert speculation.effect == 'declare speculation: {"method":"eagle3","draft_tokens":4}'
    assert seen(found, "health") == "/health 200"
    assert "sk-of-the-server" not in str(as_json(found))


async def test_pages_of_any_kind_are_never_fatal() -> None:
    catch_all = dict.fromkeys(
        ("/version", "/server_info", "/props", "/metrics", "/health", "/info"),
        (200, "<html>{version} 1\n\x1b[2J</html>"),
    )
    catch_all["/v2"] = (200, '["a list", 1]')
    catch_all["/props"] = (200, "[" * 2000)
    found, _ = await probed(FakeEndpoint(pages=catch_all))
    assert seen(found, "engine") == "not known" and seen(found, "metrics") == "no page of metrics"


async def test_metrics_elsewhere_get_no_key() -> None:
    elsewhere = FakeEndpoint(pages={"/m": (200, VLLM_METRICS)})
    async with elsewhere.running() as root:
        found, _ = await probed(FakeEndpoint(key=("Authorization", f"Bearer {KEY}")),
                                {"auth": {"env": "KEY"}, "metrics_url": root + "/m"})  # fmt: skip
    (request,) = elsewhere.requests
    assert "Authorization" not in request.headers
    assert f"{root}/m: vLLM" in seen(found, "metrics")


# --- keys


async def test_a_key_that_is_echoed_everywhere_shows_nowhere(tmp_path: Path) -> None:
    fake = FakeEndpoint(
        key=("Authorization", f"Bearer {KEY}"),
        headers={"Server": f"echo {KEY}", "X-RateLimit-Key": KEY},
        pages={"/version": (200, f'{{"version": "{KEY}"}}')},
        refuses=dict.fromkeys(("ignore_eos", "seed", "/completions"), f"no: {KEY}"),
    )
    found, sweep = await probed(fake, {"auth": {"env": "KEY"}})
    text = str(as_json(found)) + dump(profile_of(sweep, sweep.arms[0], found)) + str(found.server)
    assert not any(KEY[i : i + 10] in text for i in range(len(KEY) - 10))
    assert "<redacted>" in seen(found, "server headers") and "<redacted>" in seen(found, "ignore_eos")
    assert loaded(found, sweep, tmp_path).auth.env == "KEY"


def test_a_profile_keeps_variables_and_redacts_what_was_typed() -> None:
    headers = {"X-Token": "literal-secret", "X-Api-Key": "${KEY}", "X-Team": "blue"}
    endpoint = {"url": "http://h/v1", "headers": headers, "prices": {"input": 1.0, "output": 2.0}}
    arms = {"on": {"url": "http://elsewhere/v1", "speculation": {"method": "eagle3"}}}
    sweep = load_sweep(None, {"endpoint": {**endpoint, "auth": {"env": "KEY"}}, "arms": arms}, {"KEY": KEY})
    arm = sweep.arms[0]
    found = Probed(target_of(arm, 1, {}, timeouts_of(sweep.limits), {}).shape)
    on_other_origin = profile_of(sweep, arm, found)["endpoint"]
    assert (on_other_origin["url"], on_other_origin["headers"]) == ("http://elsewhere/v1", {"X-Team": "blue"})
    assert "auth" not in on_other_origin and "speculation" not in on_other_origin
    sweep = load_sweep(None, {"endpoint": endpoint}, {"KEY": KEY})
    profile = profile_of(sweep, sweep.arms[0], found)["endpoint"]
    assert profile["headers"] == {"X-Token": "<redacted>", "X-Api-Key": "${KEY}", "X-Team": "blue"}
    assert profile["prices"] == {"input": 1.0, "output": 2.0}


# --- rate limits


@pytest.mark.parametrize(("status", "after"), [(429, "0.01"), (503, "0.01"), (429, None)])
async def test_a_rate_limit_is_waited_for(status: int, after: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_room, "_UNSAID_S", 0.005)
    fake = FakeEndpoint(limits=3, limit_status=status, retry_after=after)
    said: list[str] = []
    async with fake.running() as root:
        found = await preflight(await _target(root), said.append)
    assert len(fake.asked) == 4 and len(said) == 3
    assert all(f"answers {status}, over its rate limit: trying again in 0.0" in line for line in said)
    assert seen(found, "rate limit").startswith("refused at first; waited 0.03")
    assert found.cost.requests == 4


async def test_a_rate_limit_that_stays_ends_it() -> None:
    fake = FakeEndpoint(limits=99)
    async with fake.running() as root:
        with pytest.raises(PreflightError, match=r"over its rate limit after 0\.03 s of waiting .*slow down"):
            await preflight(await _target(root))
    assert len(fake.asked) == 4


async def test_a_wait_that_is_too_long_is_not_waited_for() -> None:
    fake = FakeEndpoint(limits=99, retry_after="3600")
    async with fake.running() as root:
        with pytest.raises(PreflightError, match=r"over its rate limit already .*: try again in 3600 s"):
            await preflight(await _target(root))
    assert len(fake.asked) == 1
    down = FakeEndpoint(limits=99, limit_status=503, retry_after=None)  # says nothing of a limit: it is just down
    async with down.running() as root:
        with pytest.raises(PreflightError, match="does not answer a small streamed request: HTTP 503"):
            await preflight(await _target(root))
    assert len(down.asked) == 1


async def _target(root: str) -> Any:
    sweep = load_sweep(None, {"endpoint": {"url": root, "model": "m"}}, {})
    return target_of(sweep.arms[0], 256, {}, timeouts_of(sweep.limits), {})


async def test_an_address_of_the_newer_kind() -> None:
    from aiohttp import web

    fake = FakeEndpoint()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.__call__)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    with contextlib.closing(socket.socket(socket.AF_INET6)) as listening:
        try:
            listening.bind(("::1", 0))
        except OSError:
            return  # no such network here
        await web.SockSite(runner, listening).start()
        port = listening.getsockname()[1]
        found = await probe(await _target(f"http://[::1]:{port}"))
        assert seen(found, "address").startswith(f"[::1]:{port} (IPv6)")
        await runner.cleanup()
