"""The demo: the embedded endpoint with speculation off and on, swept over six levels in about a minute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from endpoints.simulator.options import SimulatorOptions

# Verification costs 0.45 ms a sequence and drafted token: four drafted tokens pay while the fixed part of a step is
# most of it, and cost more than they bring once the batch is.
_SPECULATION = "k=4,p=0.7"
ARMS: dict[str, SimulatorOptions] = {
    "off": SimulatorOptions(),
    "on": SimulatorOptions(speculation=_SPECULATION),
}
LEVELS = [1, 2, 4, 8, 16, 32]
REQUESTS = 40
MAX_TOKENS = 48


def overrides(urls: Mapping[str, str]) -> dict[str, Any]:
    """The demo as a document of a sweep file's shape, for embedded endpoints at these URLs."""
    return {
        "name": "demo",
        "arms": {
            "off": {"url": urls["off"]},
            "on": {"url": urls["on"], "speculation": {"method": "simulated", "draft_tokens": 4}},
        },
        "workload": {"use": "chat-short", "max_tokens": MAX_TOKENS},
        "load": {"concurrency": LEVELS, "requests": REQUESTS},
    }
