"""The policy of a run as a model of the hub: fetched by the model environment, and pinned to a commit."""

import subprocess
from pathlib import Path

import msgspec

from console.launch import processes
from dart_streams.config import Config
from dart_streams.config.text import MALFORMED
from dart_streams.errors import ConfigError, UserError
from dart_streams.policy import hub_models, recipe
from dart_streams.policy.hub_models import HubModel


class FetchAnswer(msgspec.Struct, frozen=True):
    """What ``policy fetch --json`` prints: where the model is, or the ``reason`` why it is not there."""

    folder: str = ""
    commit: str = ""
    path: str = ""
    reason: str = ""
    exit_code: int = 0


class NotFetched(ConfigError):
    """A model of the hub that a run cannot have."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def pin_policy(config: Config) -> Config:
    """Return a configuration whose model of the hub is fetched, and named by its commit.

    A folder stays as it is, and so does a model that no process loads. Raises :class:`ConfigError` with the reason if
    there is no such model.
    """
    if not config.policy.path:
        return config
    model = hub_models.hub_model(config.policy.path)
    if model is None:
        recipe.named_policy(config)
        return config
    if not processes.needs_model(config):
        return config
    commit = model.revision
    if not model.is_pinned or hub_models.find_snapshot(model) is None:
        commit = fetch_commit(model, processes.find_programs().model)
    return with_path(config, f"{model.repo}@{commit}")


def fetch_commit(model: HubModel, program: Path) -> str:
    """Fetch a model with ``program``, the ``dart-streams`` of the model environment; return its commit.

    Progress goes to the terminal. Raises :class:`ConfigError` with the reason if it fails.
    """
    if not program.exists():
        raise UserError(f"{program} is missing, which fetches policy.path {str(model)!r}: run `make setup`")
    command = [str(program), "policy", "fetch", str(model), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        answer = msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=FetchAnswer)
    except MALFORMED:
        raise ConfigError(f"policy.path: `{' '.join(command)}` failed with exit code {done.returncode}") from None
    if answer.reason:
        raise NotFetched(f"policy.path: {answer.reason}", answer.exit_code)
    return answer.commit


def keep_commit(recorded: Config, given: Config) -> Config:
    """Return a given configuration with the commit of a resumed run, if both name the same model of the hub.

    Its branch may have moved. A commit that is given is kept, and then has to be the run's.
    """
    before, now = (hub_models.hub_model(config.policy.path) for config in (recorded, given))
    if before is None or now is None or now.is_pinned or before.repo != now.repo:
        return given
    return with_path(given, recorded.policy.path)


def with_path(config: Config, path: str) -> Config:
    """Return a configuration with another ``policy.path``."""
    return msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy, path=path))
