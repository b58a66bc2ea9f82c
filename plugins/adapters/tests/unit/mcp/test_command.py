"""``dart-streams mcp``: its own process asked by the official library's client."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="`make mcp` installs the package mcp")
from mcp import Client, StdioServerParameters, stdio_client

from tests.integration.recorded_run import record

PROGRAM = Path(sys.prefix) / "bin/dart-streams"
TOOLS = {"describe_run", "explain_order", "explain_group", "explain_task"}
TOOLS |= {"compare_around_version", "trace_id", "list_rows"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return record(tmp_path_factory.mktemp("mcp") / "run.dart")


async def test_a_client_finds_why_a_rollout_was_ordered_and_what_became_of_it(bundle: Path):
    server = StdioServerParameters(command=str(PROGRAM), args=["mcp", "--bundle", str(bundle)])
    async with Client(stdio_client(server)) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == TOOLS
        assert all(tool.description and "self" not in tool.input_schema["properties"] for tool in tools)

        async def ask(tool: str, **arguments):
            answer = await client.call_tool(tool, arguments)
            assert not answer.is_error, answer.content[0].text
            return answer.structured_content

        assert (await ask("describe_run"))["train_steps"] > 0
        rows = await ask("list_rows", table="orders", where={"purpose": "train"}, columns=["order_id"], limit=1)
        [row] = rows["rows"]
        said = await ask("explain_order", order_id=row["order_id"])
        assert said["why"] == "because nothing was known yet" and said["outcome"]["trajectory_id"]
        refused = await client.call_tool("explain_group", {"group_id": "nowhere"})
        assert refused.is_error and "no group 'nowhere'" in refused.content[0].text
