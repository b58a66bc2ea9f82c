"""The configuration of a deployment: one strict TOML file into frozen structs, a module for each group of tables.

Every process of a run reads the same file. What is no user's choice is a constant beside its use and not in here.
"""

from dart_streams.config.connections import Bus, KafkaLogin, Login, Services, Store, Tls
from dart_streams.config.curation import Curation
from dart_streams.config.deployment import Config, Evaluation, Run, Tasks, Ui
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
    Simulated,
)
from dart_streams.config.files import load, parse
from dart_streams.config.rollout import Policy, Rollout, SwitchMode, Warmup
from dart_streams.config.trainer import DualClip, Entropulse, Imitate, Trainer

__all__ = [
    "ActionDialect",
    "Bus",
    "Capture",
    "Config",
    "Curation",
    "Desktop",
    "Desktops",
    "DualClip",
    "Entropulse",
    "Env",
    "Evaluation",
    "Imitate",
    "Isolation",
    "KafkaLogin",
    "Login",
    "Miniwob",
    "Osworld",
    "OsworldMachine",
    "Policy",
    "Rollout",
    "Run",
    "Services",
    "Simulated",
    "Store",
    "SwitchMode",
    "Tasks",
    "Tls",
    "Trainer",
    "Ui",
    "Warmup",
    "load",
    "parse",
]
