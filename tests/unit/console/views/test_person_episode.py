"""A person's episode as its page follows it, by the observations of the run."""

import msgspec

from console.views.play.person_episode import PersonEpisode, page_view
from dart_streams.config import Policy
from dart_streams.screens import smart_resize
from tests import events
from topics.observations import EpisodeEnd, Observation
from topics.rollout_orders import PersonLease
from topics.values import BlobRef

ORDER = events.rollout_order("mine", purpose="demonstration", lease=PersonLease(person="p", lease_ms=1000))
END = EpisodeEnd(kind="success", reward=1.0)


def shown(step: int, trajectory: str = "t1", end: EpisodeEnd | None = None, **changes) -> Observation:
    """Return an observation with its own screen."""
    taken = events.executed_action(action=f"Action: click(start_box='({step},1)')") if step else None
    fields = {"trajectory_id": trajectory, "order": ORDER, "step": step, "taken": taken, "end": end}
    screen = BlobRef(sha256=f"{step:064x}", size=1, width=160, height=210)
    return events.observation(**fields | {"screenshot": screen, "instruction": "click"} | changes)


def follow(*observations: Observation) -> PersonEpisode:
    episode = PersonEpisode(order=ORDER)
    for one in observations:
        episode = episode.observe(one)
    return episode


def test_a_turn_begins_with_a_screen_and_ends_with_an_action():
    episode = follow()
    assert (episode.stage, episode.request_id) == ("ordered", "")
    episode = episode.observe(shown(0))
    assert (episode.stage, episode.request_id) == ("turn", "t1/0/0")
    episode = episode.send()
    assert episode.stage == "acting"
    episode = episode.observe(shown(1))
    assert (episode.stage, episode.request_id) == ("turn", "t1/1/0")
    assert episode.observe(shown(2, end=END)).stage == "ended"


def test_repeated_and_foreign_records_change_nothing():
    episode = follow(shown(0), shown(1))
    other = msgspec.structs.replace(ORDER, order_id="another")
    for one in (shown(0), shown(1), shown(3), shown(2, order=other), shown(1, "t2"), shown(0, "t0")):
        assert episode.observe(one) == episode
    episode = follow(shown(0), shown(1, end=END))
    assert not episode.announce(events.trajectory(trajectory_id="t9")).recorded
    assert episode.announce(events.trajectory(trajectory_id="t1")).recorded


def test_a_lost_workers_trajectory_is_replaced_by_that_of_the_next():
    episode = follow(shown(0), shown(1)).send().observe(shown(0, "t2"))
    assert (episode.trajectory_id, episode.stage, episode.request_id) == ("t2", "turn", "t2/0/0")
    cancelled = EpisodeEnd(kind="cancelled", reward=None)
    assert follow(shown(0), shown(1, end=cancelled), shown(0, "t2")).stage == "turn"


def test_the_page_shows_the_newest_screen_the_actions_and_the_end():
    assert page_view("task", None, Policy()) == {"stage": "idle", "task": "task"}
    assert page_view("task", follow(), Policy())["screen"] is None
    view = page_view("task", follow(shown(0), shown(1), shown(2, end=END, screenshot=None)), Policy())
    assert view["taken"] == ["click(start_box='(1,1)')", "click(start_box='(2,1)')"]
    assert view["screen"]["sha256"] == shown(1).screenshot.sha256, "the last one if the end has none"
    assert view["end"] == {"kind": "success", "reward": 1.0, "reason": ""}
    assert not view["recorded"]


def test_the_page_shows_actions_where_the_person_acted():
    """A large screen is smaller in the policy's image, to which recorded actions refer."""
    large = BlobRef(sha256="a" * 64, size=1, width=1920, height=1080)
    click = events.executed_action(action="Action: click(start_box='(700,400)')")
    episode = follow(shown(0, screenshot=large), shown(1, taken=click))
    image = smart_resize(1920, 1080, (policy := Policy()).min_pixels, policy.max_pixels)
    place = 1401 * 1920 // (2 * image[0]), 801 * 1080 // (2 * image[1])
    assert image != (1920, 1080)
    assert page_view("task", episode, policy)["taken"] == [f"click(start_box='({place[0]},{place[1]})')"]


ROLLOUT = events.rollout_order("rollout")


def rollout(*asks: str | None) -> PersonEpisode:
    """Return a rollout after observations that ask these take-overs, None for the policy."""
    episode = PersonEpisode(order=ROLLOUT)
    for step, asked in enumerate(asks):
        episode = episode.observe(shown(step, order=ROLLOUT, asks=asked))
    return episode


def next_step(episode: PersonEpisode, asks: str | None = None, **changes) -> PersonEpisode:
    return episode.observe(shown(len(episode.shown), order=ROLLOUT, asks=asks, **changes))


def test_a_rollout_is_the_persons_turn_once_it_asks_them():
    episode = rollout(None)
    assert (episode.stage, episode.is_held, episode.is_asking) == ("policy", False, False)
    episode = episode.ask("f0")
    assert (episode.stage, episode.is_asking) == ("policy", True)
    episode = next_step(episode)
    assert (episode.stage, episode.is_asking) == ("policy", True), "this step was the policy's"
    episode = next_step(episode, "f0")
    assert (episode.stage, episode.request_id) == ("turn", "t1/2/person")
    episode = episode.send()
    assert episode.stage == "acting"
    assert next_step(episode, "f0").stage == "turn"


def test_a_person_may_ask_again_after_giving_back_or_losing_the_lease():
    episode = next_step(rollout(None).ask("f0"), "f0").give_back()
    assert (episode.stage, episode.is_held, episode.is_asking) == ("policy", False, False)
    episode = next_step(episode.ask("f1"), None)
    assert episode.is_asking
    assert next_step(episode, "f1").stage == "turn"
    lost = next_step(next_step(rollout(None).ask("f0"), "f0"), None)
    assert (lost.stage, lost.is_asking, lost.take_over) == ("policy", False, "")


def test_who_comes_second_is_not_asked():
    episode = next_step(rollout(None).ask("f1"), "f0")
    assert (episode.stage, episode.is_held, episode.is_asking) == ("policy", True, False)
    assert rollout(None, "f0").is_held
    episode = next_step(episode)
    assert not episode.is_held, "the other person has given it back"


def test_a_rollout_of_a_lost_worker_is_over_for_the_person():
    episode = next_step(rollout(None).ask("f0"), "f0")
    episode = episode.observe(shown(0, "t2", order=ROLLOUT))
    assert (episode.stage, episode.lost, episode.trajectory_id) == ("ended", True, "t1")
    ended = next_step(rollout(None), end=END)
    assert not ended.observe(shown(0, "t2", order=ROLLOUT)).lost


def test_the_page_shows_who_took_each_action_of_a_rollout():
    episode = rollout(None, None)
    mine = events.executed_action(action="Action: click(start_box='(1,1)')", take_over="f0")
    view = page_view("task", next_step(episode, "f0", taken=mine), Policy())
    assert (view["people"], view["held"], view["asking"], view["lost"]) == ([False, True], True, False, False)
    assert "people" not in page_view("task", follow(shown(0)), Policy())
