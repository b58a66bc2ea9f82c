"""The configuration of a deployment: one strict TOML file, read by every process into frozen structs.

Each module holds a group of tables. A value that no user chooses is a constant beside its use, not a key.
"""

from dart_streams.config.connections import Bus, KafkaLogin, Login, Services, Store, Tls, TopicSettings
from dart_streams.config.curation import Curation
from dart_streams.config.deployment import Config, Evaluation, FeedbackRules, Run, Tasks, Ui
from dart_streams.config.dialect import ActionDialect
from dart_streams.config.env import (
    Capture,
    Desktop,
    Desktops,
    Env,
    Isolation,
    Miniwob,
    Osworld,
    OsworldMachine,
    Phone,
    Simulated,
)
from dart_streams.config.files import load, parse
from dart_streams.config.rollout import Policy, Rollout, SwitchMode, Warmup
from dart_streams.config.trainer import DualClip, Imitate, Trainer
