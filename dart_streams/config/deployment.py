"""A whole deployment: every table of the configuration file."""

from dart_streams.config.connections import Bus, Services, Store
from dart_streams.config.curation import Curation
from dart_streams.config.env import Env
from dart_streams.config.rollout import Policy, Rollout, Warmup
from dart_streams.config.run import Evaluation, Run, Tasks, Telemetry
from dart_streams.config.section import Section
from dart_streams.config.trainer import Trainer
from dart_streams.config.workload import Workload
from topics.values import Sampling


class Config(Section, frozen=True):
    """A whole deployment."""

    run: Run = Run()
    bus: Bus = Bus()
    store: Store = Store()
    services: Services = Services()
    tasks: Tasks = Tasks()
    env: Env = Env()
    policy: Policy = Policy()
    warmup: Warmup = Warmup()
    rollout: Rollout = Rollout()
    curation: Curation = Curation()
    trainer: Trainer = Trainer()
    evaluation: Evaluation = Evaluation()
    telemetry: Telemetry = Telemetry()
    workload: Workload | None = None

    def __post_init__(self) -> None:
        """Refuse what would wait for ever."""
        if self.curation.dispatch.mode == "coupled" and self.trainer.c3po.tokens_per_step:
            raise ValueError(
                "curation.dispatch.mode coupled orders groups_per_step groups and waits until they are trained on, but "
                "with trainer.c3po.tokens_per_step the trainer may want more of them: set it to 0"
            )

    def sampling(self, temperature: float = 1.0) -> Sampling:
        """Return the sampling parameters of this deployment's orders."""
        return Sampling(temperature=temperature, max_tokens=self.policy.max_tokens)
