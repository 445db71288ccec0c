"""The command line against endpoints as clouds have them: other headers, queries, names of fields, and no leaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from profiles.loading import load_sweep
from profiles.starters import STARTERS, starter
from tests.endpoints.fake_endpoint import FakeEndpoint
from tests.front.conftest import Cli

KEY = "azure/qZ7+vT3w=K9xP2mRb5YnLd"
ENV = {"AZURE_OPENAI_API_KEY": KEY}
AZURE_URL = "https://RESOURCE.openai.azure.com/openai/deployments/DEPLOYMENT"
CHAT = "/openai/deployments/dep/chat/completions"


def azure() -> FakeEndpoint:
    """A deployment of a reasoning model: key in `api-key`, version in the query, no list of models, filter results."""
    return FakeEndpoint(
        natural=6,
        base="/openai/deployments/dep",
        key=("api-key", KEY),
        query={"api-version": "2024-10-21"},
        models=None,
        refuses={"max_tokens": "Unsupported parameter: 'max_tokens' is not supported with this model. "
                               "Use 'max_completion_tokens' instead."},
        prelude={"choices": [], "model": "", "prompt_filter_results": [{"content_filter_results": {}}]},
        headers={"apim-request-id": f"echo {KEY}", "x-ratelimit-remaining-requests": "99"},
        usage_details={"completion_tokens_details": {"reasoning_tokens": 0}},
    )  # fmt: skip


@contextlib.contextmanager
def serving(fake: FakeEndpoint) -> Iterator[str]:
    """The fake in a thread of its own; gives its root URL."""
    urls: list[str] = []
    ready, loop, done = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with fake.running() as url:
            urls.append(url)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()


def leaks(text: str, key: str = KEY) -> list[str]:
    return [key[i : i + 8] for i in range(len(key) - 8) if key[i : i + 8] in text]


def test_probe_of_a_deployment_prints_a_sweep_file(cli: Cli, tmp_path: Path) -> None:
    fake = azure()
    with serving(fake) as root:
        url = f"{root}{fake.base}?api-version=2024-10-21"
        words = ("probe", url, "--model", "dep", "--header", "api-key: ${AZURE_OPENAI_API_KEY}")
        done = cli(*words, env=ENV)
        said = json.loads(cli(*words, "--json", env=ENV).stdout)
    assert not leaks(done.stdout + done.stderr + json.dumps(said))
    assert all(request.query["api-version"] == "2024-10-21" for request in fake.requests if request.method == "POST")
    (tmp_path / "probed.yaml").write_text(done.stdout)  # the findings are comments
    arm = load_sweep(tmp_path / "probed.yaml", {}, ENV).arms[0]
    assert (arm.url, arm.model, arm.headers) == (url, "dep", {"api-key": KEY})
    assert arm.max_tokens_field == "max_completion_tokens"
    endpoint = said["profile"]["endpoint"]
    assert endpoint["headers"] == {"api-key": "${AZURE_OPENAI_API_KEY}"}
    assert {"profile", "findings", "refusals", "round_trip_ms", "cost"} <= set(said)
    findings = {f["what"]: f["seen"] for f in said["findings"]}
    assert findings["content filter"] and "6 (finish reason stop)" in findings["length of replies"]
    assert any("max_completion_tokens" in refusal for refusal in said["refusals"])
    assert said["cost"]["requests"] == len(fake.asked) / 2 <= 12
    assert "cost: " in done.stdout and "refused: HTTP 400: Unsupported parameter" in done.stdout


def test_a_sweep_of_a_deployment(cli: Cli, tmp_path: Path) -> None:
    fake = azure()
    with serving(fake) as root:
        text = starter("azure").replace(AZURE_URL, root + fake.base)
        assert root in text
        (tmp_path / "azure.yaml").write_text(text)
        sizes = ("--concurrency", "1,2", "--requests", "40", "--max-tokens", "12")
        done = cli("run", "azure.yaml", *sizes, "--out", "r", "--json", env=ENV)
    points = json.loads(done.stdout)["points"]
    assert [(p["valid"], p["counts"]["completed"]) for p in points] == [(True, 40)] * 2
    for point in points:
        (verdict,) = [v for v in point["verdicts"] if v["code"] == "osl_mismatch"]
        assert verdict["evidence"] == "asked for 12 tokens and got 6 on average (finish reasons: stop 40)"
    posts = [request for request in fake.requests if request.method == "POST"]
    assert {request.path for request in posts} == {CHAT}
    assert {request.query["api-version"] for request in posts} == {"2024-10-21"}
    assert sum("max_tokens" in body for body in fake.asked) == 1, "refused once, and remembered"
    assert not leaks(done.stdout + done.stderr)
    stored = [path for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert len(stored) > 8
    for path in stored:
        assert not leaks(path.read_bytes().decode("latin-1")), path
        if path.suffix == ".parquet":
            assert not leaks(str(pq.read_table(path).to_pylist())), path
    assert "${AZURE_OPENAI_API_KEY}" in (tmp_path / "r" / "sweep.yaml").read_text()


def test_a_key_that_the_deployment_does_not_take(cli: Cli) -> None:
    fake, wrong = azure(), "azure-wrong-key-9876543210"
    with serving(fake) as root:
        url = f"{root}{fake.base}?api-version=2024-10-21"
        words = (url, "--model", "dep", "--header", "api-key: ${K}")
        for command in ("run", "probe"):
            done = cli(command, *words, env={"K": wrong}, code=2)
            assert "401" in done.stderr and "check the key" in done.stderr
            assert not leaks(done.stderr, wrong)


def test_headers_of_organisations_and_gateways_arrive(cli: Cli, tmp_path: Path) -> None:
    env = {"OPENAI_API_KEY": "sk-one", "OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj-1"}
    env |= {"EXAMPLE_API_KEY": "sk-two", "GATEWAY_KEY": "gate-secret-0123"}
    sent = {
        "organisation": {"OpenAI-Organization": "org-1", "OpenAI-Project": "proj-1", "Authorization": "Bearer sk-one"},
        "gateway": {"X-Gateway-Key": "gate-secret-0123", "X-Team": "benchmarks", "Authorization": "Bearer sk-two"},
    }
    for kind, headers in sent.items():
        fake = FakeEndpoint(base="/team/v1")
        with serving(fake) as root:
            text = starter(kind).replace("https://api.example.com/v1", root + "/team/v1")
            text = text.replace("https://gateway.example.com/team/v1", root + "/team/v1")
            (tmp_path / "s.yaml").write_text(text)
            done = cli("probe", "s.yaml", env=env)
        (profile := tmp_path / "probed.yaml").write_text(done.stdout)
        assert load_sweep(profile, {}, env).arms[0].headers == {
            n: v for n, v in headers.items() if n != "Authorization"
        }
        assert "gate-secret" not in done.stdout + done.stderr
        for request in fake.requests:
            assert headers.items() <= dict(request.headers).items(), request.path


def test_the_files_of_tls_are_named_when_they_are_missing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "tls.yaml").write_text(starter("tls"))
    said = cli("probe", "tls.yaml", env={"EXAMPLE_API_KEY": "k"}, code=2).stderr
    assert str(tmp_path / "ca.pem") in said and "tls.ca" in said


def test_kinds_of_starters_are_listed(cli: Cli) -> None:
    listed = cli("profiles").stdout
    refused = cli("profiles", "new", "azur", code=2).stderr
    for kind in STARTERS:
        assert f"\n{kind} " in listed and kind in refused
        assert cli("profiles", "new", kind).stdout == starter(kind)


def test_a_rate_limit_at_the_start_is_waited_for_and_said(cli: Cli) -> None:
    with serving(FakeEndpoint(limits=1, retry_after="0.05")) as root:
        done = cli("probe", root, "--model", "m")
    assert "over its rate limit: trying again in 0.05 s" in done.stderr
    assert "refused at first; waited 0.05 s" in done.stdout


def test_a_sampling_field_that_is_refused_is_named(cli: Cli, tmp_path: Path) -> None:
    spec = "endpoint: {{url: {}}}\nworkload: {{use: chat-short, sampling: {{temperature: 0}}}}\n"
    with serving(FakeEndpoint(refuses={"temperature": "Unsupported value"})) as root:
        (tmp_path / "s.yaml").write_text(spec.format(root))
        said = cli("run", "s.yaml", code=2).stderr
    assert "refuses the field temperature of workload.sampling" in said
    assert not (tmp_path / "runs").exists()


def test_a_probe_is_light() -> None:
    """Nothing of what a probe needs pulls in the libraries of the numbers, which cost seconds to import."""
    heavy = "{'numpy', 'scipy', 'pandas', 'pyarrow', 'altair'}"
    rooms = "endsweep, endpoints.probe, endpoints.target, profiles.loading, profiles.yamltext, reports.preview"
    code = f"import sys, {rooms}; print(sorted({heavy} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_probe_takes_less_than_a_second_of_cpu(cli: Cli) -> None:
    with serving(FakeEndpoint()) as root:
        before = os.times()
        cli("probe", root, "--model", "m")
        after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    assert spent < 3, "about 0.6 s; as wide a bound as a busy machine needs"
