"""The table ``[launch]``: options of the scripts that ``dart-streams launch slurm`` writes."""

from typing import Annotated

from msgspec import Meta

from dart_streams.config.section import Optional

SbatchOption = Annotated[str, Meta(pattern=r"^--[a-z][a-z-]*(=[ -~]+)?$")]
"""An option of sbatch on one line, such as ``--partition=gpu``."""


class LaunchOptions(Optional, frozen=True):
    """Slurm jobs of ``dart-streams launch slurm``, as options of sbatch (``--partition=gpu``)."""

    options: tuple[SbatchOption, ...] = ()
    """Options of every job, such as ``--account=NAME`` and ``--time=2-00:00:00``."""
    cpu_options: tuple[SbatchOption, ...] = ()
    """More options of the jobs without GPUs: environments, and recorder, curator and monitor."""
    gpu_options: tuple[SbatchOption, ...] = ()
    """More options of the jobs with GPUs: rollout and trainer."""
