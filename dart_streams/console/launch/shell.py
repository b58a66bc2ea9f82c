"""Parts of the shell scripts that ``dart-streams launch`` writes: processes kept alive, and ended with the script."""

import shlex
import sys
from pathlib import Path

from dart_streams.console.launch import keeper, subreaper
from dart_streams.console.launch.supervisor import ProcessSpec

PRELUDE = """\
set -euo pipefail
config={config}
logs={logs}
mkdir -p "$logs"
workers=() last=() measuring=
# Input of all processes: it ends with this script, however that ends, and then they end too.
hold=$(mktemp -d) && mkfifo "$hold/alive"
exec {{alive}}<>"$hold/alive"
exec {{life}}<"$hold/alive"
rm -r "$hold"

# keep NAME COMMAND...: run a process in the background, and start it again when it dies, until the script ends.
keep() {{
    local name=$1
    shift
    (
        exec {{alive}}>&-
        exec setsid {python} -m {keeper} "$name" "$logs/$name.log" {drain_s:g} "$@" <&"$life"
    ) &
}}

# measure COMMAND...: run a command to its end. A signal to this script ends it too.
measure() {{
    (
        exec {{alive}}>&-
        exec setsid {python} -I -S {subreaper} {drain_s:g} "$@" <&"$life"
    ) &
    measuring=$!
    await "$measuring"
    wait "$measuring"
    measuring=
}}

# end PID...: end processes, and wait for them.
end() {{
    for each in "$@"; do kill -TERM "$each" 2>/dev/null || true; done
    await "$@"
}}

# await PID...: wait for processes. A trap runs between two looks; within `wait` bash may lose a signal.
await() {{
    for each in "$@"; do
        while kill -0 "$each" 2>/dev/null; do sleep 0.5; done
    done
}}

stop() {{
    trap '' TERM INT USR1
    end ${{measuring:+"$measuring"}} "${{workers[@]}}"
    end "${{last[@]}}" # the recorder: it records what the others have sent
}}

trap 'exit 143' TERM
trap 'exit 130' INT
trap 'exit 1' USR1
trap stop EXIT
"""


def prelude_text(config_file: Path, logs: Path, drain_s: float) -> str:
    """Return the beginning of a script that keeps processes alive."""
    return PRELUDE.format(
        config=shlex.quote(str(config_file)),
        logs=shlex.quote(str(logs)),
        drain_s=drain_s,
        python=shlex.quote(sys.executable),
        subreaper=shlex.quote(subreaper.__file__),
        keeper=keeper.__name__,
    )


def keep_lines(spec: ProcessSpec, config_file: Path) -> list[str]:
    """Return the lines that keep a process alive, with its variables."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in spec.environment.items()]
    words = [*(["env", *variables] if variables else []), command_words(spec.command, config_file)]
    group = "last" if spec.last else "workers"
    return [f"keep {shlex.quote(spec.name)} {' '.join(words)}", f"{group}+=($!)"]


def command_words(command: tuple[str, ...], config_file: Path) -> str:
    """Return a command as words of a script that has the configuration file in a variable."""
    return " ".join('"$config"' if word == str(config_file) else shlex.quote(word) for word in command)
