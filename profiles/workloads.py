"""Workloads: the prompts of a sweep, shipped ready-made or the user's own."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiles.errors import ProfileError, did_you_mean
from profiles.files import read_text
from profiles.models import Compose, WorkloadFile
from profiles.validating import validate
from profiles.yamltext import parse

if TYPE_CHECKING:
    from profiles.loading import ResolvedWorkload

HERE = Path(__file__).parent
LARGEST_PROMPTS = 256 << 20  # bytes
LARGEST_WORKLOAD = 1 << 20  # bytes
ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Message:
    role: str  # system | developer | user | assistant
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's messages, the last of them the user's."""

    id: str
    category: str
    messages: tuple[Message, ...]

    @property
    def text(self) -> str:
        """All messages as one text: what a completions endpoint is sent, and what tells prompts apart."""
        return "\n\n".join(message.content for message in self.messages)

    def with_system(self, system: str | None) -> tuple[Message, ...]:
        """The messages with the workload's system message first, unless the prompt brings its own."""
        if system is None or self.messages[0].role in ("system", "developer"):
            return self.messages
        return (Message("system", system), *self.messages)


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """A row of `endsweep profiles`."""

    name: str
    description: str
    prompts: int
    categories: tuple[str, ...]
    max_tokens: int


def ready_names() -> tuple[str, ...]:
    """The names of the ready-made workloads."""
    return tuple(sorted(path.stem for path in (HERE / "workloads").glob("*.yaml")))


def ready_path(name: str) -> Path:
    """The file of a ready-made workload."""
    return HERE / "workloads" / f"{name}.yaml"


def list_ready() -> tuple[ReadyMade, ...]:
    """What is shipped."""

    def row(name: str) -> ReadyMade:
        file = load_workload(ready_path(name))
        prompts = _prompts_of(ready_path(name))
        categories = tuple(sorted({prompt.category for prompt in prompts}))
        return ReadyMade(name, file.description, len(prompts), categories, file.max_tokens)

    return tuple(map(row, ready_names()))


def load_workload(path: Path) -> WorkloadFile:
    """The workload file at `path`. Raises ProfileError."""
    document = parse(read_text(path, LARGEST_WORKLOAD), str(path))
    if not isinstance(document, dict):
        raise ProfileError(str(path), None, "this is not a workload", "start from `endsweep profiles new workload`")
    return validate(WorkloadFile, document, lambda below: (str(path), ".".join(below) or None))


def load_prompts(workload: ResolvedWorkload) -> tuple[Prompt, ...]:
    """Every prompt of `workload`, in the order of its files; two different ones at least. Raises ProfileError."""
    return _prompts_of(workload.prompts_source)


def split(prompts: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """(measured, warmup): a tenth of the texts, at least one, kept apart for warmup, each in the order of `prompts`.

    No text is in both. Within a category the texts are ordered by a hash and taken at even distances; a category of
    two texts or more is in both parts, as far as a tenth goes round (the largest categories first).
    """
    by_text: dict[str, Prompt] = {}
    for prompt in prompts:
        by_text.setdefault(prompt.text, prompt)
    if len(by_text) < 2:
        raise ValueError("a split needs two different prompts")
    sizes = Counter(prompt.category for prompt in by_text.values())
    pools: dict[str, list[str]] = defaultdict(list)
    for text, prompt in by_text.items():
        # Categories of a single text cannot be in both parts: together they are one pool, under a name none can have.
        pools[prompt.category if sizes[prompt.category] > 1 else ""].append(text)
    warm: set[str] = set()
    for category, share in _shares(
        {name: len(pool) for name, pool in pools.items()}, max(1, len(by_text) // 10)
    ).items():
        ordered = sorted(pools[category], key=_digest)
        warm |= {ordered[(2 * place + 1) * len(ordered) // (2 * share)] for place in range(share)}
    return (
        tuple(prompt for prompt in prompts if prompt.text not in warm),
        tuple(prompt for prompt in prompts if prompt.text in warm),
    )


def _shares(sizes: Mapping[str, int], wanted: int) -> dict[str, int]:
    """How many of `wanted` come from each pool: one from each real category, largest first, then as size says."""
    total = sum(sizes.values())
    covered = sorted((name for name in sizes if name), key=lambda name: (-sizes[name], name))[:wanted]
    shares = dict.fromkeys(sizes, 0) | dict.fromkeys(covered, 1)
    queue = [(shares[name] - wanted * sizes[name] / total, name) for name in sizes]
    heapq.heapify(queue)
    for _ in range(wanted - len(covered)):  # as a tenth is wanted, the pool furthest behind never runs dry
        due, name = heapq.heappop(queue)
        shares[name] += 1
        heapq.heappush(queue, (due + 1, name))
    return {name: share for name, share in shares.items() if share}


def workload_hash(prompts: Iterable[Prompt], workload: ResolvedWorkload) -> str:
    """SHA-256, in hex, over everything that decides what is sent.

    That is: messages in order, categories (they decide the split), length, salt, system message and sampling; not
    names, ids and paths.
    """
    sent = {
        "max_tokens": workload.max_tokens,
        "salt": workload.salt,
        "system": workload.system,
        "sampling": workload.sampling,
        "prompts": [[prompt.category, [[m.role, m.content] for m in prompt.messages]] for prompt in prompts],
    }
    return _digest(json.dumps(sent, sort_keys=True, separators=(",", ":")))


def _prompts_of(source: Path) -> tuple[Prompt, ...]:
    if source.suffix not in (".yaml", ".yml"):
        return _checked(_prompts_in(source), source)
    file = load_workload(source)
    listed = [prompt for name in file.prompts for prompt in _prompts_in(_beside(source, name))]
    return _checked([*listed, *(_composed(file.compose, source) if file.compose else ())], source)


def _beside(source: Path, name: str) -> Path:
    """A workload file names files beside itself, or shipped ones."""
    near = source.parent / name
    shipped = HERE / "prompts" / name
    return shipped if not near.exists() and shipped.exists() else near


def _checked(prompts: Sequence[Prompt], source: Path) -> tuple[Prompt, ...]:
    if len({prompt.text for prompt in prompts}) < 2:
        raise ProfileError(str(source), None, "there are fewer than two different prompts", "add prompts, one a line")
    twice = [name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1]
    if twice:
        raise ProfileError(
            str(source), None, f'the id "{twice[0][:80]}" is given twice', "give every prompt its own id"
        )
    return tuple(prompts)


def _prompts_in(path: Path) -> list[Prompt]:
    return [_prompt(line, path, number) for number, line in _lines(path, ("id", "category", "prompt", "messages"))]


def _prompt(line: dict[str, Any], path: Path, number: int) -> Prompt:
    fault = _fault_at(path, number)
    if ("prompt" in line) == ("messages" in line):
        raise fault("it needs either prompt or messages", "keep one of them")
    if "prompt" in line:
        messages: tuple[Message, ...] = (Message("user", _text(line, "prompt", fault)),)
    else:
        given = line["messages"]
        if not isinstance(given, list) or not given or not all(isinstance(message, dict) for message in given):
            raise fault("messages should be a list of objects", 'write [{"role": "user", "content": "…"}]')
        messages = tuple(_message(message, fault) for message in given)
        if messages[-1].role != "user":
            raise fault("the last message is not the user's", "end with a message of the role user")
    return Prompt(
        _text(line, "id", fault) if "id" in line else f"{path.stem}-{number}",
        _text(line, "category", fault) if "category" in line else "general",
        messages,
    )


def _message(message: dict[str, Any], fault: Callable[[str, str], ProfileError]) -> Message:
    if set(message) != {"role", "content"}:
        raise fault("a message needs exactly role and content", "write both, as text")
    if message["role"] not in ROLES:
        raise fault("a message has an unknown role", f"use one of: {', '.join(ROLES)}")
    return Message(message["role"], _text(message, "content", fault))


def _composed(compose: Compose, source: Path) -> Iterator[Prompt]:
    """`compose.count` different prompts, always the same ones: the categories take turns, so do the first passages of
    each (a shared beginning could be cached), and a hash chooses the rest."""
    passages_file, questions_file = _beside(source, compose.passages), _beside(source, compose.questions)
    passages: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for number, line in _lines(passages_file, ("id", "category", "text")):
        fault = _fault_at(passages_file, number)
        row = (_text(line, "id", fault), _text(line, "text", fault))
        passages[_text(line, "category", fault)].append(row)
    questions: list[tuple[str, str, str]] = []
    for number, line in _lines(questions_file, ("id", "category", "prompt")):
        fault = _fault_at(questions_file, number)
        questions.append((_text(line, "id", fault), _text(line, "category", fault), _text(line, "prompt", fault)))
    usable = {
        category: (rows, fitting)
        for category, rows in sorted(passages.items())
        if len(rows) >= compose.per_prompt
        and (fitting := [question for question in questions if question[1] in ("any", category)])
    }
    if not usable:
        problem = f"no category has {compose.per_prompt} passages and a question"
        raise ProfileError(str(source), "compose", problem, "lower per_prompt, or add passages")
    seen: set[str] = set()
    for index in range(compose.count):
        category = list(usable)[index % len(usable)]
        rows, fitting = usable[category]
        first = rows[index // len(usable) % len(rows)]
        for attempt in range(200):

            def chance(row: tuple[str, ...], key: str = f"{index}/{attempt}") -> str:
                return _digest(f"{key}/{row[0]}")

            others = sorted((row for row in rows if row is not first), key=chance)[: compose.per_prompt - 1]
            question = min(fitting, key=chance)
            text = "\n\n".join([first[1], *(row[1] for row in others), question[2]])
            if text not in seen:
                break
        else:
            problem = f"the parts give only about {len(seen)} different prompts"
            raise ProfileError(str(source), "compose.count", problem, "lower count, or add passages or questions")
        seen.add(text)
        yield Prompt(f"{source.stem}-{index + 1:04d}", category, (Message("user", text),))


def _lines(path: Path, known: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with their line numbers, from 1. Raises ProfileError on a bad line."""
    for number, line in enumerate(read_text(path, LARGEST_PROMPTS).split("\n"), start=1):
        if not line.strip():
            continue
        fault = _fault_at(path, number)
        try:
            value = json.loads(line, object_pairs_hook=_without_doubles)
        except (ValueError, RecursionError):
            raise fault("it is not a JSON object with distinct keys", 'write {"prompt": "…"} on one line') from None
        if not isinstance(value, dict):
            raise fault("it is not a JSON object", 'write {"prompt": "…"} on one line')
        for key in value:
            if key not in known:
                raise fault(f'there is no key "{key[:80]}"', did_you_mean(key, known))
        yield number, value


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def _text(line: Mapping[str, Any], key: str, fault: Callable[[str, str], ProfileError]) -> str:
    value = line.get(key)
    if not isinstance(value, str) or not value.strip():
        raise fault(f"{key} should be text that is not empty", "fill it in, in quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise fault(f"{key} holds half of a surrogate pair", "write the character itself") from None
    return value


def _fault_at(path: Path, number: int) -> Callable[[str, str], ProfileError]:
    return lambda problem, remedy: ProfileError(str(path), f"line {number}", problem, remedy)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
