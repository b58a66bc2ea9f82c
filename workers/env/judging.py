"""The judge of a recipe: its verdict on an ended episode, which is recorded with the episode's end.

A recipe's module ``judging`` has ``RULES``, an :class:`EpisodeRules`. Its judge may do I/O, such as ask a model. The
slot waits for it, and other slots go on. Curation reads verdicts from the log, so a replay asks nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import structlog

from dart_streams.config import Config
from dart_streams.config.recipes import rules_module, settings_type
from dart_streams.curation.hooks import Own
from dart_streams.curation.rule_results import RuleFailed
from dart_streams.episodes.episode import Episode
from dart_streams.errors import ConfigError
from topics.observations import EpisodeEnd, Observation
from topics.transitions import REWARDED
from topics.values import MOST_EXCERPT, Purpose, Verdict
from workers.env.environment import Screen
from workers.env.returned_values import printable_text

JUDGED: frozenset[Purpose] = frozenset(("train", "eval"))
"""Purposes of episodes that are judged: those that the policy plays."""

log = structlog.get_logger()


class EndedEpisode(NamedTuple):
    """An episode with a reward: its observations, its end, and the last screen with its image."""

    observations: tuple[Observation, ...]
    end: EpisodeEnd
    screen: Screen


class EpisodeRules(NamedTuple):
    """The rules of the environment worker that a recipe brings."""

    judge: Callable[[Own, EndedEpisode], Awaitable[Verdict | None]] | None = None
    """(episode): the verdict on its outcome; without success if the judge gives none, None if it is not asked. It has
    as long as an episode."""


class Judge(NamedTuple):
    """The judge of a run, by its recipe; without one there are no verdicts."""

    rule: Callable[[EndedEpisode], Awaitable[Verdict | None]] | None
    recipe: str
    within_s: float

    async def verdict_on(self, episode: Episode, end: EpisodeEnd, screen: Screen | None) -> Verdict | None:
        """Return the verdict on an episode of the policy with a reward; None for others, or without a judge.

        Raises RuleFailed if the rule does.
        """
        if self.rule is None or end.kind not in REWARDED or episode.order.purpose not in JUDGED:
            return None
        if screen is None or screen.image is None:
            verdict: Verdict | None = Verdict(success=None, reason="the environment shows no last screen (last_screen)")
        else:
            verdict = await self._ask(
                EndedEpisode((*episode.observations, episode.last_observation(end, 0)), end, screen)
            )
        if verdict is None:
            return None
        if verdict.success is None:
            log.warning("no verdict", recipe=self.recipe, task=episode.order.task_id, reason=verdict.reason)
        return msgspec.structs.replace(verdict, reason=printable_text(verdict.reason)[:MOST_EXCERPT])

    async def _ask(self, episode: EndedEpisode) -> Verdict | None:
        assert self.rule is not None
        limit = asyncio.timeout(self.within_s)
        try:
            async with limit:
                return await self.rule(episode)
        except TimeoutError as error:
            if not limit.expired():
                raise self._failed(error) from error
            return Verdict(success=None, reason=f"the judge took longer than {self.within_s:g} s")
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> RuleFailed:
        return RuleFailed(
            f"recipe {self.recipe!r}: its rule judge ended with {type(error).__name__}: {error}. Mend the rule and "
            "resume the run"
        )


def bind_judge(config: Config) -> Judge:
    """Return the judge of a run's recipes, bound to its settings; raise ConfigError if two bring one."""
    found = {name: rule for name in config.recipe if (rule := recipe_rules(name).judge) is not None}
    if len(found) > 1:
        first, second, *_ = found
        raise ConfigError(f"recipe: {first!r} and {second!r} both bring the rule judge: choose one")
    if not found:
        return Judge(None, "", 0.0)
    [(name, rule)] = found.items()
    own = Own(msgspec.convert(config.recipes.get(name, {}), settings_type(name)), None)
    return Judge(partial(rule, own), name, config.env.episode_timeout_s)


def recipe_rules(name: str) -> EpisodeRules:
    """Return a recipe's rules of the environment worker; none if it has none."""
    rules: Any = getattr(rules_module(name, "judging"), "RULES", EpisodeRules())
    return EpisodeRules(*rules)
