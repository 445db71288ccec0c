"""Coverage-guided fuzzing of the event-stream decoder and of what is made of its events: `make fuzz`.

Any bytes, cut anywhere: the incremental decoder gives what a plain reading of the standard gives on the whole text, and
a reply is never worse than a failure with a class. Arguments are libFuzzer's (`-max_total_time=60`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["endpoints"]):
    from endpoints.dialects import NotAnEvent, interpret, parse
    from endpoints.eventstream import EventStreamDecoder
    from endpoints.outcomes import Outcome
    from endpoints.reply import Reply, WholeReply

SEEDS = Path(__file__).parents[1] / "endpoints" / "streams"


def by_the_standard(text: bytes) -> list[tuple[bytes, bytes]]:
    """(type, data) of every event of a whole text, as the standard's rules read, line by line."""
    text = text.removeprefix(b"\xef\xbb\xbf")
    lines = re.split(rb"\r\n|\n|\r", text)
    events, data, kind = [], [], b""
    for line in lines[:-1]:  # what follows the last line end is no line yet
        if not line:
            if data:
                events.append((kind, b"\n".join(data)))
            data, kind = [], b""
            continue
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value
    return events


def once(given: bytes) -> None:
    provider = atheris.FuzzedDataProvider(given)
    cuts = [provider.ConsumeIntInRange(1, 40) for _ in range(provider.ConsumeIntInRange(0, 12))]
    text = provider.ConsumeBytes(provider.remaining_bytes())
    blocks, at = [], 0
    for cut in cuts:
        blocks.append(text[at : at + cut])
        at += cut
    blocks.append(text[at:])

    decoder = EventStreamDecoder()
    events = [(e.kind, e.data) for block in blocks for e in decoder.feed(block)]
    assert events == by_the_standard(text), (events, by_the_standard(text))

    cut_reply, whole_reply, one_body = Reply(keep_text=True), Reply(keep_text=True), WholeReply(keep_text=True)
    for block in blocks:
        cut_reply.feed(block, 1)
        one_body.feed(block, 1)
    whole_reply.feed(text, 1)
    assert (cut_reply.text, cut_reply.usage, cut_reply.done) == (whole_reply.text, whole_reply.usage, whole_reply.done)
    assert cut_reply.verdict() == whole_reply.verdict()
    assert isinstance(one_body.verdict()[0], Outcome)
    tokens = cut_reply.chunk_tokens()
    assert tokens is None or (len(tokens) == len(cut_reply.chunk_ns) and min(tokens, default=1) > 0)
    for _, data in events:
        try:
            interpret(parse(data))
        except NotAnEvent:
            pass


def main() -> None:
    corpus = Path(sys.argv.pop(1))
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS.glob("*.raw"):
        (corpus / seed.name).write_bytes(b"\x03\x07\x05\x09" + seed.read_bytes().partition(b"\r\n\r\n")[2][:4000])
    atheris.Setup([sys.argv[0], str(corpus), *sys.argv[1:]], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
