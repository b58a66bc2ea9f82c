"""``dart-streams mcp``: a run's records as tools of an MCP server, for coding agents; it only reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from console.cli.options import FromBundle, RunId, State, run_or_bundle
from console.cli.output import log_to_stderr
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from console.runs.bundle import Bundle
    from dart_adapters.mcp.run_answers import RunAnswers
    from dart_streams.config import Config

TableName = Literal["episodes", "actions", "groups", "train_steps", "versions", "orders", "budgets"]
MOST_ROWS = 200
INSTRUCTIONS = """Answers questions on one run of dart_streams, a system that trains GUI agents with reinforcement
learning. Begin with describe_run. Ids: order g000012/3/0 (group/sample/attempt), group g000012, task page#seed,
optimizer step 7, weight version v7. Rewards are from 0 to 1, log-probabilities and entropies in nats, times in
milliseconds since 1970. Nothing can be changed."""


def serve_tools(run: RunId = "", state: State = Path(".dart"), bundle: FromBundle = None) -> None:
    """Serve a run, or a bundle, as an MCP server on standard input and output; it only reads.

    Needs the package mcp (`make mcp`). A coding agent starts it, for instance with
    `claude mcp add run -- dart-streams mcp --bundle run.dart`.
    """
    log_to_stderr()
    config, source = run_or_bundle(run, state, bundle)
    build_server(config, source).run()


def build_server(config: Config, source: Bundle | None) -> MCPServer:
    """Return the server of a run or bundle; raise UserError if the package mcp is not installed."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise UserError("the package mcp is not installed in this environment: run `make mcp`") from None

    server = MCPServer("dart_streams", instructions=INSTRUCTIONS)
    tools = RunTools(config, source, ToolError)
    for tool in (
        tools.describe_run,
        tools.explain_order,
        tools.explain_group,
        tools.explain_task,
        tools.compare_around_version,
        tools.trace_id,
        tools.list_rows,
    ):
        server.tool()(tool)
    return server


class RunTools:
    """The tools, which raise refusals as ``error``. A run is read anew for each question, and a bundle once."""

    def __init__(self, config: Config, source: Bundle | None, error: type[Exception]) -> None:
        self.config = config
        self.source = source
        self.error = error
        self.kept: RunAnswers | None = None

    def _ask(self, question: Callable[[RunAnswers], Any]) -> Any:
        try:
            answers = self.kept or answers_on(self.config, self.source)
            self.kept = answers if self.source is not None else None
            return question(answers)
        except UserError as refusal:
            raise self.error(str(refusal)) from None

    def describe_run(self) -> dict[str, Any]:
        """Say what the run is: recipes, environment, and counts of episodes, groups, optimizer steps and versions."""
        return self._ask(lambda answers: answers.describe())

    def explain_order(self, order_id: str) -> dict[str, Any]:
        """Say why a rollout was ordered (g000012/3/0: group, sample, attempt), its end, and what its group became."""
        return self._ask(lambda answers: answers.explain_order(order_id))

    def explain_group(self, group_id: str) -> dict[str, Any]:
        """Say why a group (g000012) was curated or dropped, with its members and the optimizer steps that took it."""
        return self._ask(lambda answers: answers.explain_group(group_id))

    def explain_task(self, task_id: str) -> dict[str, Any]:
        """Say a task's success rate, its budget with the reason, and the fate of each of its groups."""
        return self._ask(lambda answers: answers.explain_task(task_id))

    def compare_around_version(self, version: int, window: int = 20) -> dict[str, Any]:
        """List the metrics that changed most at a weight version, from the `window` optimizer steps before it.

        `change` is in standard deviations of a step's value; it is null where values did not vary.
        """
        return self._ask(lambda answers: answers.compare_around(version, window))

    def trace_id(self, identity: str) -> dict[str, Any]:
        """Follow an id both ways: what it was made of, and what it went into, such as a trajectory or version v7.

        A dropped group, an order, a refused proposal or a request without an answer is explained.
        """
        return self._ask(lambda answers: answers.trace(identity))

    def list_rows(
        self, table: TableName, where: dict[str, Any] | None = None, columns: list[str] | None = None, limit: int = 20
    ) -> dict[str, Any]:
        """List rows of a table whose columns equal the values of `where`, such as {"purpose": "train", "reward": 0}.

        Without `columns` a row has all of them, but for lists of tokens. At most 200 rows are returned.
        """
        try:
            return select_rows(self.config, self.source, table, where or {}, columns or [], limit)
        except UserError as refusal:
            raise self.error(str(refusal)) from None


def answers_on(config: Config, source: Bundle | None) -> RunAnswers:
    """Read a run, or a bundle, anew."""
    from console.cli.trace import records_of, spans_of
    from console.views.explanations import READ
    from dart_adapters.mcp.run_answers import RunAnswers

    return RunAnswers(config.bus.run, config, records_of(config, source, READ), spans_of(config, source))


def select_rows(
    config: Config, source: Bundle | None, table: TableName, where: dict[str, Any], columns: list[str], limit: int
) -> dict[str, Any]:
    """Return the matching rows of a table; raise UserError for a column that it does not have."""
    from dart_data.recorded_run import RecordedRun
    from dart_streams.config.tasks import TaskSet

    run = RecordedRun(config, TaskSet([]), source or config.bus)
    rows = iter(getattr(run, table))
    first = next(rows, None)
    if first is None:
        return {"rows": [], "columns": []}
    if unknown := [name for name in (*where, *columns) if name not in first]:
        raise UserError(f"{table} has no column {unknown[0]!r}: it has {', '.join(first)}")
    every = itertools.chain([first], rows)
    fitting = (row for row in every if all(row.get(name) == value for name, value in where.items()))
    shown = columns or [name for name in first if name not in ("tokens", "logprobs", "entropies")]
    picked = itertools.islice(fitting, min(max(1, limit), MOST_ROWS))
    return {"columns": list(first), "rows": [{name: row.get(name) for name in shown} for row in picked]}
