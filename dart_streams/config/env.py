"""Environment workers and their backends."""

import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from dart_streams.config.connections import refuse_literal
from dart_streams.config.section import AboveZero, Count, NonNegative, Optional, Positive, Section, Share

Isolation = Literal["context", "document", "problem"]
Capture = Literal["auto", "begin-frame", "screenshot"]


class Backend(Optional, frozen=True):
    """Keys of every environment backend."""

    call_timeout_s: AboveZero = 15.0
    """Timeout of a call to the environment; a longer call is a fault."""
    last_screen: bool = True
    """Store the screen after an episode's last action, which no prompt contains."""


class Miniwob(Backend, frozen=True):
    """The ``miniwob`` backend: MiniWoB++ and web pages of your own in Chromium."""

    screen: ClassVar[tuple[int, int]] = (160, 210)
    """Width and height of every page, in pixels."""

    pages_folder: str = ""
    """Folder of your own pages, relative to the configuration file (``docs/tutorial.md``). They come before MiniWoB++'s
    pages of the same name."""
    isolation: Isolation = "context"
    """Isolation of episodes, by decreasing CPU cost: a new browser ``context``, a new ``document`` in a wiped context,
    or a new ``problem`` in a restored document."""
    capture: Capture = "auto"
    """Capture of screens: ``begin-frame`` draws a frame for each, with less CPU (chromium-headless-shell only);
    ``screenshot`` reads continuous frames; ``auto`` prefers ``begin-frame``."""
    browsers: Positive = 1
    """Browsers of a worker, which share its slots; a dead or hung browser delays its own episodes only."""
    partial_credit: bool = False
    """Keep a page's partial credit as the reward; otherwise failures get 0. Advantages are relative: among failures,
    0.08 beside 0.01 counts as much as a success beside a failure."""

    def own_page(self, name: str) -> Path | None:
        """Return the file of the user's page ``name``; None if there is none, or no folder is configured."""
        path = Path(self.pages_folder) / f"{name}.html"
        return path if self.pages_folder and path.is_file() else None


class Desktop(Backend, frozen=True):
    """The ``desktop`` backend: sandboxed desktops with real X applications, and small tasks on them."""

    call_timeout_s: AboveZero = 60.0
    """Timeout of a call to the environment; a longer call is a fault. A reset takes 2 s on an idle machine, and 20 s on
    a busy one."""
    width: Annotated[int, Meta(ge=160, le=3840)] = 320
    """Width of the screen, in pixels."""
    height: Annotated[int, Meta(ge=120, le=2160)] = 240
    """Height of the screen, in pixels."""
    spares: Annotated[int, Meta(ge=0, le=64)] = 2
    """Spare desktops, each prepared for the task of an order that waits for a slot."""
    calls: bool = False
    """Offer functions beside mouse and keyboard: files of the home, and the document that LibreOffice shows."""


class Phone(Backend, frozen=True):
    """The ``phone`` backend: Android applications with real views, and small tasks on them (``make phone``)."""

    densities: ClassVar[dict[int, str]] = {120: "ldpi", 160: "mdpi", 240: "hdpi", 320: "xhdpi"}
    """Android's names of densities."""

    call_timeout_s: AboveZero = 60.0
    """Timeout of a call to the environment; a longer call is a fault. The start of a phone may take longer."""
    width: Annotated[int, Meta(ge=160, le=1440)] = 270
    """Width of the screen, in pixels."""
    height: Annotated[int, Meta(ge=240, le=3200)] = 480
    """Height of the screen, in pixels."""
    dpi: Literal[120, 160, 240, 320] = 120
    """Density of the screen, in pixels per inch: the higher it is, the larger everything is drawn."""
    calls: bool = False
    """Offer the functions ``open_app`` and ``set_text`` beside touches and keys."""

    def __post_init__(self) -> None:
        """Refuse a size that is no whole number of Android's units, of which an inch has 160."""
        for name in ("width", "height"):
            if getattr(self, name) * 160 % self.dpi:
                raise ValueError(f"{name} is a multiple of {self.dpi // math.gcd(self.dpi, 160)} at {self.dpi} dpi")

    @property
    def qualifiers(self) -> str:
        """The screen in the form of Android's resource qualifiers."""
        width, height = self.width * 160 // self.dpi, self.height * 160 // self.dpi
        return f"w{width}dp-h{height}dp-{'port' if height >= width else 'land'}-{self.densities[self.dpi]}"


class OsworldMachine(Optional, frozen=True):
    """A machine that serves OSWorld's HTTP contract."""

    url: str
    """Its address, such as ``http://127.0.0.1:5000``."""
    token: str = ""
    """Its token, if it asks for one, as ``env:NAME`` or ``file:PATH``."""
    chromium_port: Positive = 9222
    """Debugging port of its browser."""
    vlc_port: Positive = 8080
    """Port of its VLC."""

    def __post_init__(self) -> None:
        """Refuse a literal token."""
        refuse_literal(self.token, "token")


class Osworld(Backend, frozen=True):
    """The ``osworld`` backend: machines with OSWorld's HTTP contract, from one of the first three keys."""

    machines: tuple[OsworldMachine, ...] = ()
    """The machines, each for one episode at a time."""
    lease_url: str = ""
    """Address of a lease server, which ``dart-streams worker desktops`` prints as ``leases``."""
    acquire: tuple[str, ...] = ()
    """Command that creates a machine and prints ``{"url": …}``, with a ``token`` if the machine asks for one."""
    release: tuple[str, ...] = ()
    """Command that reads the output of ``acquire`` on its standard input, and removes the machine."""
    lease_token: str = ""
    """The lease server's token, as ``env:NAME`` or ``file:PATH``."""
    lease_s: AboveZero = 60.0
    """Length of a lease that is not renewed, as after a worker's death; ``acquire`` reads it in ``DART_LEASE_S``."""
    fresh: Literal["", "given"] = ""
    """``given``: an outside process resets each machine of the list before an episode."""
    reset_timeout_s: AboveZero = 120.0
    """Timeout of a reset (lease, start of the machine, set-up of the task), and of an evaluation."""
    mirror_folder: str = ""
    """The files of OSWorld's tasks (``dart-streams osworld mirror``), relative to the configuration file."""
    pages_folder: str = ""
    """Recorded web pages (``dart-streams osworld pages``) that desktops replay; empty: tasks of the web are refused."""
    check_start: bool = True
    """Score the untouched start state of each task before its first episode, and refuse a task with a reward there."""
    settle: Literal["still", "pause"] = "still"
    """Time of the screen after an action: once two screens in a row are equal, or after a ``pause``."""
    pause_s: NonNegative = 0.1
    """Pause after an action before its screen; OSWorld's own is 2."""
    settle_s: NonNegative = 2.0
    """Time that a screen may take to be ``still``."""

    def __post_init__(self) -> None:
        """Refuse a literal token."""
        refuse_literal(self.lease_token, "lease_token")


class Desktops(Optional, frozen=True):
    """Desktops for remote clients (``worker desktops``), with the size of ``[env.desktop]``."""

    slots: Positive = 2
    """Desktops at a time."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port of the lease server on loopback, which prints it; 0: a free one."""
    token: str = ""
    """The lease server's token, as ``env:NAME`` or ``file:PATH``; empty: a new one, whose file is printed."""
    ask_token: bool = True
    """Ask clients for the token; without it any user of this machine may run commands in desktops."""
    lease_s: AboveZero = 60.0
    """Length of a lease that is not renewed, and the longest that a client may ask for."""

    def __post_init__(self) -> None:
        """Refuse a literal token, and an unused one."""
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
    """The backend of an installed package (entry point group ``dart_streams.environments``)."""

    options: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Settings that the backend checks."""


class ToolServer(Optional, frozen=True):
    """An MCP server, whose tools the policy may call; each episode has its own process (``make desktop``)."""

    name: Annotated[str, Meta(pattern="^[a-z][a-z0-9_-]{0,30}$")]
    """Its tools are offered as ``name.tool``."""
    command: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Command that serves MCP on its standard input and output, in an empty folder that is removed after the episode.
    It runs as the worker's user, outside of any sandbox."""
    only: tuple[str, ...] = ()
    """The offered tools; empty: all of the server."""


class Mcp(Optional, frozen=True):
    """Tools of MCP servers, with any backend."""

    servers: tuple[ToolServer, ...] = ()
    """The servers."""

    def __post_init__(self) -> None:
        """Refuse two servers of one name."""
        names = [server.name for server in self.servers]
        if len(set(names)) < len(names):
            raise ValueError(f"names of servers are distinct: {', '.join(names)}")


class StoredScreenshots(Optional, frozen=True):
    """How screenshots are stored. The policy sees the stored picture, in rollouts as in training."""

    format: Literal["", "webp", "jpeg"] = ""
    """``webp`` or ``jpeg`` compress each screenshot with losses, and scale one that is larger than the policy's image
    down to that. Empty: as the environment gives it, usually a PNG."""
    quality: Annotated[int, Meta(ge=1, le=100)] = 80
    """Quality of ``webp`` and ``jpeg``; a lower one takes fewer bytes."""


class Env(Section, frozen=True):
    """Environment workers."""

    backend: Annotated[str, Meta(min_length=1)] = "miniwob"
    """``miniwob``, ``desktop``, ``osworld``, ``phone``, ``simulated``, or an environment of an installed package."""
    workers: Count = 1
    """Processes."""
    slots: Positive = 16
    """Concurrent episodes of a process."""
    request_timeout_s: AboveZero = 20.0
    """Time that a slot waits for the answer to a step request before it repeats it."""
    episode_timeout_s: AboveZero = 120.0
    """Timeout of an episode; a longer one ends as a fault."""
    miniwob: Miniwob = Miniwob()
    desktop: Desktop = Desktop()
    osworld: Osworld = Osworld()
    phone: Phone = Phone()
    simulated: Simulated = Simulated()
    installed: Installed = Installed()
    mcp: Mcp = Mcp()
    screenshots: StoredScreenshots = StoredScreenshots()

    @property
    def offers_calls(self) -> bool:
        """Whether prompts may have offered functions and what they returned."""
        offering = {"desktop": self.desktop.calls, "phone": self.phone.calls}
        return bool(self.mcp.servers) or offering.get(self.backend, False)

    @property
    def selected(self) -> Backend:
        """The table of the backend in use."""
        built_in: dict[str, Backend] = {
            "miniwob": self.miniwob,
            "desktop": self.desktop,
            "osworld": self.osworld,
            "phone": self.phone,
            "simulated": self.simulated,
        }
        return built_in.get(self.backend, self.installed)

    @property
    def screen(self) -> tuple[int, int] | None:
        """Width and height of every screen in pixels, None if the configuration does not know them."""
        if isinstance(backend := self.selected, Desktop | Phone):
            return backend.width, backend.height
        return backend.screen if isinstance(backend, Miniwob | Simulated) else None
