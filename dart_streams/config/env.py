"""Environment workers and their backends."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from dart_streams.config.connections import refuse_literal
from dart_streams.config.section import AboveZero, Count, NonNegative, Optional, Positive, Section, Share

Isolation = Literal["context", "document", "problem"]
Capture = Literal["auto", "begin-frame", "screenshot"]


class Backend(Optional, frozen=True):
    """What every environment backend has."""

    call_timeout_s: AboveZero = 15.0
    """The bound of a single call; a call that exceeds it is a fault of the environment."""
    last_screen: bool = True
    """Store the screen after an episode's last action; no prompt ever contains it."""


class Miniwob(Backend, frozen=True):
    """The ``miniwob`` backend: MiniWoB++ and web pages of your own in Chromium."""

    screen: ClassVar[tuple[int, int]] = (160, 210)
    """Width and height of every page, in pixels."""

    pages_folder: str = ""
    """Folder of your own pages, relative to the configuration file (``docs/tutorial.md``). They come before MiniWoB++'s
    pages of the same name."""
    isolation: Isolation = "context"
    """A browser ``context`` for each episode; or, for less CPU, a ``document`` loaded afresh in a wiped context; or,
    for the least, a ``problem`` started again in a restored document."""
    capture: Capture = "auto"
    """How screens are taken: a frame drawn for each (``begin-frame``, for less CPU; chromium-headless-shell
    only), or a ``screenshot`` of frames drawn all the time; ``auto``: the first where the browser can."""
    browsers: Positive = 1
    """Browsers of a worker, each with its share of the slots: one that dies or hangs delays no other's episodes."""
    partial_credit: bool = False
    """Keep a page's own partial credit as the reward; otherwise what is no success is 0. Advantages are relative: in a
    group of failures a credit of 0.08 beside 0.01 counts as much as a success beside a failure."""


class Desktop(Backend, frozen=True):
    """The ``desktop`` backend: sandboxed desktops with real X applications, and families of small tasks on them."""

    call_timeout_s: AboveZero = 60.0
    """The bound of a single call; a call that exceeds it is a fault of the environment. The longest is a reset, which
    takes 2 s on an idle machine, and 20 where other work of normal priority keeps the processors busy."""
    width: Annotated[int, Meta(ge=160, le=3840)] = 320
    """Of the screen, in pixels."""
    height: Annotated[int, Meta(ge=120, le=2160)] = 240
    """Of the screen, in pixels."""
    spares: Annotated[int, Meta(ge=0, le=64)] = 2
    """Desktops besides those of the slots, each prepared for the task of an order that waits for a slot."""


class OsworldMachine(Optional, frozen=True):
    """A machine that serves OSWorld's HTTP contract."""

    url: str
    """Its address, such as ``http://127.0.0.1:5000``."""
    token: str = ""
    """Where its token is, if it asks for one: ``env:NAME`` or ``file:PATH``."""
    chromium_port: Positive = 9222
    """Where its browser is debugged."""
    vlc_port: Positive = 8080
    """Where its VLC answers."""

    def __post_init__(self) -> None:
        """Refuse a token in the configuration itself."""
        refuse_literal(self.token, "token")


class Osworld(Backend, frozen=True):
    """The ``osworld`` backend: machines that serve OSWorld's HTTP contract. One of the first three says which."""

    machines: tuple[OsworldMachine, ...] = ()
    """A list of them; each is used by one episode at a time."""
    lease_url: str = ""
    """A lease server: the address that ``dart-streams worker desktops`` prints as ``leases``."""
    acquire: tuple[str, ...] = ()
    """A program, with its arguments, that makes a machine and prints ``{"url": …}``, with a ``token`` if it has one."""
    release: tuple[str, ...] = ()
    """A program that is given on its standard input what ``acquire`` printed, and removes the machine."""
    lease_token: str = ""
    """Where the lease server's token is: ``env:NAME`` or ``file:PATH``."""
    lease_s: AboveZero = 60.0
    """When a lease ends that is not renewed, as that of a killed worker; ``acquire`` has it as ``DART_LEASE_S``."""
    fresh: Literal["", "given"] = ""
    """``given``: each machine of the list is fresh when an episode begins, for somebody else sees to it."""
    reset_timeout_s: AboveZero = 120.0
    """How long a reset may take: the lease, the start of the machine and the task's own set-up; and an evaluation."""
    mirror_folder: str = ""
    """The files of OSWorld's tasks (``dart-streams osworld mirror``), relative to the configuration file."""
    check_start: bool = True
    """Before a worker first plays a task of OSWorld, score its untouched start state on a machine of its own. A task
    that is worth more than 0 there is refused: it would teach nothing."""
    settle: Literal["still", "pause"] = "still"
    """When the screen after an action is taken: once two in a row are equal, or after a ``pause``."""
    pause_s: NonNegative = 0.1
    """How long an action is given to show an effect; OSWorld's own pause is 2."""
    settle_s: NonNegative = 2.0
    """How long a screen may take to be ``still``."""

    def __post_init__(self) -> None:
        """Refuse a token in the configuration itself."""
        refuse_literal(self.lease_token, "lease_token")


class Desktops(Optional, frozen=True):
    """Desktops for clients elsewhere (``worker desktops``), of the size that ``[env.desktop]`` gives."""

    slots: Positive = 2
    """Desktops at a time."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Of the lease server, on loopback; 0: one that is free. It is printed, with those of the desktops."""
    token: str = ""
    """Where the lease server's token is: ``env:NAME`` or ``file:PATH``; empty: one is made, and its file printed."""
    ask_token: bool = True
    """Without, any user of this machine may lease desktops and run commands in them."""
    lease_s: AboveZero = 60.0
    """A lease that is not renewed for so long ends; also the longest that a client may ask for."""

    def __post_init__(self) -> None:
        """Refuse a token in the configuration itself, and one that nobody would ask for."""
        refuse_literal(self.token, "token")
        if self.token and not self.ask_token:
            raise ValueError("there is a token, but ask_token = false: leave one of them out")


class Simulated(Backend, frozen=True):
    """The ``simulated`` backend: log-normal latencies of one sigma. A ``[workload]`` takes their place."""

    screen: ClassVar[tuple[int, int]] = (160, 210)
    """Width and height of every screen, in pixels."""

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
    """``miniwob``, ``desktop``, ``osworld``, ``simulated``, or an environment that an installed package brings."""
    workers: Count = 1
    """Processes."""
    slots: Positive = 16
    """Concurrent episodes of a process."""
    request_timeout_s: AboveZero = 20.0
    """How long a slot waits for the answer to a step request before it asks again."""
    episode_timeout_s: AboveZero = 120.0
    """The bound of an episode; one that exceeds it ends as a fault."""
    miniwob: Miniwob = Miniwob()
    desktop: Desktop = Desktop()
    osworld: Osworld = Osworld()
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
            case "osworld":
                return self.osworld
            case "simulated":
                return self.simulated
            case _:
                return self.installed

    @property
    def screen(self) -> tuple[int, int] | None:
        """Width and height of every screen in pixels; None if they are the machines' or another package's."""
        if isinstance(backend := self.selected, Desktop):
            return backend.width, backend.height
        return backend.screen if isinstance(backend, Miniwob | Simulated) else None
