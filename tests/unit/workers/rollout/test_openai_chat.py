"""Chat completions: any response is a generation or the one error, and tokens only where all of them are there."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.values import MessagePart
from workers.rollout import openai_chat
from workers.rollout.engine import EngineFault

IMAGE = 5
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "logprobs", "token_ids", "x"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


def completion(**choice: Any) -> Any:
    fields = {
        "message": {"content": "a"},
        "token_ids": [7, 8],
        "logprobs": {"content": [{"logprob": -1}, {"logprob": -0.5}]},
    }
    whole = {"choices": [fields | choice], "prompt_token_ids": [1, 5, 5, 5, 2]}
    return openai_chat.decode(msgspec.json.encode(whole))


@given(st.binary(max_size=200) | JSON.map(msgspec.json.encode))
def test_any_bytes_are_a_completion_or_the_one_error(data: bytes):
    try:
        made = openai_chat.decode(data)
        assert isinstance(openai_chat.text_of(made, 9), str)
        assert isinstance(openai_chat.sampled_tokens(made, IMAGE), openai_chat.SampledTokens | str)
    except EngineFault as fault:
        assert str(fault)


@given(st.binary(max_size=100) | JSON.map(msgspec.json.encode))
def test_any_list_of_models_gives_a_context_or_none(data: bytes):
    assert openai_chat.context_of(data, "m") is None


@pytest.mark.parametrize(
    ("entry", "context"),
    [({"id": "m", "max_model_len": 512}, 512), ({"id": "m"}, None), ({"id": "other", "max_model_len": 512}, None)],
)
def test_the_context_is_that_of_the_model_itself(entry: dict[str, Any], context: int | None):
    assert (
        openai_chat.context_of(msgspec.json.encode({"data": [{"id": "x", "object": "model"}, entry]}), "m") == context
    )


def test_tokens_and_log_probabilities_are_taken_if_each_is_there():
    assert openai_chat.sampled_tokens(completion(), IMAGE) == openai_chat.SampledTokens([7, 8], [-1.0, -0.5], [1, 5, 2])


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"token_ids": None}, "no token ids"),
        ({"token_ids": []}, "no token ids"),
        ({"logprobs": None}, "no log-probabilities"),
        ({"logprobs": {"content": None}}, "no log-probabilities"),
        ({"logprobs": {"content": [{"logprob": -1}]}}, "2 token ids and 1 log-probabilities"),
        ({"logprobs": {"content": [{"logprob": -1}, {"logprob": 0.5}]}}, "invalid log-probabilities"),
        ({"token_ids": [7, -8]}, "invalid token ids"),
        ({"token_ids": [7, 2**40]}, "invalid token ids"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_says_why(choice, reason):
    assert reason in openai_chat.sampled_tokens(completion(**choice), IMAGE)


@given(st.lists(st.integers(0, 9), max_size=20), st.lists(st.integers(1, 5), min_size=20, max_size=20))
def test_collapsing_undoes_the_expansion_of_images_that_something_parts(tokens: list[int], counts: list[int]):
    """An image's tokens never touch those of the next one: there are marks around each."""
    token_ids = [token for index, token in enumerate(tokens) if token != IMAGE or index % 2]
    token_ids = [t for i, t in enumerate(token_ids) if t != IMAGE or not i or token_ids[i - 1] != IMAGE]
    expanded = [t for t, n in zip(token_ids, counts, strict=False) for _ in range(n if t == IMAGE else 1)]
    assert openai_chat.collapse_images(expanded, IMAGE) == token_ids


def test_instructions_join_the_system_message_and_turns_of_a_role_are_one():
    user = MessagePart(role="user", text="Do it.")
    system = MessagePart(role="system", text="You use a computer.")
    [first, rest] = openai_chat.add_instructions([system, user], "Screen {width}x{height}: {other}", "native", 3, 4)
    assert (first.text, rest) == ("You use a computer.\n\nScreen 3x4: {other}", user)
    assert [turn.role for turn in openai_chat.add_instructions([user], "", "native", 3, 4)] == ["system", "user"]
    turns = [
        MessagePart(role="user", text="a"),
        MessagePart(role="user", text="b"),
        MessagePart(role="assistant", text="c"),
    ]
    assert [(m["role"], len(m["content"])) for m in openai_chat.chat_messages(turns, {})] == [
        ("user", 2),
        ("assistant", 1),
    ]


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        (None, None, None),
        ("3", None, 3.0),
        ("0.5", None, 0.5),
        ("-3", None, 0.0),
        ("inf", None, None),
        ("nan", None, None),
        ("soon", None, None),
        ("Tue, 24 Nov 2026 10:00:30 GMT", "Tue, 24 Nov 2026 10:00:00 GMT", 30.0),
        ("Tue, 24 Nov 2026 09:00:30 GMT", "Tue, 24 Nov 2026 10:00:00 GMT", 0.0),
        ("Tue, 24 Nov 2026 10:00:30 GMT", None, None),
        ("Tue, 24 Nov 2026 10:00:30 GMT", "nonsense", None),
    ],
)
def test_a_time_to_wait_until_counts_from_the_endpoints_own_clock(value, date, seconds):
    assert openai_chat.retry_after_s(value, date) == seconds


@given(st.text(max_size=40), st.none() | st.text(max_size=40))
def test_any_header_is_a_duration_or_none(value: str, date: str | None):
    found = openai_chat.retry_after_s(value, date)
    assert found is None or found >= 0
