"""The registry of hostile cases, the page made from it, and the server around a case."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from endpoints.outcomes import Outcome
from endpoints.simulator import hostile
from endpoints.simulator.hostile.cases import CASES, GROUPS, case_of
from endpoints.simulator.hostile.table import table

ROOT = Path(__file__).resolve().parents[2]
RUN = [sys.executable, "-m", "endpoints.simulator.hostile"]


def test_every_case_has_a_name_of_its_own_and_says_what_and_why() -> None:
    listed = [case for group in GROUPS for case in group.CASES]
    assert len(listed) == len(CASES) == len(hostile.names()) >= 95
    assert {case.kind for case in listed} == {group.KIND for group in GROUPS}
    assert all(case.what and case.expected.why and case.asks >= 1 for case in listed)


def test_the_classes_are_those_of_the_client_and_most_can_be_met_here() -> None:
    met = Counter(case.expected.outcome for case in CASES.values())
    assert set(met) <= {str(outcome) for outcome in Outcome}
    elsewhere = {"refused", "dns", "tls", "connect_timeout", "deadline", "client_resource", "cancelled"}
    assert set(met) == {str(outcome) for outcome in Outcome} - elsewhere


def test_a_failure_says_nothing_of_success() -> None:
    for case in CASES.values():
        e = case.expected
        assert (e.token_source == "usage") == (e.output_tokens is not None), case.name
        if e.outcome == "ok":
            assert e.fragments and e.status is not None, case.name


def test_the_page_is_in_step_with_the_registry() -> None:
    page = ROOT / "docs" / "hostile.md"
    assert page.read_text(encoding="utf-8") == table(), f"{' '.join(RUN[1:])} --table > docs/hostile.md"


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(ValueError, match=r"no hostile case 'crlff': did you mean .*crlf"):
        case_of("crlff")
    said = subprocess.run([*RUN, "crlff"], cwd=ROOT, capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (2, "")
    assert "did you mean" in said.stderr


def test_served_alone_it_prints_its_url_and_stops_when_told() -> None:
    with subprocess.Popen([*RUN, "crlf"], cwd=ROOT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        url = child.stdout.readline().decode().strip()
        try:
            assert url.startswith("http://127.0.0.1:") and url.endswith("/v1")
            assert [card["id"] for card in json.loads(get(url + "/models"))["data"]] == ["crlf"]
            assert get(url.removesuffix("/v1") + "/health") == b""
            assert b"data: [DONE]\r\n\r\n" in post(url, "crlf")
            assert b"data: [DONE]\n\n" in post(url, "good")
            assert b"data: [DONE]\r\n\r\n" in post(url, "no case of this name")
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.wait(10) == 0
        assert child.stdout.read() == b""


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as response:
        return bytes(response.read())


def post(url: str, model: str) -> bytes:
    asked = urllib.request.Request(url + "/chat/completions", json.dumps({"model": model}).encode())
    with urllib.request.urlopen(asked, timeout=10) as response:
        return bytes(response.read())
