"""The checks of ``dart-streams doctor`` for desktops, and for OSWorld's tasks on them."""

import os
import shutil
import subprocess
from pathlib import Path

from console.cli.doctor_checks import Finding
from dart_desktops.desktop import command_line, office
from dart_desktops.osworld import sidecar
from dart_desktops.osworld.mirror import Mirror, needed_urls
from dart_desktops.osworld.tasks import load_all
from dart_streams.config import Config, tasks
from dart_streams.errors import ConfigError


def check_desktop(config: Config) -> Finding:
    """Check the sandbox, the X server and the applications of desktops."""
    if config.env.backend != "desktop":
        return Finding("desktop", "ok", f"not needed by environment {config.env.backend!r}")
    if missing := [name for name in command_line.PROGRAMS if shutil.which(name) is None]:
        return Finding("desktop", "fail", f"not installed: {', '.join(missing)}", "make desktop, in the repository")
    try:
        subprocess.run(command_line.TRIAL, capture_output=True, text=True, timeout=20, check=True)
    except subprocess.CalledProcessError as error:
        found = f"bwrap makes no sandbox: {error.stderr.strip()}"
        return Finding("desktop", "fail", found, command_line.ALLOW_SPACES)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("desktop", "fail", f"bwrap does not run: {error}", "make desktop, in the repository")
    if missing := [name for name in office.PROGRAMS if shutil.which(name) is None]:
        return Finding("desktop", "warn", f"no office tasks: {', '.join(missing)}", "make desktop, in the repository")
    return Finding("desktop", "ok", "sandboxes by bwrap")


def check_osworld(config: Config) -> Finding:
    """Check the evaluators' environment and the mirror of OSWorld's tasks."""
    if config.env.backend != "osworld":
        return Finding("osworld", "ok", f"not needed by environment {config.env.backend!r}")
    named = config.env.osworld.mirror_folder
    try:
        file = tasks.task_file(Path(config.tasks.file))
    except ConfigError as error:
        return Finding("osworld", "fail", "no usable task set", str(error))
    if file.osworld is None:
        return Finding("osworld", "ok", "no task of OSWorld is in the task set")
    python = sidecar.ENVIRONMENT / "bin" / "python"
    if not python.exists():
        return Finding("osworld", "fail", f"no {sidecar.ENVIRONMENT}", "make osworld, in the repository")
    return mirror_of(named, file.osworld, Path(config.tasks.file).parent)


def mirror_of(named: str, listed: tasks.OsworldTasks, base: Path) -> Finding:
    """Check that a mirror has the files of the tasks, and count its placeholders."""
    folder = Path(named or os.devnull)
    try:
        examples = listed.examples(base)
        usable, unusable = load_all(examples, (page.page for page in listed.pages(base)))
        wanted = {url for task in usable for url in needed_urls(task)}
        own = Mirror(folder)
        made = sum(known.made for known in own.recorded().values())
    except ConfigError as error:
        return Finding("osworld", "fail", "no usable task files", str(error))
    if wanted and not folder.is_dir():
        found = f"no mirror {named}" if named else "no mirror is named"
        return Finding(
            "osworld", "fail", found, "set env.osworld.mirror_folder: `dart-streams osworld mirror` fills it"
        )
    missing = sum(own.find(url) is None for url in wanted)
    found = f"{folder} has {len(wanted) - missing} of {len(wanted)} files, {made} of our own making"
    if not wanted:
        found = "none of its tasks needs a file of the mirror"
    if unusable:
        found = f"{len(unusable)} tasks can't be used, for instance {unusable[0].page}: {unusable[0].reason}; {found}"
        return Finding("osworld", "warn", found, "mend these files, or leave the tasks out of the list")
    if missing:
        return Finding("osworld", "warn", found, f"`dart-streams osworld mirror {folder}` says which are missing")
    return Finding("osworld", "ok", found)
