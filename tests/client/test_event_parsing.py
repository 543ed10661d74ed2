"""Server-sent events as bytes become typed events, however they are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shelld_py.client import Gap, Output, UnknownAnswer
from shelld_py.client.events import Event, follow_known
from shelld_py.models import Stream

STREAM = (
    'event: output\nid: 5\ndata: {"stream":"stdout","cursor":5,"text":"a\\nä€𝄞"}\n\n'
    ": a comment\n\n"
    "event: news\ndata: {}\n\n"
    'event: gap\r\ndata: {"stream":"stderr",\r\ndata: "cursor":5,"dropped":7}\r\n\r\n'
    'event:output\ndata:{"stream":"stdout","cursor":9,"text":"","more":1}\n\n'
    'event: output\ndata: {"stream":"stdout","cursor":10,"te'
).encode()
EVENTS: list[Event] = [
    Output(stream=Stream.STDOUT, cursor=5, text="a\nä€𝄞"),
    Gap(stream=Stream.STDERR, cursor=5, dropped=7),
    Output(stream=Stream.STDOUT, cursor=9, text=""),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_may_be_cut_anywhere(cuts: list[int]) -> None:
    """Comments, unknown kinds and unknown members are passed over; what is not complete is no event yet."""
    following = follow_known("/runs", "run")
    places = [0, *sorted(cuts), len(STREAM)]
    events = [event for a, b in pairwise(places) for event in following.feed(STREAM[a:b])]
    assert events == EVENTS
    assert not following.done


def test_reading_goes_on_behind_the_last_complete_event() -> None:
    following = follow_known("/runs", "run", timeout=5)
    following.opened()
    list(following.feed(STREAM))
    call = following.call()
    following.opened()
    params = dict(call.params)
    assert (call.path, params["cursor"], params["stderr_cursor"]) == ("/runs/run/output", "9", "12")
    assert 0 < float(params["timeout"]) <= 5
    assert list(following.feed(b'xt":"x"}\n\n')) == [], "the rest of a broken answer is no part of the next"


@pytest.mark.parametrize("data", ["{}", "[]", "no JSON", '{"stream":"x","cursor":1,"text":""}'])
def test_an_event_that_is_none(data: str) -> None:
    with pytest.raises(UnknownAnswer):
        list(follow_known("/runs", "run").feed(f"event: output\ndata: {data}\n\n".encode()))
