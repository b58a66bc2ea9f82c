"""``dart-streams bench``: what the project's own benchmarks measure on this machine, as JSON.

Each subject has a module of commands. A command imports its benchmark when it runs, so that help starts fast.
"""

import typer

from benchmarks import curation_commands, environment_commands, mode_commands, training_commands
from benchmarks.learning import commands as learning_commands
from benchmarks.peers import commands as peer_commands

SUBJECTS = (
    learning_commands,
    curation_commands,
    mode_commands,
    environment_commands,
    training_commands,
    peer_commands,
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for subject in SUBJECTS:
    app.add_typer(subject.app)
