"""The event-stream format: the standard's rules by example, any cut and any line ends, and linear work."""

from __future__ import annotations

import json
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpoints.eventstream import EventStreamDecoder, EventTooLarge, ServerEvent


def decode(*blocks: bytes) -> list[tuple[bytes, bytes]]:
    decoder = EventStreamDecoder()
    return [(event.kind, event.data) for block in blocks for event in decoder.feed(block)]


def data_of(*blocks: bytes) -> list[bytes]:
    return [data for _, data in decode(*blocks)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),  # only a leading mark is one
        (b": keep-alive\n\ndata: a\n: between\n\n:\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a \n\n", [b" a "]),  # one space only
        (b"data:\ta\n\n", [b"\ta"]),
        (b"data: a\ndata:b\ndata: c\n\n", [b"a\nb\nc"]),
        (b"data\ndata\n\n", [b"\n"]),
        (b"data\n\n", [b""]),
        (b"data:\n\n", [b""]),
        (b"data: \n\ndata: x\n\n", [b"", b"x"]),
        (b"data: a: b: c\n\n", [b"a: b: c"]),
        (b"id: 7\nretry: 10\nunknown: x\nnonsense\ndata: a\n\n", [b"a"]),
        (b"Data: a\ndata : b\n data: c\n\n", []),  # names are taken literally
        (b"event: ping\n\n", []),
        (b"\n\n\n\ndata: a\n\n\n\n", [b"a"]),
        (b"data: a\n", []),
        (b"data: a\n\ndata: cut", [b"a"]),
        (b"data: a\n\ndata: cut\n", [b"a"]),
        (b"", []),
    ],
)
def test_the_rules_by_example(stream: bytes, events: list[bytes]) -> None:
    assert data_of(stream) == events
    assert data_of(*(stream[i : i + 1] for i in range(len(stream)))) == events
    # Behind a first event, where whole blocks may take the short way.
    if not stream.startswith(b"\xef\xbb\xbf"):
        assert data_of(b"data: first\n\n", stream) == [b"first", *events]


def test_an_event_name_is_for_one_event() -> None:
    assert decode(b"event: error\ndata: x\n\ndata: y\n\n") == [(b"error", b"x"), (b"", b"y")]
    assert decode(b"event: lost\n\ndata: y\n\n") == [(b"", b"y")]  # no data: not dispatched, and forgotten
    assert decode(b"event: a\nevent: b\ndata: y\n\n") == [(b"b", b"y")]
    assert decode(b"data: first\n\nevent: error\n", b"data: x\n\n") == [(b"", b"first"), (b"error", b"x")]


def test_a_cut_mark_is_a_mark_and_half_a_mark_is_none() -> None:
    assert data_of(b"\xef", b"\xbb", b"\xbf", b"data: a\n\n") == [b"a"]
    assert data_of(b"\xef\xbb", b"\xbfdata: a\n\n") == [b"a"]
    assert data_of(b"\xef", b"\xbbdata: a\n\ndata: b\n\n") == [b"b"]  # the first line's name is not "data"


def test_a_line_end_may_be_cut_in_two() -> None:
    assert data_of(b"data: a\r", b"\n\r", b"\ndata: b\r", b"\n\r", b"\n") == [b"a", b"b"]
    assert data_of(b"data: a\r", b"\r", b"data: b\r\r") == [b"a", b"b"]
    # A lone CR ends the event at once: nothing waits for an LF that may never come.
    assert data_of(b"data: a\r\n\r") == [b"a"]


def test_unicode_line_separators_inside_json_are_no_line_ends() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    doc = json.dumps({"text": text}, ensure_ascii=False).encode()
    raw = ("data: " + text + "\n\n").encode()
    assert data_of(b"data: x\n\n", b"data: " + doc + b"\n\n", raw) == [b"x", doc, text.encode()]


# Lines of any content without line ends; fields, comments and nonsense among them.
_CONTENT = st.binary(max_size=12).map(lambda raw: raw.replace(b"\r", b"").replace(b"\n", b""))
_LINES = st.lists(
    st.one_of(
        st.just(b""),
        _CONTENT.map(lambda c: b"data: " + c),
        _CONTENT.map(lambda c: b"data:" + c),
        _CONTENT.map(lambda c: b": " + c),
        st.sampled_from([b"event: error", b"data", b"id: 1", b'data: {"choices":[]}', b"data: \xe2\x80\xa8"]),
        _CONTENT,
    ),
    max_size=25,
)


def reference(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    """The standard's algorithm over whole lines, as plainly as it can be put."""
    events, data, kind = [], b"", b""
    for line in lines:
        if not line:
            if data:
                events.append((kind, data[:-1]))
            data, kind = b"", b""
        elif not line.startswith(b":"):
            name, _, value = line.partition(b":")
            value = value[1:] if value[:1] == b" " else value
            if name == b"data":
                data += value + b"\n"
            elif name == b"event":
                kind = value
    return events


@settings(max_examples=300, deadline=None)
@given(st.data(), _LINES, st.booleans())
def test_any_cut_and_any_line_ends_give_the_same_events(data: st.DataObject, lines: list[bytes], marked: bool) -> None:
    if lines and lines[0].startswith(b"\xef\xbb\xbf"):
        lines[0] = b""
    stream = b"\xef\xbb\xbf" if marked else b""
    for line in lines:
        end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
        # CR then an LF of its own would read as one line end.
        stream += line + (b"\r\n" if end == b"\n" and not line and stream.endswith(b"\r") else end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    blocks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert decode(*blocks) == reference(lines)


def test_one_large_event_in_small_blocks_is_linear_work() -> None:
    """Re-scanning or re-joining what has come at every block would move half a terabyte here, and take minutes."""
    size, step = 16 * 2**20, 256
    event = b"data: " + b"x" * size + b"\n\n"
    decoder = EventStreamDecoder()
    began = time.process_time()
    events: list[ServerEvent] = []
    for at in range(0, len(event), step):
        events += decoder.feed(event[at : at + step])
    assert [len(e.data) for e in events] == [size]
    assert time.process_time() - began < 15


@pytest.mark.timeout(20)
def test_many_events_in_one_block_are_linear_work() -> None:
    assert len(data_of(b"data: {}\r\n\r\n" * 100_000)) == 100_000
    assert len(data_of(b"data: {}\n\n" * 100_000)) == 100_000


@pytest.mark.parametrize(
    "endless",
    [
        [b"data: " + b"x" * 200],
        [b"data: "] + [b"x" * 10] * 20,
        [b"data: x\n"] * 60,
        [b": a comment without an end"] * 10,
        [b"no field at all"] * 10,
    ],
)
def test_an_event_beyond_the_bound_is_refused(endless: list[bytes]) -> None:
    decoder = EventStreamDecoder(max_event_bytes=100)
    assert decoder.feed(b"data: small\n\n") == [ServerEvent(b"small")]
    with pytest.raises(EventTooLarge, match="larger than 100 bytes"):
        for block in endless:
            decoder.feed(block)


def test_the_bound_is_on_one_event_not_on_the_stream() -> None:
    decoder = EventStreamDecoder(max_event_bytes=100)
    for _ in range(50):
        assert decoder.feed(b": " + b"c" * 80 + b"\ndata: " + b"x" * 40) == []
        assert [e.data for e in decoder.feed(b"y\n\n")] == [b"x" * 40 + b"y"]


def test_an_event_of_many_tiny_lines_holds_no_more_than_its_bound() -> None:
    decoder = EventStreamDecoder(max_event_bytes=2**20)
    tracemalloc.start()
    with pytest.raises(EventTooLarge):
        for _ in range(1000):
            decoder.feed(b"data:xx\n" * 1000)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2 * 2**20
