"""What can be set on the embedded endpoint, and its defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

from endpoints.simulator.engine import EngineConfig, SpeculationConfig

DRAFT_MS = 0.45
VERIFY_MS = 0.22


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """Settings of the embedded endpoint.

    A decode step of b sequences lasts 4.8 + 0.2 b ms by default: 5.0 ms at batch 1 (200 tokens/s), 11.2 ms at 32 and
    17.6 ms at 64 (3636 tokens/s: 64 times the batch, 18 times the throughput). Speculation "k=4,p=0.7" accepts
    1 + 0.7 + … + 0.7**4 = 2.773 tokens a step and adds 1.8 + 0.88 b ms to it, so against "off" its decode throughput is
    2.773 * 5.0 / 7.68 = 1.81 times at batch 1, 2.773 * 11.2 / 41.16 = 0.75 times at 32, and equal at a batch of 12.8
    (12.0 for requests of 64 tokens, whose last step is cut: see theory.crossover). Prefill, 2 ms + 0.02 ms per prompt
    token, costs both the same and pulls the ratios a little towards 1.
    """

    port: int = _option(0, "port; 0 takes any free one")
    host: str = _option("127.0.0.1", "address to listen on")
    model: str = _option("sim", "the one model it serves")
    decode_base_ms: float = _option(4.8, "decode step: fixed part, ms")
    decode_ms_per_sequence: float = _option(0.2, "decode step: ms per sequence in the batch")
    prefill_ms_per_token: float = _option(0.02, "prefill step: ms per prompt token")
    prefill_base_ms: float = _option(2.0, "prefill step: fixed part, ms")
    prefill_budget_tokens: int = _option(8192, "most prompt tokens in one prefill step")
    max_batch: int = _option(64, "most sequences at once")
    kv_tokens: int = _option(262_144, "KV space, in tokens (prompt and output) of all running requests")
    speculation: str = _option("off", "off, or k=4,p=0.7[,draft_ms=…][,verify_ms=…]")
    burst: bool = _option(False, "one event per token, in bursts, in place of one event per step")
    natural_tokens: int = _option(0, "mean natural length of answers, which then end with 'stop'; 0: as long as asked")
    api_key_env: str | None = _option(None, "environment variable that holds the key to ask for")
    seed: int = _option(0, "seed of what speculation accepts")
    diverge: float = _option(0.0, "share of prompts whose text turns into another one half way")

    def __post_init__(self) -> None:
        """Raises ValueError, naming the setting."""
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be 0 to 65535, not {self.port}")
        if not self.model:
            raise ValueError("model must have a name")
        if self.natural_tokens < 0:
            raise ValueError(f"natural_tokens must not be negative, not {self.natural_tokens}")
        if not 0 <= self.diverge <= 1:
            raise ValueError(f"diverge must be 0 to 1, not {self.diverge}")

    def engine_config(self) -> EngineConfig:
        """Raises ValueError for settings that cannot be."""
        return EngineConfig(
            prefill_ns_per_token=_ns(self.prefill_ms_per_token),
            prefill_base_ns=_ns(self.prefill_base_ms),
            decode_base_ns=_ns(self.decode_base_ms),
            decode_ns_per_sequence=_ns(self.decode_ms_per_sequence),
            max_batch=self.max_batch,
            kv_capacity_tokens=self.kv_tokens,
            prefill_budget_tokens=self.prefill_budget_tokens,
            speculation=parse_speculation(self.speculation),
            seed=self.seed,
        )

    def arguments(self) -> list[str]:
        """The command-line arguments that stand for these settings."""
        arguments: list[str] = []
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default:
                continue
            flag = "--" + f.name.replace("_", "-")
            arguments.append(flag if f.name == "burst" else f"{flag}={value}")
        return arguments


def parse_speculation(text: str) -> SpeculationConfig | None:
    """`off`, or `k=4,p=0.7[,draft_ms=0.45][,verify_ms=0.22]`: drafted tokens a step, their acceptance, what each costs.

    draft_ms is per drafted token and step, verify_ms per drafted token, step and sequence. Raises ValueError, naming
    what is wrong and the form expected.
    """
    if text.strip() == "off":
        return None
    expected = "expected off, or k=4,p=0.7[,draft_ms=0.45][,verify_ms=0.22]"
    values: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (s.strip() for s in part.partition("="))
        if not equals or name not in ("k", "p", "draft_ms", "verify_ms"):
            raise ValueError(f"speculation {text!r}: {part.strip()!r} is not understood; {expected}")
        if name in values:
            raise ValueError(f"speculation {text!r}: {name} is given twice; {expected}")
        try:
            values[name] = int(number) if name == "k" else float(number)
        except ValueError:
            kind = "a whole number" if name == "k" else "a number"
            raise ValueError(f"speculation {text!r}: {name} must be {kind}; {expected}") from None
    if missing := [name for name in ("k", "p") if name not in values]:
        raise ValueError(f"speculation {text!r}: {' and '.join(missing)} missing; {expected}")
    try:
        return SpeculationConfig(
            draft_tokens=int(values["k"]),
            acceptance=values["p"],
            draft_ns_per_token=_ns(values.get("draft_ms", DRAFT_MS)),
            verify_ns_per_sequence_token=_ns(values.get("verify_ms", VERIFY_MS)),
        )
    except ValueError as error:
        raise ValueError(f"speculation {text!r}: {error}") from None


def _ns(ms: float) -> int:
    if not isfinite(ms):
        raise ValueError(f"{ms} ms is not a duration")
    return round(ms * 1e6)
