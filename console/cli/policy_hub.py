"""``dart-streams policy fetch`` and ``push``: models from the Hugging Face hub, and exports to it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.options import AsJson
from console.cli.output import note, print_line, show
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from dart_streams.policy.hub_models import HubModel

ModelId = Annotated[str, typer.Argument(help="ORGANIZATION/NAME, with @REVISION or without.", metavar="ID")]


def fetch(
    model_id: ModelId,
    revision: Annotated[str, typer.Option(help="A branch, a tag or a commit. \\[default: main]")] = "",
    output: Annotated[Path | None, typer.Option(help="Write it here, not into the hub's cache.", metavar="DIR")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a model from the Hugging Face hub, and print its folder, its commit and the keys that name it.

    HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HOME and HF_HUB_CACHE count. A repeated command keeps the files
    that are complete. Without --output the model is named by its commit, so that each machine fetches the same files.
    """
    import msgspec

    from console.launch.hub_policy import FetchAnswer

    model = read_id(model_id, revision)
    if output is not None:
        if output.exists() and not output.is_dir():
            raise UserError(f"{output} is a file: name a folder")
        if output.is_dir() and any(output.iterdir()) and not (output / ".cache/huggingface").is_dir():
            raise UserError(f"{output} has other files: name a new folder")
    from dart_streams.policy import hub

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # The client would end only after the files that it is fetching.
    try:
        found = hub.fetch_model(model, output)
    except UserError as error:
        if not as_json:
            raise
        print_line(msgspec.json.encode(FetchAnswer(reason=str(error), exit_code=error.exit_code)).decode())
        raise typer.Exit(error.exit_code) from None
    if as_json:
        answer = FetchAnswer(folder=str(found.folder), commit=found.commit, path=found.path)
        print_line(msgspec.json.encode(answer).decode())
        return
    note(f"{model.repo} at commit {found.commit} in {found.folder}")
    print_line(f'[policy]\npath = "{found.path}"')


def push(
    folder: Annotated[Path, typer.Argument(help="An export of `policy export`.", metavar="DIR")],
    model_id: Annotated[str, typer.Argument(help="The repository, ORGANIZATION/NAME.", metavar="ID")],
    public: Annotated[bool, typer.Option("--public", help="Let everyone read it. \\[default: private]")] = False,
    message: Annotated[str, typer.Option(help="The commit's message.")] = "Export of dart-streams",
    yes: Annotated[bool, typer.Option("--yes", help="Push; without it the files are only listed.")] = False,
) -> None:
    """Push an export to the Hugging Face hub; without --yes, list what would be pushed.

    HF_TOKEN must be able to write. A repository that is missing is created, private unless --public is set.
    """
    model = read_id(model_id, "")
    if str(model) != model.repo:
        raise UserError(f"{model_id}: leave out the revision, an export is pushed to main")
    from dart_streams.policy import hub

    files = hub.pushed_files(folder)
    show(files, as_json=False)
    for warning in hub.push_warnings(folder):
        note(f"warning: {warning}")
    size, seen = sum(file.bytes for file in files) / 1e9, "public" if public else "private"
    what = f"{len(files)} files, {size:.3f} GB, to {hub.address_of(model)} ({seen})"
    if not yes:
        note(f"would push {what}; --yes pushes them")
        return
    print_line(hub.push_folder(folder, model, public=public, message=message))
    note(f"pushed {what}")


def read_id(text: str, revision: str) -> HubModel:
    """Return the model of an id and a revision; raise :class:`UserError` if it is no id, or names two revisions."""
    from dart_streams.policy.hub_models import parse_id

    if revision and "@" in text:
        raise UserError(f"{text} names a revision, and --revision another: give one of them")
    model = parse_id(f"{text}@{revision}" if revision else text)
    if model is None:
        what = "revision" if revision and parse_id(text) else "id"
        raise UserError(f"{revision if what == 'revision' else text!r} is no {what}: use ORGANIZATION/NAME@REVISION")
    return model
