"""The configuration of a deployment: one strict TOML file into frozen structs.

Unknown keys are errors that name the key and the nearest known one. Every process of a run reads the same file.
"""

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from dart_streams.config.workload import Workload
from dart_streams.errors import ConfigError
from topics.values import Sampling


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the configuration file."""


SECRET = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+")
"""How a password is given: where it is, never itself, so that a configuration can be shown, kept and sent around."""


class Tls(Section):
    """TLS to a service. A host that its certificate was not made for, or a certificate not trusted, is always refused.

    ``ca_file`` has the authorities to trust (PEM); empty: those of the system. ``certificate_file`` and ``key_file``
    are this side's own, for services that ask for one (mutual TLS); ``key_password`` says where the key's password is,
    as :data:`SECRET`. Files are relative to the configuration file.
    """

    enabled: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = ""

    def __post_init__(self) -> None:
        """Refuse what would be ignored in silence."""
        if not self.enabled and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError("files are given, but TLS is off: set enabled = true here")
        if bool(self.certificate_file) != bool(self.key_file) or (self.key_password and not self.key_file):
            raise ValueError("certificate_file and key_file go together, and key_password with them")
        refuse_literal(self.key_password, "key_password")


class Login(Section):
    """Who this side is to a service; empty: nobody. ``password`` says where the password is, as :data:`SECRET`."""

    user: str = ""
    password: str = ""

    def __post_init__(self) -> None:
        """Refuse half a login, and a password in the configuration itself."""
        if bool(self.user) != bool(self.password):
            raise ValueError("user and password go together")
        refuse_literal(self.password, "password")


class KafkaLogin(Login):
    """Kafka's (SASL): ``mechanism`` is one that the broker has switched on."""

    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"


def refuse_literal(reference: str, key: str) -> None:
    """Raise ValueError, without showing it, if ``reference`` is not of the form :data:`SECRET`."""
    if reference and not SECRET.fullmatch(reference):
        raise ValueError(
            f"{key} must say where the password is, not be it: env:NAME for an environment variable, or file:PATH"
        )


def refuse_clear_password(hosts: Sequence[str], tls: Tls) -> None:
    """Raise ValueError if a password would travel beyond this machine for all to read."""
    if not tls.enabled and not all(map(is_loopback, hosts)):
        raise ValueError("the password would travel in the clear: set tls.enabled = true")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine; a name other than localhost never is."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Bus(Section):
    """Kafka. ``wait_s`` is how long a process waits for the broker before it gives up."""

    servers: str = "127.0.0.1:9092"
    prefix: str = "dart."
    wait_s: float = 30.0
    tls: Tls = Tls()
    login: KafkaLogin = KafkaLogin()

    def __post_init__(self) -> None:
        """Refuse to send a password in the clear; SCRAM never sends it."""
        if self.login.user and self.login.mechanism == "PLAIN":
            refuse_clear_password([host for host, _ in self.places], self.tls)

    @property
    def places(self) -> list[tuple[str, str]]:
        """The servers as host and port."""
        parted = (server.strip().rpartition(":") for server in self.servers.split(","))
        return [(host, port) for host, _, port in parted]

    @property
    def run(self) -> str:
        """The run that this prefix names; rows of the shared store carry it."""
        return self.prefix.strip(".")


class Store(Section):
    """Cassandra. ``blob_cache_mb`` bounds each process's cache of screenshots."""

    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 9042
    keyspace: str = "dart"
    blob_cache_mb: int = 64
    wait_s: float = 30.0
    tls: Tls = Tls()
    login: Login = Login()

    def __post_init__(self) -> None:
        """Refuse to send a password in the clear."""
        if self.login.user:
            refuse_clear_password(self.hosts, self.tls)


class Services(Section):
    """The local JVM services that ``dart-streams up`` starts; their ports follow ``bus.servers`` and ``store.port``.

    ``optimise`` has the JVMs use their second compiler too: a start costs some ten seconds of CPU more, and a record
    less once they run for minutes at hundreds of steps a second.
    """

    kafka_heap_mb: int = 512
    cassandra_heap_mb: int = 768
    ready_s: float = 60.0
    optimise: bool = False


class Tasks(Section):
    """``file`` is the task set, relative to the configuration file."""

    file: str = "tasks.toml"


class Simulated(Section):
    """The ``simulated`` environment: log-normal latencies with these medians (milliseconds) and one sigma.

    A ``workload`` takes their place.
    """

    reset_ms: float = 20.0
    step_ms: float = 5.0
    evaluate_ms: float = 2.0
    sigma: float = 0.5
    hang_rate: float = 0.0
    fault_rate: float = 0.0


Isolation = Literal["context", "document", "problem"]


class Env(Section):
    """Environment workers: ``workers`` processes of ``slots`` concurrent episodes each.

    ``loop_limit``: so many times the same action on an unchanged screen end an episode as failure (``loop``).
    ``episode_timeout_s`` cuts a straggler; ``call_timeout_s`` bounds each call of a browser. ``isolation``
    says what the episodes of a browser do not share: a ``context`` each; or, at less CPU, a ``document`` loaded afresh
    in a context that is wiped; or, at the least, a ``problem`` started again in a document that is restored.
    ``last_screen``: whether the screen after an episode's last action is taken and stored; no prompt ever holds it.
    """

    backend: Literal["miniwob", "simulated"] = "miniwob"
    workers: int = 1
    slots: int = 16
    request_timeout_s: float = 20.0
    request_attempts: int = 3
    call_timeout_s: float = 15.0
    episode_timeout_s: float = 120.0
    loop_limit: int = 4
    isolation: Isolation = "context"
    last_screen: bool = True
    simulated: Simulated = Simulated()


class Policy(Section):
    """The model and what it sees: at most ``max_images`` screenshots and ``max_texts`` earlier answers a prompt.

    ``path`` is a Hugging Face directory. Empty means the tiny demo policy, built and cached under the state folder.
    """

    model_id: str = "tiny"
    path: str = ""
    max_images: int = 2
    max_texts: int = 5
    min_pixels: int = 3136
    max_pixels: int = 1_003_520
    max_tokens: int = 24


class Warmup(Section):
    """Supervised warm-up of the tiny policy on oracle demonstrations that travel the same topics."""

    demonstrations: int = 2000
    steps: int = 400
    batch: int = 16
    learning_rate: float = 1e-3


class Scripted(Section):
    """The ``scripted`` engine: what it answers, and how long it takes (milliseconds; a ``workload`` says it better)."""

    behaviour: Literal["oracle", "random"] = "oracle"
    latency_ms: float = 10.0
    success_rate: float = 0.7


SwitchMode = Literal["keep", "finish", "abort"]


class Rollout(Section):
    """Rollout workers.

    At most ``roll_width`` of them switch weights at the same time: enough for the last to have a version well before
    the next is made (`dart-streams plan` says how many), or what it generates is too old to train on.

    A worker not heard of for ``liveness_s`` no longer delays the others' switch. A worker does not serve if the mean
    difference of its log-probabilities from the trainer's, on a fixed probe, is over ``parity_nats``; half precision
    in both needs more than the default.

    ``switch_mode``: requests under way at a switch go on with the tokens they have (``keep``); or end first, while new
    ones wait (``finish``); or begin anew (``abort``). Only with ``keep`` has an answer tokens of two versions.
    """

    engine: Literal["vllm", "scripted"] = "vllm"
    workers: int = 1
    max_in_flight: int = 32
    kv_cache_gib: int = 1
    heartbeat_s: float = 1.0
    liveness_s: float = 10.0
    roll_width: int = 1
    switch_mode: SwitchMode = "keep"
    retry_s: float = 5.0
    parity_nats: float = 0.005
    scripted: Scripted = Scripted()


class Difficulty(Section):
    """Success rates are over the last ``window`` rewarded finishes of a task."""

    window: int = 16


class Budget(Section):
    """DART's dynamic rollout number: ``base`` below ``threshold``, fewer above it."""

    dynamic: bool = True
    base: int = 8
    threshold: float = 0.6


class Length(Section):
    """DART's dynamic trajectory length: the longest success of a task, plus ``margin``."""

    dynamic: bool = True
    margin: int = 0


class Entropy(Section):
    """DART's high-entropy steps: train on the share ``keep`` of a group's steps."""

    enabled: bool = True
    keep: float = 0.8


class Pool(Section):
    """DART's experience pool: at most ``size`` successes a task."""

    enabled: bool = True
    size: int = 4


class Reward(Section):
    """``shortest_path`` is MobileRL's alpha: a success loses this share of what it is longer than the shortest one."""

    shortest_path: float = 0.0


class Credit(Section):
    """UI-S1's credit of single steps, beside that of the whole trajectory.

    ``step_weight`` times the advantage of a step's future return, discounted by ``discount`` a step, is added to that
    of its trajectory; 0 adds none.
    """

    step_weight: float = 0.0
    discount: float = 0.5


class CurriculumPhase(Section):
    """A phase of a curriculum: ``groups`` groups of tasks with at most ``max_steps`` steps."""

    groups: int
    max_steps: int


class Dispatch(Section):
    """``backlog`` orders a slot; a fault is ordered again until ``attempts`` tries were made in all.

    ``choice`` of tasks: ``informative`` prefers success rates near one half, but passes a task over at most
    ``patience - 1`` times in a row; ``even`` takes them in turn. A task that always succeeds gets a single rollout
    instead of a group, at one of ``probe_every`` groups.

    ``phases`` come one after the other, easy tasks first (CRAFT-GUI); after the last all tasks take part. A task that
    failed ``rest_after`` times in a row rests for ``rest_passes`` passes over all tasks (MobileRL's failure curriculum
    filtering); 0 means that none ever rests.

    ``mode`` is DART's ``rollout-wise``, or one of those it is compared with (``dart_streams/curation/admission.py``):
    ``task-wise`` or ``coupled``.
    """

    mode: Literal["rollout-wise", "task-wise", "coupled"] = "rollout-wise"
    backlog: float = 2.0
    attempts: int = 3
    seed: int = 0
    choice: Literal["informative", "even"] = "informative"
    patience: int = 4
    probe_every: int = 32
    phases: tuple[CurriculumPhase, ...] = ()
    rest_after: int = 0
    rest_passes: int = 3


class Curation(Section):
    """The data manager. ``max_staleness`` is in weight versions."""

    max_staleness: int = 2
    difficulty: Difficulty = Difficulty()
    budget: Budget = Budget()
    length: Length = Length()
    entropy: Entropy = Entropy()
    pool: Pool = Pool()
    reward: Reward = Reward()
    credit: Credit = Credit()
    dispatch: Dispatch = Dispatch()


class Pulse(Section):
    """ComputerRL's Entropulse: supervised phases between steps of reinforcement learning, to raise the entropy again.

    After ``every`` steps (0: never) the policy imitates its own successes, of which the trainer remembers the last
    ``kept`` a task: ``updates`` updates of ``trajectories`` each, which make one weight version.
    """

    every: int = 0
    updates: int = 4
    trajectories: int = 32
    kept: int = 4


class Trainer(Section):
    """The training process: a step takes ``groups_per_step`` curated groups and ends with a weight version.

    With ``tokens_per_step`` it takes groups until they have so many answer tokens, and leaves out the surplus (C3PO).
    ``groups_per_step`` then says how many that usually are: dispatch admits groups by it, and a step never waits for
    more than dispatch admits.

    A step passes over its groups ``epochs`` times, with ``minibatches`` updates (PPO's) each time.
    ``weights_uri`` is where versions are published (any fsspec URL; empty means the run's folder). A checkpoint every
    step resumes exactly; with a larger ``checkpoint_every`` a killed trainer repeats the steps since the last one.
    ``prefetch_mb`` bounds the screenshots read ahead, beyond those of one step. ``mismatch_alarm`` is in nats a token.
    ``dtype`` is what layers compute in; weights, gradients and log-probabilities stay float32. ``recompute`` trades
    time for the memory of activations.

    ``objective``: PPO's clip of each token; ``gspo``, of whole sequences (set ``clip_low`` and ``clip_high`` to about
    3e-4); ``cispo``, of the weight alone. ``dual_clip`` (above 1; 0 is off) bounds tokens of negative advantage.
    ``correction`` of trainer against engine: ratios are cut at ``tis_cap``; or count as 0 outside ``mask_low`` to
    ``mask_high``; or are not corrected for.

    A forward pass takes at most ``micro_batch`` sequences and ``micro_batch_tokens`` tokens, padding and image tokens
    included; a longer sequence goes alone.
    """

    processes: int = 1
    groups_per_step: int = 8
    tokens_per_step: int = 0
    minibatches: int = 1
    epochs: int = 1
    learning_rate: float = 1.5e-4
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    objective: Literal["ppo", "gspo", "cispo"] = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 0.0
    correction: Literal["truncate", "mask", "none"] = "truncate"
    tis_cap: float = 1.0
    mask_low: float = 0.5
    mask_high: float = 5.0
    kl_beta: float = 0.0
    entropy_beta: float = 0.0
    micro_batch: int = 16
    micro_batch_tokens: int = 16_384
    dtype: Literal["float32", "bfloat16"] = "float32"
    recompute: bool = False
    prefetch_mb: int = 256
    checkpoint_every: int = 1
    keep_versions: int = 4
    mismatch_alarm: float = 0.05
    weights_uri: str = ""
    max_train_steps: int | None = None
    pulse: Pulse = Pulse()

    def __post_init__(self) -> None:
        """Refuse what would be ignored in silence."""
        if self.dual_clip and (self.objective == "cispo" or self.dual_clip <= 1):
            raise ValueError(
                "dual_clip must be above 1 (0 is off), and cispo has none: it clips weights, not gradients"
            )
        if self.mask_low > 1 or self.mask_high < 1:
            raise ValueError("mask_low must be at most 1 and mask_high at least 1: equal policies have the ratio 1")


class Evaluation(Section):
    """Held-out evaluation before and after: ``episodes`` rollouts at ``temperature``."""

    episodes: int = 240
    temperature: float = 1.0
    timeout_s: float = 300.0


class Telemetry(Section):
    """Tracing and metrics. ``sampling`` is the share of step requests traced; ``stall_s`` when a wait is reported.

    Spans that fail are written at any ``sampling``. ``otlp_endpoint`` is a collector's base address for OTLP over HTTP,
    for instance ``http://127.0.0.1:4318``; empty: spans and metrics stay in the run's folder.
    """

    sampling: float = 0.0
    otlp_endpoint: str = ""
    metrics_every_s: float = 2.0
    stall_s: float = 30.0


class Run(Section):
    """The supervised run: how long the RL phase lasts, and where state lies.

    ``id`` is set by the supervisor in the resolved configuration that it writes for the run's processes.
    ``demonstrate``: whether the experience pool first gets a demonstration of each training task. ``settle_s``: how
    long open episodes may take to end after training; what takes longer goes back to its topic.
    """

    id: str = "default"
    state_dir: str = ".dart"
    minutes: float = 9.0
    train_steps: int | None = None
    evaluate: bool = True
    demonstrate: bool = True
    settle_s: float = 150.0
    drain_s: float = 10.0

    @property
    def folder(self) -> Path:
        """The run's own folder: its configuration, logs, metrics, weights and report."""
        return Path(self.state_dir) / "runs" / self.id


class Config(Section):
    """A whole deployment. ``workload`` is what simulated parts draw their times from; without it they are quick."""

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
        if self.curation.dispatch.mode == "coupled" and self.trainer.tokens_per_step:
            raise ValueError(
                "curation.dispatch.mode coupled orders groups_per_step groups and waits until they are trained on, but "
                "with trainer.tokens_per_step the trainer may want more of them: set it to 0"
            )

    def sampling(self, temperature: float = 1.0) -> Sampling:
        """Return how orders of this deployment draw tokens."""
        return Sampling(temperature=temperature, max_tokens=self.policy.max_tokens)


def load(path: Path) -> Config:
    """Read and check a configuration file.

    Raises
    ------
    ConfigError
        If the file is missing, is not TOML, or has an unknown key or a wrong value; the text names the place.
    """
    data = read_tables(path, f"no configuration file {path}: name one, for instance deploy/config/demo.toml")
    config = parse(data, source=str(path))
    replace, folder = msgspec.structs.replace, path.parent
    bus, store = config.bus, config.store
    return replace(
        config,
        bus=replace(bus, tls=anchored(bus.tls, folder), login=anchored(bus.login, folder)),
        store=replace(store, tls=anchored(store.tls, folder), login=anchored(store.login, folder)),
    )


S = TypeVar("S", Tls, KafkaLogin, Login)


def anchored(section: S, folder: Path) -> S:
    """Return a section with its files made absolute: they are relative to ``folder``."""

    def absolute(key: str, text: str) -> str:
        if key.endswith("_file"):
            return str((folder / text).absolute())
        if key.endswith("password") and text.startswith("file:"):
            return f"file:{(folder / text.removeprefix('file:')).absolute()}"
        return text

    texts = {key: value for key, value in msgspec.structs.asdict(section).items() if value and isinstance(value, str)}
    return msgspec.structs.replace(section, **{key: absolute(key, text) for key, text in texts.items()})


def read_tables(path: Path, missing: str) -> dict[str, Any]:
    """Read a TOML file; raise :class:`ConfigError`, with the text ``missing`` if it is not there."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(missing) from None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def parse(data: dict[str, Any], source: str = "configuration") -> Config:
    """Turn nested tables into a :class:`Config`; raise :class:`ConfigError` that names the offending key."""
    refuse_unknown_keys(Config, data, source)
    try:
        return msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from None


def refuse_unknown_keys(section: type[msgspec.Struct], data: Any, source: str, place: str = "") -> None:
    """Raise :class:`ConfigError` for the first key of ``data`` that ``section`` does not have."""
    if not isinstance(data, dict):
        return
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    for key, value in data.items():
        where = f"{place}.{key}" if place else key
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
            known = f"did you mean {near[0]!r}?" if near else f"known keys here: {', '.join(sorted(fields))}"
            raise ConfigError(f"{source}: unknown key {where!r}: {known}")
        if nested := _struct_of(fields[key]):
            for item in value if isinstance(value, list) else [value]:
                refuse_unknown_keys(nested, item, source, where)


def _struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the struct a field holds, itself, or none, or as the items of a list; None for plain values."""
    if get_origin(annotation) in (list, tuple, UnionType):
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    return None
