"""``dart-streams topics`` and ``dlq``: declared and actual topics, and dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from console.cli.options import AsJson, ConfigFile, RunConfig, RunId, State, read_config, run_config
from console.cli.output import log_to_stderr, note, show, show_json
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

    from dart_streams.bus.topology import Change, TopicSpec
    from dart_streams.config import Config

app = typer.Typer(no_args_is_help=True, callback=log_to_stderr)
dead_letters = typer.Typer(no_args_is_help=True, callback=log_to_stderr)

AS_DECLARED = "all topics are as declared"
OfTopic = Annotated[str, typer.Argument(help="The topic whose dead letters are meant.", metavar="TOPIC")]
Place = Annotated[str, typer.Option("--at", help="A single letter, by its place.", metavar="PARTITION@OFFSET")]


def specs_of(config: Config) -> list[TopicSpec]:
    """Return every topic of a deployment, changelogs included."""
    from dart_streams.bus.topology import declare_topics
    from workers.curator.changelogs import changelog_topics

    return declare_topics(config.bus, changelog_topics(config))


def plan_changes(client: KafkaAdminClient, config: Config) -> list[Change]:
    """Return the changes to a deployment's topics, and note those that keep more partitions than declared."""
    from dart_streams.bus import admin
    from dart_streams.bus.topology import list_grown, plan

    wanted = specs_of(config)
    actual = admin.read_topics(client, wanted)
    for sentence in list_grown(wanted, actual):
        note(sentence)
    return plan(wanted, actual)


@app.command("plan")
def plan_topics(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show what `apply` would change, and change nothing."""
    from dart_streams.bus import admin

    deployment = read_config(config)
    with admin.connect(deployment.bus) as client:
        show(plan_changes(client, deployment), as_json=as_json, empty=AS_DECLARED)


@app.command("apply")
def apply_topics(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Create and alter topics until they are as declared; the changes are shown first."""
    from dart_streams.bus import admin

    deployment = read_config(config)
    with admin.connect(deployment.bus) as client:
        changes = plan_changes(client, deployment)
        show(changes, as_json=as_json, empty=AS_DECLARED)
        admin.apply(client, changes)
    if changes:
        note(f"{len(changes)} changes applied")


@app.command("move")
def move_topics(
    config: ConfigFile = None,
    timeout_s: Annotated[float, typer.Option(help="Seconds to wait until the copies are complete.")] = 600.0,
    as_json: AsJson = False,
) -> None:
    """Give existing topics, and Kafka's offsets, the copies of `bus.topics.replicas` on the brokers that are there."""
    from dart_streams.bus import admin

    deployment = read_config(config)
    if not (copies := deployment.bus.topics.replicas):
        raise UserError("set bus.topics.replicas to the number of copies, and move the topics then")
    with admin.connect(deployment.bus) as client:
        moves = admin.plan_placements(client, [spec.name for spec in specs_of(deployment)], copies)
        show(moves, as_json=as_json, empty=f"all partitions have {copies} copies")
        admin.move(client, moves, timeout_s)
    if moves:
        note(f"{len(moves)} partitions moved; `dart-streams topics apply` sets what belongs to the copies")


@app.command("describe")
def describe_topics(
    run: RunId = "", state: State = Path(".dart"), config: RunConfig = None, as_json: AsJson = False
) -> None:
    """Show a run's topics: partitions, configuration, end offsets and retained records of each partition."""
    from dart_streams.bus import admin

    deployment = run_config(run, state, config)
    with admin.connect(deployment.bus) as client:
        states = admin.describe(client, specs_of(deployment))
    empty = f"no topics {deployment.bus.prefix}*: create them with `dart-streams topics apply`"
    show(states, as_json=as_json, empty=empty)


@app.command("export")
def export_topics(
    config: ConfigFile = None,
    form: Annotated[
        Literal["strimzi"], typer.Option("--format", help="The form: KafkaTopic resources for Strimzi.")
    ] = "strimzi",
    cluster: Annotated[str, typer.Option(help="The name of the Kafka resource that the topics belong to.")] = "kafka",
    namespace: Annotated[str, typer.Option(help="Its namespace. \\[default: the namespace they are applied in]")] = "",
) -> None:
    """Print the declared topics as resources for an operator that creates them."""
    from dart_streams.bus.topology import strimzi_yaml

    typer.echo(strimzi_yaml(specs_of(read_config(config)), cluster, namespace), nl=False)


@app.command("acls")
def list_acls(
    kind: Annotated[str, typer.Argument(help="A kind of process. \\[default: all of them]")] = "",
    config: ConfigFile = None,
    user: Annotated[str, typer.Option(help="The login of a kind; {kind} stands for it.")] = "dart-{kind}",
    give: Annotated[bool, typer.Option("--apply", help="Give these rights at the broker.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which topics and groups each kind of process may use, for a broker that enforces ACLs."""
    from console.launch import access_rights
    from dart_streams.bus import admin

    deployment = read_config(config)
    kinds = [kind] if kind else access_rights.KINDS
    rights = [
        right for each in kinds for right in access_rights.rights_of(each, deployment, user.replace("{kind}", each))
    ]
    show(rights, as_json=as_json, empty=f"{kind} needs none")
    if give:
        with admin.connect(deployment.bus) as client:
            access_rights.grant(client, rights)
        note(f"{len(rights)} rights given")


@app.command("schema")
def print_schema(name: Annotated[str, typer.Argument(help="A topic. \\[default: all of them]")] = "") -> None:
    """Print the JSON schema of a topic's event, or of every topic's."""
    import msgspec

    import topics
    from dart_streams.bus.topology import find_topic

    if name:
        show_json(msgspec.json.schema(find_topic(name).event))
    else:
        show_json({topic.schema: msgspec.json.schema(topic.event) for topic in topics.ALL})


@dead_letters.command("list")
def list_letters(
    run: RunId = "", state: State = Path(".dart"), config: RunConfig = None, as_json: AsJson = False
) -> None:
    """Count each topic's dead letters, by reason."""
    from console.repair import dead_letters as letters

    bus = run_config(run, state, config).bus
    show(letters.summarize_letters(bus), as_json=as_json, empty=f"no dead letters under {bus.prefix!r}")


@dead_letters.command("show")
def show_letters(
    topic: OfTopic,
    place: Place = "",
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show a topic's dead letters: where each came from, why it was rejected, and its value."""
    from console.repair import dead_letters as letters

    rows = letters.read_letters(run_config(run, state, config).bus, letters.topic_of(topic), place)
    show(rows, as_json=as_json, empty=f"no dead letters of {topic}")


@dead_letters.command("redrive")
def redrive(
    topic: OfTopic,
    place: Place = "",
    everything: Annotated[bool, typer.Option("--all", help="Send all of the topic's letters back.")] = False,
    run: RunId = "",
    state: State = Path(".dart"),
    config: RunConfig = None,
    as_json: AsJson = False,
) -> None:
    """Publish dead letters to their topic again, as they first were; one that was sent back before is skipped.

    Exits with 1 if one could not be sent.
    """
    from console.repair import dead_letters as letters

    if bool(place) == everything:
        raise UserError("name what to send back: one letter with --at PARTITION@OFFSET, or --all of them")
    result = letters.redrive(run_config(run, state, config).bus, letters.topic_of(topic), place)
    show(result, as_json=as_json, empty=f"no dead letters of {topic}")
    if any(row.outcome.startswith(letters.NOT_SENT) for row in result):
        raise typer.Exit(1)
