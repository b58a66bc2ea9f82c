"""The openai engine and endpoints that misbehave: a reason each, and nothing twice that may have been computed."""

import asyncio
import base64
import io
from unittest.mock import Mock

import msgspec
import pytest
from PIL import Image

from console.launch.services.daemon import free_port
from dart_streams.actions import dialects
from dart_streams.config import Config, parse
from dart_streams.deadline import Deadline
from dart_streams.errors import AccessRefused, ConfigError, ServiceUnavailable, UserError
from tests import events
from tests.unit.workers.rollout.misbehaving import Answer, Hang, chat, says, served, truncates, writes
from topics.action_requests import ActionRequest
from topics.values import BlobRef, MessagePart, Sampling
from workers.rollout import openai_chat, openai_endpoint
from workers.rollout.engine import EngineFault, Generation
from workers.rollout.main import FIXED
from workers.rollout.openai_chat import NEUTRAL
from workers.rollout.openai_engine import OpenaiEngine

KEY = "sk-secret-of-the-test"
WIDTH, HEIGHT = 400, 300


def png(width: int = WIDTH, height: int = HEIGHT) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), "white").save(stream, "PNG")
    return stream.getvalue()


async def read(ref: BlobRef) -> bytes:
    return png() if ref.sha256 == "screen" else b"no image"


def request(image: str = "screen", **sampling) -> ActionRequest:
    return events.action_request(
        turns=[
            MessagePart(role="system", text="You use a computer."),
            MessagePart(role="user", text="Click it."),
            MessagePart(role="assistant", text="Action: wait()"),
            MessagePart(role="user", image=BlobRef(sha256=image, size=1, width=WIDTH, height=HEIGHT)),
        ],
        sampling=Sampling(**sampling),
    )


def config(url: str, within_s: float = 60.0, policy: dict | None = None, **fields) -> Config:
    openai = {"base_url": url, "model": "m", "api_key": "env:TEST_OPENAI_KEY", **fields}
    return parse(
        {
            "rollout": {"engine": "openai", "openai": openai},
            "run": {"minutes": 0},
            "env": {"request_timeout_s": within_s},
            "policy": policy or {},
        }
    )


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_OPENAI_KEY", KEY)
    monkeypatch.setattr(openai_endpoint, "FIRST_PAUSE_S", 0.01)


async def answered(url: str, within_s: float = 60.0, asked: ActionRequest | None = None, **fields) -> Generation:
    """Return what an engine that has started already gets."""
    engine = OpenaiEngine(config(url, within_s, **fields), read)
    async with engine.endpoint:
        return await engine.generate(asked or request())


async def test_a_good_answer_is_its_text_without_tokens():
    async with served(says(chat("Action: click(start_box='(3,4)')"))) as endpoint:
        made = await answered(endpoint.url, asked=request(temperature=0.5, top_p=0.9, max_tokens=77))
    assert made.text == "Action: click(start_box='(3,4)')"
    assert (made.tokens, made.logprobs, made.versions, made.prompt_sha, made.prompt_tokens) == ([], [], [], "", 7)
    [body] = endpoint.bodies
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("m", 0.5, 0.9, 77)
    assert {name: body[name] for name in NEUTRAL} == NEUTRAL, "a server fills in what is left out"
    assert not {"logprobs", "return_token_ids", "logit_bias", "stream"} & body.keys(), (
        "hosted models refuse unknown fields"
    )
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]


async def test_an_image_is_sent_as_the_policy_would_see_it_and_its_size_is_said():
    """Answers are in pixels of the policy's image: that is what the model has to be shown."""
    async with served(says(chat())) as endpoint:
        await answered(endpoint.url)
    [body] = endpoint.bodies
    url = body["messages"][-1]["content"][0]["image_url"]["url"]
    head, _, data = url.partition(",")
    assert head == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert image.size == (392, 308)
    assert "392 x 308 pixels" in body["messages"][0]["content"][0]["text"]


async def test_options_extend_the_body_and_may_rename_the_token_limit():
    async with served(says(chat())) as endpoint:
        await answered(endpoint.url, options={"max_completion_tokens": 9, "reasoning_effort": "low"})
    [body] = endpoint.bodies
    assert (body["max_completion_tokens"], body["reasoning_effort"], "max_tokens" in body) == (9, "low", False)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_request_that_was_not_taken_is_sent_again(status):
    async with served(says({}, status), says({}, status), says(chat("Action: wait()"))) as endpoint:
        made = await answered(endpoint.url)
    assert made.text == "Action: wait()"
    assert len(endpoint.bodies) == 3


async def test_what_the_endpoint_asks_to_wait_is_waited_by_every_request(monkeypatch):
    cancelled = asyncio.Event()

    def retry_after_s(*headers: str | None) -> float | None:
        cancelled.set()
        return openai_chat.retry_after_s(*headers)

    monkeypatch.setattr(openai_endpoint, "retry_after_s", retry_after_s)
    async with served(says({}, 429, Retry_After="0.5"), says(chat())) as endpoint:
        engine = OpenaiEngine(config(endpoint.url), read)
        async with engine.endpoint, asyncio.timeout(60):
            first = asyncio.ensure_future(engine.generate(request()))
            await cancelled.wait()
            await asyncio.gather(first, *(engine.generate(request()) for _ in range(3)))
    assert len(endpoint.times_s) == 5
    assert min(endpoint.times_s[1:]) - endpoint.times_s[0] >= 0.49


async def test_a_wait_longer_than_the_request_has_is_an_error_at_once():
    async with served(says({"error": "slow down"}, 429, Retry_After="3600"), says(chat())) as endpoint:
        async with asyncio.timeout(60):
            with pytest.raises(EngineFault, match=r"429.*slow down.*3600"):
                await answered(endpoint.url)
    assert len(endpoint.bodies) == 1


async def test_after_a_long_wait_one_request_tries_the_endpoint_again(monkeypatch):
    monkeypatch.setattr(openai_endpoint, "MOST_ASKED_S", 0.3)
    limit = says({}, 429, Retry_After="86400")
    async with served(limit, limit, says(chat())) as endpoint:
        engine = OpenaiEngine(config(endpoint.url), read)
        async with engine.endpoint, asyncio.timeout(60):
            with pytest.raises(EngineFault, match=r"asks to wait|answered 429"):
                await engine._ask([], {}, Sampling(), Deadline(0.2))
            await asyncio.gather(*(engine.generate(request()) for _ in range(3)))
            await engine.generate(request())
    assert len(endpoint.times_s) == 6
    assert min(endpoint.times_s[n] - endpoint.times_s[n - 1] for n in (1, 2)) >= 0.29, "the others wait for the one"


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "slow down", "code": 429}},
        {"error": {"message": "slow down", "code": "503"}, "choices": []},
        {"error": {"message": "slow down", "type": "rate_limit_error"}},
        {"error": {"message": "slow down", "code": "rate_limit_exceeded"}},
        {"error": {"message": "slow down", "type": "overloaded_error"}},
        {"object": "error", "message": "slow down", "code": 429, "note": "error"},
        {"choices": [{"finish_reason": "error", "error": {"code": 429, "message": "slow down"}}]},
    ],
    ids=str,
)
async def test_a_refusal_of_status_200_is_waited_for_as_its_code_says(error):
    async with served(says(error), says(chat())) as endpoint:
        assert (await answered(endpoint.url)).text == "Action: wait()"
    assert len(endpoint.bodies) == 2


async def test_a_rate_limit_without_end_is_an_error_before_the_deadline(monkeypatch):
    monkeypatch.setattr(openai_endpoint, "pause_s", lambda tried: 0.01 if tried < 3 else 3600.0)
    async with served(says({}, 429)) as endpoint:
        with pytest.raises(EngineFault, match="answered 429"):
            await answered(endpoint.url, within_s=600.0)
    assert len(endpoint.bodies) == 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (says({"error": {"message": "out of memory"}}, 500), "500.*out of memory"),
        (says({}, 502), "502"),
        (says({}, 504), "504"),
        (says({"error": "context too long"}, 400), "400.*context too long"),
        (says({}, 301, Location="http://127.0.0.1:9/v1"), "301"),
        (says({"error": {"message": "no memory", "code": 500}, "choices": []}), "500.*no memory"),
        (says({"error": "no memory", "id": "1"}), "no memory"),
        (says({"error": {"message": "too long", "code": 400}}), "400.*too long"),
        (says({"choices": [{"error": {"message": "no memory", "code": 502}}]}), "502.*no memory"),
        (
            says({"choices": [{"message": {"content": "A"}, "error": {"message": "slow", "code": 429}}]}),
            "500.*slow",
        ),
        (truncates, "failed: "),
        (writes(b""), "not a chat completion"),
        (writes(b"<html>Gateway</html>"), "not a chat completion"),
        (writes(b'{"choices": []}'), "no choices"),
        (writes(b'{"choices": [{"message": {"content": 5}}]}'), "not a chat completion"),
        (writes(b'{"choices": [{"message": {"content": "\xff"}}]}'), "not a chat completion"),
        (writes(b"[" * 100_000), "not a chat completion"),
        (says(chat("x" * (2**20 + 1))), "more than 1048576"),
        (writes(b" " * (openai_endpoint.MAX_RESPONSE_BYTES + 1)), "more than 16 MiB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_request_that_may_have_been_computed_is_never_sent_again(answer: Answer, reason: str):
    async with served(answer, says(chat())) as endpoint:
        with pytest.raises(EngineFault, match=reason):
            await answered(endpoint.url)
    assert len(endpoint.bodies) == 1


async def test_an_endpoint_that_hangs_costs_the_time_of_the_request_and_no_more(monkeypatch):
    hang, loop = Hang(), asyncio.get_running_loop()
    async with served(hang, says(chat())) as endpoint, asyncio.timeout(300):
        asked = asyncio.ensure_future(answered(endpoint.url, within_s=60.0))
        await hang.asked.wait()
        monkeypatch.setattr(loop, "time", lambda time=loop.time: time() + 60.0)
        with pytest.raises(EngineFault, match="in time"):
            await asked
        await hang.left.wait()
    assert len(endpoint.bodies) == 1


async def test_a_request_that_is_given_up_is_closed_at_the_endpoint():
    """Past its own deadline the server cancels it: the endpoint must not go on computing it."""
    hang = Hang()
    async with served(hang) as endpoint, asyncio.timeout(60):
        asked = asyncio.ensure_future(answered(endpoint.url))
        await hang.asked.wait()
        asked.cancel()
        await hang.left.wait()
        with pytest.raises(asyncio.CancelledError):
            await asked


async def test_an_unreachable_endpoint_is_retried_until_the_deadline(monkeypatch):
    monkeypatch.setattr(openai_endpoint, "pause_s", pause := Mock(side_effect=[0.01, 0.01, 3600.0]))
    with pytest.raises(EngineFault, match="no connection"):
        await answered(f"http://127.0.0.1:{free_port()}/v1", within_s=600.0)
    assert pause.call_count == 3


async def test_an_endpoint_that_comes_back_is_reached_by_a_request_that_waited():
    port = free_port()
    engine = OpenaiEngine(config(f"http://127.0.0.1:{port}/v1"), read)
    async with engine.endpoint, asyncio.timeout(60):
        waiting = asyncio.ensure_future(engine.generate(request()))
        async with served(says(chat("Action: wait()")), port=port):
            assert (await waiting).text == "Action: wait()"


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_key_or_model_that_is_refused_ends_the_start_and_fails_a_request(status):
    quoted = {"error": {"message": f"Incorrect API key provided: {KEY}. And again {KEY}"}}
    async with served(says(quoted, status)) as endpoint:
        engine = OpenaiEngine(config(endpoint.url), read)
        with pytest.raises(AccessRefused, match=r"rollout\.openai\.base_url.*rollout\.openai\.api_key") as refused:
            await engine.start(FIXED)
        await engine.stop()
        with pytest.raises(EngineFault) as failed:
            await answered(endpoint.url)
    for error in (refused, failed):
        assert KEY not in str(error.value)
        assert "***" in str(error.value)


async def test_an_endpoint_that_fails_ends_the_start_with_its_reason():
    async with served(says({"error": "no images here"}, 400)) as endpoint:
        engine = OpenaiEngine(config(endpoint.url), read)
        with pytest.raises(ServiceUnavailable, match=r"rollout\.openai: .*no images here"):
            await engine.start(FIXED)
        await engine.stop()


@pytest.mark.parametrize("status", [400, 422])
async def test_rejected_sampling_parameters_are_left_out(status):
    """OpenAI's own models do, and sample neutrally of themselves."""
    rejection = says({"error": {"message": "Unrecognized request argument supplied: top_k"}}, status)
    async with served(rejection, says(chat())) as endpoint:
        engine = OpenaiEngine(config(endpoint.url), read)
        await engine.start(FIXED)
        await engine.generate(request(temperature=0.5))
        await engine.stop()
    first, *others = endpoint.bodies
    assert first.keys() >= NEUTRAL.keys()
    assert [body.keys() & NEUTRAL.keys() for body in others] == [set(), set()]
    assert others[-1]["temperature"] == 0.5


async def test_a_rejection_after_the_start_is_an_error_of_its_request_alone():
    async with served(says(chat()), says({"error": "no"}, 400), says(chat())) as endpoint:
        engine = OpenaiEngine(config(endpoint.url), read)
        await engine.start(FIXED)
        with pytest.raises(EngineFault, match="answered 400"):
            await engine.generate(request())
        await engine.generate(request())
        await engine.stop()
    assert endpoint.bodies[-1].keys() >= NEUTRAL.keys()


async def test_a_dialects_instructions_stand_alone_in_separate_messages():
    said = dialects.UiTars().system_messages("Click it.", dialects.View(WIDTH, HEIGHT))
    screen = BlobRef(sha256="screen", size=1, width=WIDTH, height=HEIGHT)
    turns = [MessagePart(role=role, text=text, separate=True) for role, text in said]
    turns.append(MessagePart(role="user", image=screen, separate=True))
    asked = msgspec.structs.replace(request(), turns=turns)
    async with served(says(chat())) as endpoint:
        dialect = {"name": "ui-tars"}
        engine = OpenaiEngine(config(endpoint.url, policy={"dialect": dialect, "max_tokens": 400}), read)
        async with engine.endpoint:
            await engine.generate(asked)
    sent = [
        (message["role"], [part.get("text") for part in message["content"]])
        for message in endpoint.bodies[0]["messages"]
    ]
    assert sent == [(role, [text]) for role, text in said] + [("user", [None])]


async def test_instructions_of_the_configuration_are_added_to_a_dialects_own():
    async with served(says(chat())) as endpoint:
        policy = {"dialect": {"name": "computer_13"}, "max_tokens": 400}
        engine = OpenaiEngine(config(endpoint.url, policy=policy, instructions="Of {width} pixels."), read)
        async with engine.endpoint:
            await engine.generate(request())
    assert endpoint.bodies[0]["messages"][0]["content"][0]["text"] == "You use a computer.\n\nOf 392 pixels."


ANSWER = "Action: wait()"


@pytest.mark.parametrize(
    ("message", "choice", "usage", "reason"),
    [
        ({"content": ANSWER}, {"finish_reason": "content_filter"}, {}, "content_filter.*its content filter"),
        ({"content": None}, {"finish_reason": "content_filter"}, {}, "content_filter"),
        ({"content": None, "tool_calls": [{"id": "1"}]}, {"finish_reason": "tool_calls"}, {}, "tool parser"),
        ({"content": "I click.", "tool_calls": [{"id": "1"}]}, {"finish_reason": "stop"}, {}, "tool parser"),
        ({"content": ""}, {"finish_reason": "function_call"}, {}, "function_call"),
        ({"content": ANSWER}, {"finish_reason": "abort"}, {}, "aborted the answer"),
        ({"content": ANSWER}, {"finish_reason": "error"}, {}, "'error'"),
        ({"content": ANSWER}, {"finish_reason": "insufficient_system_resource"}, {}, "insufficient_system_resource"),
        ({"content": "Thought"}, {"finish_reason": "model_length"}, {}, "context is full"),
        ({"content": "Thought"}, {"finish_reason": "length"}, {"completion_tokens": 7}, "7 tokens of 77"),
        ({"content": None, "reasoning": "I"}, {"finish_reason": "length"}, {"completion_tokens": 77}, "all 77 tokens"),
        ({"content": "", "reasoning_content": "I"}, {"finish_reason": "stop"}, {}, "reasoning or hidden"),
        ({"content": ""}, {"finish_reason": "stop"}, {"completion_tokens": 40}, "all 40 tokens"),
        ({"content": ""}, {"finish_reason": "length"}, {}, "reasoning or hidden"),
        ({"content": None}, {}, {}, "reasoning or hidden"),
    ],
)
async def test_removed_hidden_or_aborted_answers_are_endpoint_faults(message, choice, usage, reason):
    said = {"choices": [{"message": message, **choice}], "usage": {"prompt_tokens": 7, **usage}}
    async with served(says(said)) as endpoint:
        with pytest.raises(EngineFault, match=reason):
            await answered(endpoint.url, asked=request(max_tokens=77))


@pytest.mark.parametrize(
    ("message", "choice", "usage", "text"),
    [
        ({"content": None, "refusal": "I can't do that."}, {"finish_reason": "stop"}, {}, "I can't do that."),
        ({"content": ""}, {"finish_reason": "stop"}, {"completion_tokens": 1}, ""),
        ({"content": None}, {"finish_reason": "stop"}, {}, ""),
        ({"content": "Thought: so"}, {"finish_reason": "length"}, {"completion_tokens": 77}, "Thought: so"),
        ({"content": "Thought: so"}, {"finish_reason": "length"}, {}, "Thought: so"),
        ({"content": ANSWER, "reasoning": "I think."}, {"finish_reason": "stop"}, {"completion_tokens": 9}, ANSWER),
        ({"content": ANSWER, "tool_calls": []}, {"finish_reason": "eos"}, {}, ANSWER),
        ({"content": ANSWER}, {}, {}, ANSWER),
    ],
)
async def test_what_the_model_said_is_its_answer_right_or_wrong(message, choice, usage, text):
    said = {"choices": [{"message": message, **choice}], "usage": {"prompt_tokens": 7, **usage}}
    async with served(says(said)) as endpoint:
        assert (await answered(endpoint.url, asked=request(max_tokens=77))).text == text


async def test_the_trial_prompt_is_the_longest_prompt_of_the_policy():
    async with served(says(chat())) as endpoint:
        policy = {"max_images": 3, "dialect": {"name": "computer_13"}, "max_tokens": 400}
        engine = OpenaiEngine(config(endpoint.url, policy=policy), read)
        await engine.start(FIXED)
        await engine.stop()
    [body] = endpoint.bodies
    parts = [part for message in body["messages"] for part in message["content"]]
    assert sum(part["type"] == "image_url" for part in parts) == 3
    assert all(part["text"] for part in parts if part["type"] == "text"), "some endpoints refuse an empty text"
    assert "MOVE_TO" in parts[0]["text"]


@pytest.mark.parametrize(("context", "starts"), [(None, True), (207, True), (206, False)])
async def test_a_context_without_room_for_a_prompt_and_its_answer_ends_the_start(context, starts):
    """Here a prompt has 7 tokens. vLLM's server would cut the answer short, one of a few tokens unnoticed."""
    async with served(says(chat())) as endpoint:
        endpoint.context = context
        engine = OpenaiEngine(config(endpoint.url, policy={"max_tokens": 200}), read)
        if starts:
            await engine.start(FIXED)
        else:
            with pytest.raises(UserError, match=r"need 207 tokens, but the context .* has 206: .*policy\.max_images"):
                await engine.start(FIXED)
        await engine.stop()


async def test_a_screenshot_that_is_no_image_is_an_error_of_the_request():
    async with served(says(chat())) as endpoint:
        with pytest.raises(EngineFault, match="not a usable image"):
            await answered(endpoint.url, asked=request(image="broken"))
    assert endpoint.bodies == []


async def test_a_key_that_is_not_there_is_an_error_that_names_the_key(monkeypatch):
    monkeypatch.delenv("TEST_OPENAI_KEY")
    with pytest.raises(ConfigError, match=r"rollout\.openai\.api_key is env:TEST_OPENAI_KEY"):
        OpenaiEngine(config("http://127.0.0.1:9/v1"), read)
