"""Action dialects, one module each, selected by name: parse a model's answers, write actions, open the prompt. Pure."""

from typing import Literal

from dart_streams.actions.dialects.computer_13 import Computer13
from dart_streams.actions.dialects.dialect import (
    Coordinates,
    Dialect,
    MultipleActions,
    ParsedAnswer,
    ParseIssue,
    Strictness,
    UnsupportedAction,
    View,
)
from dart_streams.actions.dialects.native import SYSTEM, Native
from dart_streams.actions.dialects.qwen_computer_use import QwenComputerUse
from dart_streams.actions.dialects.qwen_mobile_use import QwenMobileUse
from dart_streams.actions.dialects.ui_tars import Style, UiTars

Name = Literal["native", "ui-tars", "qwen-computer-use", "qwen-mobile-use", "computer_13"]
BY_NAME: dict[Name, type[Dialect]] = {
    "native": Native,
    "ui-tars": UiTars,
    "qwen-computer-use": QwenComputerUse,
    "qwen-mobile-use": QwenMobileUse,
    "computer_13": Computer13,
}
