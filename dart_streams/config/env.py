"""Environment workers and their backends."""

from typing import Annotated, Literal

from msgspec import Meta, field

from dart_streams.config.section import AboveZero, NonNegative, Optional, Positive, Section, Share

Isolation = Literal["context", "document", "problem"]
Capture = Literal["auto", "begin-frame", "screenshot"]


class Backend(Optional, frozen=True):
    """What every environment backend has."""

    call_timeout_s: AboveZero = 15.0
    """The bound of a single call; a call that exceeds it is a fault of the environment."""
    last_screen: bool = True
    """Store the screen after an episode's last action; no prompt ever contains it."""


class Miniwob(Backend, frozen=True):
    """The ``miniwob`` backend: MiniWoB++ in Chromium."""

    isolation: Isolation = "context"
    """A browser ``context`` for each episode; or, for less CPU, a ``document`` loaded afresh in a wiped context; or,
    for the least, a ``problem`` started again in a restored document."""
    capture: Capture = "auto"
    """How screens are taken: a frame drawn for each (``begin-frame``, for less CPU; chromium-headless-shell
    only), or a ``screenshot`` of frames drawn all the time; ``auto``: the first where the browser can."""
    browsers: Positive = 1
    """Browsers of a worker, each with its share of the slots: one that dies or hangs delays no other's episodes."""
    partial_credit: bool = False
    """Keep a page's partial credit as the reward; otherwise any above 0 is a success, as BrowserGym counts."""


class Desktop(Backend, frozen=True):
    """The ``desktop`` backend: sandboxed desktops with real X applications, and families of small tasks on them."""

    width: Annotated[int, Meta(ge=160, le=3840)] = 320
    """Of the screen, in pixels."""
    height: Annotated[int, Meta(ge=120, le=2160)] = 240
    """Of the screen, in pixels."""
    spares: Annotated[int, Meta(ge=0, le=64)] = 2
    """Desktops besides those of the slots, each prepared for the task of an order that waits for a slot."""


class Simulated(Backend, frozen=True):
    """The ``simulated`` backend: log-normal latencies of one sigma. A ``[workload]`` takes their place."""

    reset_ms: NonNegative = 20.0
    """Median of a reset."""
    step_ms: NonNegative = 5.0
    """Median of a step."""
    evaluate_ms: NonNegative = 2.0
    """Median of the evaluation at the end."""
    sigma: NonNegative = 0.5
    """Sigma of all three."""
    hang_rate: Share = 0.0
    """Share of calls that hang until ``call_timeout_s``."""
    fault_rate: Share = 0.0
    """Share of calls that fail."""


class Installed(Backend, frozen=True):
    """A backend that an installed package brings (an entry point of the group ``dart_streams.environments``)."""

    options: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Its own settings, which it checks itself."""


class Env(Section, frozen=True):
    """Environment workers."""

    backend: Annotated[str, Meta(min_length=1)] = "miniwob"
    """The environment: ``miniwob``, ``desktop``, ``simulated``, or one that an installed package brings."""
    workers: Annotated[int, Meta(ge=0)] = 1
    """Processes."""
    slots: Positive = 16
    """Concurrent episodes of a process."""
    request_timeout_s: AboveZero = 20.0
    """How long a slot waits for the answer to a step request before it asks again."""
    episode_timeout_s: AboveZero = 120.0
    """The bound of an episode; one that exceeds it ends as a fault."""
    miniwob: Miniwob = Miniwob()
    desktop: Desktop = Desktop()
    simulated: Simulated = Simulated()
    installed: Installed = Installed()

    @property
    def selected(self) -> Backend:
        """The table of the backend in use."""
        match self.backend:
            case "miniwob":
                return self.miniwob
            case "desktop":
                return self.desktop
            case "simulated":
                return self.simulated
            case _:
                return self.installed
