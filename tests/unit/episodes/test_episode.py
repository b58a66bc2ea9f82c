"""What an episode does next, screen by screen and answer by answer."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams import actions
from dart_streams.actions.offered import offer_call
from dart_streams.config import ActionDialect, Policy
from dart_streams.episodes import prompts
from dart_streams.episodes.episode import Episode, EpisodeLimits, Evaluate, Execute, Move, RequestAction, Stop
from tests import events
from topics.actions import ActionResponse
from topics.observations import EpisodeEnd, Observation
from topics.transitions import REWARDED
from topics.values import BlobRef, Sampling, VersionSpan

ORDER = events.rollout_order(sampling=Sampling(temperature=0.5))
NEW = Episode(
    order=ORDER,
    trajectory_id="t",
    env_host="env-0",
    limits=EpisodeLimits(max_steps=3, request_attempts=3, loop_limit=2),
)
CLICK = actions.format(actions.Click(3, 4))


def screen(name: str) -> BlobRef:
    return BlobRef(sha256=name, size=1, width=160, height=210)


def reply(text: str, error: str | None = None) -> ActionResponse:
    return events.action_response(
        text,
        tokens=[5, 6],
        logprobs=[-1.0, -0.5],
        entropies=[0.1, 0.2],
        versions=[VersionSpan(version=7, start=0, end=2)],
        error=error,
    )


def started(**limits) -> Episode:
    episode = msgspec.structs.replace(NEW, limits=msgspec.structs.replace(NEW.limits, **limits))
    return episode.observe(screen("s0"), "Click the box.", at_ms=10).mark_published()


def after_actions(episode: Episode, *steps: tuple[str, str]) -> Episode:
    """Answer with each text, and show each screen."""
    for text, name in steps:
        episode, move = episode.mark_published().apply_response(reply(text), 0)
        assert isinstance(move, Execute)
        episode = episode.observe(screen(name), "ignored", at_ms=20, execute_ms=5.0)
    return episode


def test_the_first_screen_is_observation_0_and_then_the_policy_is_asked():
    episode = NEW.observe(screen("s0"), "Click the box.", at_ms=10)
    assert episode.after_screen(done=False) == RequestAction(attempt=0)
    assert (episode.latest.step, episode.latest.taken, episode.latest.end) == (0, None, None)
    assert episode.mark_published().published == (episode.latest,)


def test_a_request_names_the_action_the_attempt_and_the_whole_prompt():
    request = started().request(
        2, prompts.prompt_turns(started().observations, NEW.policy), reply_partition=3, deadline_ms=99
    )
    assert (request.request_id, request.step, request.reply_partition, request.deadline_ms) == ("t/0/2", 0, 3, 99)
    assert request.sampling == ORDER.sampling
    assert [turn.text for turn in request.turns if turn.text] == [request.turns[0].text, "Click the box."]
    assert request.turns[-1].image == screen("s0")


def test_an_answer_becomes_an_action_and_then_the_next_observation():
    episode, move = started().apply_response(reply(f"Thought: there.\n{CLICK}"), 0)
    assert move == Execute(actions.Click(3, 4), "t/0/0")
    shown = episode.observe(screen("s1"), "other words", at_ms=20, execute_ms=5.0)
    assert shown.after_screen(done=False) == RequestAction(attempt=0)
    observation = shown.latest
    assert (observation.step, observation.instruction, observation.screenshot) == (1, "Click the box.", screen("s1"))
    assert (observation.taken.text, observation.taken.action) == (f"Thought: there.\n{CLICK}", CLICK)
    assert (observation.taken.tokens, observation.taken.execute_ms) == ([5, 6], 5.0)
    assert shown.mark_published().request_id(0) == "t/1/0"


@pytest.mark.parametrize(
    ("reward", "kind"), [(1.0, "success"), (0.999, "success"), (0.998, "failure"), (0.0, "failure")]
)
def test_a_done_environment_is_evaluated_with_partial_credit(reward, kind):
    episode = after_actions(started(), (CLICK, "s1"))
    assert episode.after_screen(done=True) == Evaluate(cut=False)
    last = episode.last_observation(episode.end_evaluated(Evaluate(cut=False), reward=reward), at_ms=30)
    assert (last.step, last.screenshot, last.end) == (1, screen("s1"), EpisodeEnd(kind=kind, reward=reward))


def test_finished_is_judged_on_the_screen_as_it_is():
    episode, move = started().apply_response(reply("Action: finished(content='42')"), 0)
    assert move == Evaluate(cut=False, answer="42")
    last = episode.last_observation(episode.end_evaluated(Evaluate(cut=False), reward=1.0), at_ms=30)
    assert (last.step, last.screenshot, last.taken.execute_ms) == (1, screen("s0"), 0.0)


@pytest.mark.parametrize(
    ("reward", "end"),
    [(0.0, EpisodeEnd(kind="failure", reward=0.0, reason="call_user")), (1.0, EpisodeEnd(kind="success", reward=1.0))],
)
def test_call_user_is_a_failure_unless_the_evaluation_accepts_it(reward, end):
    episode, move = started().apply_response(reply("Action: call_user()"), 0)
    assert move == Evaluate(cut=False, gave_up=True)
    last = episode.last_observation(episode.end_evaluated(move, reward), at_ms=30)
    assert (last.step, last.screenshot, last.end) == (1, screen("s0"), end)
    assert last.taken.action == "Action: call_user()"


def test_an_unparsable_answer_is_recorded_and_ends_the_episode():
    episode, move = started().apply_response(reply("I would rather not."), 0)
    assert isinstance(move, Stop)
    assert (move.end.kind, move.end.reward) == ("invalid_action", 0.0)
    assert move.end.reason
    last = episode.last_observation(move.end, at_ms=30)
    assert (last.step, last.taken.text, last.taken.action) == (1, "I would rather not.", None)
    assert (last.taken.tokens, last.screenshot) == ([5, 6], screen("s0"))


def test_the_step_limit_cuts_the_episode_and_keeps_the_reward():
    episode = after_actions(started(), (CLICK, "s1"), (CLICK, "s2"))
    assert episode.after_screen(done=False) == RequestAction(attempt=0)
    episode = after_actions(episode, (CLICK, "s3"))
    assert episode.after_screen(done=False) == Evaluate(cut=True)
    end = episode.end_evaluated(Evaluate(cut=True), reward=0.5)
    assert (end.kind, end.reward) == ("truncated", 0.5)
    solved = episode.end_evaluated(Evaluate(cut=True), reward=1.0)
    assert (solved.kind, solved.reward) == ("success", 1.0), "an environment may not say that it is done"
    assert episode.last_observation(end, at_ms=30).step == 3


def test_an_unanswered_request_is_retried_then_a_policy_error():
    episode, move = started().apply_response(reply("", error="no memory"), 0)
    assert move == RequestAction(attempt=1)
    assert episode.retry_or_stop(1, "silence") == RequestAction(attempt=2)
    stop = episode.retry_or_stop(2, "silence")
    assert isinstance(stop, Stop)
    assert (stop.end.kind, stop.end.reward) == ("policy_error", None)
    last = episode.last_observation(stop.end, at_ms=30)
    assert (last.step, last.taken, last.screenshot) == (1, None, screen("s0"))


def test_the_same_action_on_an_unchanged_screen_is_a_loop():
    episode = after_actions(started(max_steps=9), (CLICK, "s0"))
    assert episode.after_screen(done=False) == RequestAction(attempt=0)
    episode = after_actions(episode, (CLICK, "s0"))
    move = episode.after_screen(done=False)
    assert move == Evaluate(cut=False, looped=True)
    ends = [episode.end_evaluated(move, reward) for reward in (0.0, 0.5, 1.0)]
    assert [(end.kind, end.reason) for end in ends] == [("failure", "loop"), ("failure", "loop"), ("success", "")]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([(CLICK, "s1"), (CLICK, "s2"), (CLICK, "s3"), (CLICK, "s4")], id="the screen changes"),
        pytest.param([(CLICK, "s0"), ("Action: wait()", "s0"), (CLICK, "s0")], id="the action changes"),
        pytest.param([(CLICK, "s0"), (CLICK, "s1"), (CLICK, "s1")], id="a change in between starts the count again"),
    ],
)
def test_what_changes_is_no_loop(steps):
    assert after_actions(started(max_steps=9), *steps).after_screen(done=False) == RequestAction(attempt=0)


def test_an_environment_that_is_done_is_judged_even_in_a_loop():
    assert after_actions(started(), (CLICK, "s0"), (CLICK, "s0")).after_screen(done=True) == Evaluate(cut=False)


def test_a_fault_while_acting_keeps_the_answer_and_shows_no_screen():
    episode, _ = started().apply_response(reply(CLICK), 0)
    last = episode.last_observation(EpisodeEnd(kind="env_error", reward=None, reason="crash"), at_ms=30)
    assert (last.step, last.taken.action, last.screenshot) == (1, CLICK, None)


def test_a_fault_while_judging_ends_the_observation_that_was_fresh():
    episode = after_actions(started(), (CLICK, "s1"))
    last = episode.last_observation(EpisodeEnd(kind="env_error", reward=None, reason="crash"), at_ms=30)
    assert (last.step, last.screenshot) == (1, screen("s1"))


def test_a_fault_before_the_first_screen_is_observation_0():
    last = NEW.last_observation(EpisodeEnd(kind="env_error", reward=None, reason="crash"), at_ms=30)
    assert (last.step, last.instruction, last.screenshot, last.taken) == (0, "", None, None)


def test_a_straggler_is_the_fault_of_what_it_waited_for_and_has_no_reward():
    asking = started().mark_published()
    executing, _ = asking.apply_response(reply(CLICK), 0)
    at_the_end = executing.observe(screen("s1"), "", at_ms=20)
    ends = [episode.end_timed_out() for episode in (NEW, asking, executing, at_the_end)]
    assert [end.kind for end in ends] == ["env_error", "policy_error", "env_error", "env_error"]
    assert all(end.reward is None and "straggler" in (end.reason or "") for end in ends)


def test_a_demonstration_is_recorded_without_tokens():
    episode, move = started().demonstrate(actions.Click(3, 4))
    assert move == Execute(actions.Click(3, 4), "t/0/0")
    taken = (
        episode.observe(screen("s1"), "", at_ms=20, execute_ms=5.0)
        .last_observation(EpisodeEnd(kind="success", reward=1.0), 30)
        .taken
    )
    assert (taken.request_id, taken.text, taken.action, taken.tokens) == ("t/0/0", CLICK, CLICK, [])


UI_TARS = Policy(max_tokens=400, dialect=ActionDialect(name="ui-tars", several="all", strictness="lenient"))


def speaking(policy: Policy) -> Episode:
    return msgspec.structs.replace(started(), policy=policy)


def test_an_answer_is_recorded_in_canonical_text():
    answer = "Thought: there.\nAction: click(point='<point>3 4</point>')"
    episode, move = speaking(UI_TARS).apply_response(reply(answer), 0)
    assert move == Execute(actions.Click(3, 4), "t/0/0")
    assert (episode.pending.text, episode.pending.action) == (answer, CLICK)
    assert started().apply_response(reply(answer), 0)[1] != move, "it is none of the native dialect"


def test_all_actions_of_an_answer_are_one_step_with_ids_of_their_own():
    answer = "Action: click(start_box='(3,4)')\n\ntype(content='a')\n\nhotkey(key='enter')"
    episode, move = speaking(UI_TARS).apply_response(reply(answer), 0)
    assert isinstance(move, Execute)
    click, text, enter = actions.Click(3, 4), actions.Type("a"), actions.Hotkey(("enter",))
    assert move.all == [(click, "t/0/0"), (text, "t/0/0/1"), (enter, "t/0/0/2")]
    shown = episode.observe(screen("s1"), "", at_ms=20)
    assert shown.after_screen(done=False) == RequestAction(attempt=0)
    assert shown.step == 1
    assert shown.latest.taken.action == f"{CLICK}\n\ntype(content='a')\n\nhotkey(key='enter')"


@pytest.mark.parametrize(("end", "gave_up"), [("finished(content='')", False), ("call_user()", True)])
def test_actions_after_the_end_in_an_answer_are_not_executed(end, gave_up):
    answer = f"Action: click(start_box='(3,4)')\n\n{end}\n\ntype(content='a')"
    episode, move = speaking(UI_TARS).apply_response(reply(answer), 0)
    assert move == Execute(actions.Click(3, 4), "t/0/0")
    assert episode.pending.action == f"{CLICK}\n\n{end}"
    shown = episode.observe(screen("s1"), "", at_ms=20)
    assert shown.after_screen(done=False) == Evaluate(cut=False, gave_up=gave_up)
    assert shown.after_screen(done=True) == Evaluate(cut=False), "the environment has ended the episode itself"
    alone, move = speaking(UI_TARS).apply_response(reply(f"Action: {end}"), 0)
    assert (move, alone.ending) == (Evaluate(cut=False, gave_up=gave_up), None)


def test_issues_of_executed_and_refused_answers_are_kept():
    wrong, move = speaking(UI_TARS).apply_response(reply("click(start_box='(9999,4)')"), 0)
    assert isinstance(move, Execute)
    assert wrong.wrong == ("marker", "outside")
    right, _ = msgspec.structs.replace(wrong, pending=None).apply_response(reply(CLICK), 0)
    assert right.wrong == ()
    refused, move = speaking(UI_TARS).apply_response(reply("no"), 0)
    assert isinstance(move, Stop)
    assert refused.wrong == ("unreadable",)


def test_the_pointer_is_where_the_last_action_with_a_place_has_left_it():
    scroll = "Action: scroll(direction='down')"
    move = speaking(UI_TARS).apply_response(reply(scroll), 0)[1]
    assert move == Execute(actions.Scroll(84, 112, "down"), "t/0/0"), "the center of the image of 168x224"
    moved = after_actions(
        speaking(UI_TARS),
        ("Action: drag(start_box='(1,2)', end_box='(5,6)')", "s1"),
        ("Action: type(content='a')", "s2"),
    ).mark_published()
    assert moved.apply_response(reply(scroll), 0)[1] == Execute(actions.Scroll(5, 6, "down"), "t/0/0")


def test_a_demonstration_is_written_in_the_policys_dialect():
    policy = Policy(max_tokens=99, dialect=ActionDialect(name="qwen-computer-use", coordinates="relative"))
    episode, move = speaking(policy).demonstrate(actions.Click(84, 112))
    assert move == Execute(actions.Click(84, 112), "t/0/0")
    assert '"coordinate": [500, 500]' in episode.pending.text
    assert episode.pending.action == actions.format(actions.Click(84, 112))


def test_what_the_dialect_cannot_demonstrate_is_no_fault_of_the_policy():
    policy = Policy(max_tokens=99, dialect=ActionDialect(name="qwen-computer-use"))
    _, move = speaking(policy).demonstrate(actions.KeyDown("shift"))
    assert isinstance(move, Stop)
    assert (move.end.kind, move.end.reward) == ("env_error", None)
    assert "policy.dialect" in (move.end.reason or "")


ANSWERS = (CLICK, "Action: wait()", "Action: finished(content='')", "Action: call_user()", "no action")


@given(seed=st.integers(0, 2**32))
def test_observations_are_gapless_and_only_the_last_has_an_end(seed):
    observations, end = play(started(max_steps=5, loop_limit=3), random.Random(seed))
    assert [observation.step for observation in observations] == list(range(len(observations)))
    assert [observation.end for observation in observations] == [None] * (len(observations) - 1) + [end]
    assert (end.reward is None) == (end.kind not in REWARDED)
    taken = [observation.taken for observation in observations[1:]]
    assert all(answer is not None for answer in taken[:-1])
    assert sum(answer is not None for answer in taken) <= 5 + 1
    assert [a.request_id for a in taken if a] == [f"t/{n}/0" for n, a in enumerate(taken) if a]


def play(episode: Episode, rng: random.Random) -> tuple[list[Observation], EpisodeEnd]:
    """Drive an episode as the player does, with a policy and an environment that do anything at all."""
    observations = list(episode.published)
    move: Move = RequestAction(0)
    while not isinstance(move, Stop):
        if isinstance(move, RequestAction):
            observations += [episode.latest] if episode.latest is not None else []
            episode = episode.mark_published()
            answer = reply(rng.choice(ANSWERS), error=rng.choice([None, None, "no memory"]))
            answer = msgspec.structs.replace(answer, request_id=episode.request_id(0))
            episode, move = episode.apply_response(answer, move.attempt)
        elif rng.random() < 0.1:
            move = Stop(EpisodeEnd(kind="env_error", reward=None, reason="crash"))
        elif isinstance(move, Execute):
            episode = episode.observe(screen(rng.choice("ab")), "", at_ms=20, execute_ms=1.0)
            move = episode.after_screen(done=rng.random() < 0.1)
        else:
            move = Stop(episode.end_evaluated(move, 1.0))
    return [*observations, episode.last_observation(move.end, at_ms=30)], move.end


OFFERS = (offer_call("calc.set", "Set a cell.", {"type": "object", "required": ["cell"]}),)


def offering() -> Episode:
    return NEW.observe(screen("s0"), "Click the box.", at_ms=10, calls=OFFERS).mark_published()


def test_offers_are_in_the_first_observation_and_results_in_the_next():
    call = actions.Call("calc.set", {"cell": "B3"})
    episode, move = offering().apply_response(reply(actions.format(call)), 0)
    assert move == Execute(call, "t/0/0")
    shown = episode.observe(screen("s1"), "", at_ms=20, calls=OFFERS, returned="x" * 5000)
    assert shown.published[0].calls == list(OFFERS)
    assert (shown.latest.calls, len(shown.latest.returned)) == ([], 2000)
    texts = [turn.text for turn in prompts.prompt_turns(shown.observations, NEW.policy)]
    assert texts[-3:] == [actions.format(call), f"Returned: {shown.latest.returned}", None]


@pytest.mark.parametrize("call", [actions.Call("calc.get", {"cell": "B3"}), actions.Call("calc.set", {})])
def test_a_call_that_does_not_fit_ends_the_episode_as_an_unparsable_answer(call):
    episode, move = offering().apply_response(reply(actions.format(call)), 0)
    assert isinstance(move, Stop)
    assert (move.end.kind, move.end.reward) == ("invalid_action", 0.0)
    assert (episode.pending.action, episode.wrong) == (None, ("call",))


def test_a_call_is_no_loop_while_it_returns_something_new():
    text = actions.format(actions.Call("calc.set", {"cell": "B3"}))

    def repeats(*returned: str) -> int:
        episode = offering()
        for one in returned:
            episode, _ = episode.mark_published().apply_response(reply(text), 0)
            episode = episode.observe(screen("s0"), "", at_ms=20, returned=one)
        return episode.repeats

    assert repeats("1", "2", "3") == 1
    assert repeats("1", "1", "1") == 3
