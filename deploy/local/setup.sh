#!/usr/bin/env bash
# Sets up what `make demo` and `make test` need: system packages, the two Python environments, the jars of the local
# Kafka and Cassandra. May be run again at any time: what is up to date is skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."

# A developer's own Python settings would leak into the environments made here.
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME UV_PYTHON UV_PROJECT_ENVIRONMENT PIP_REQUIRE_VIRTUALENV
export UV_PYTHON_DOWNLOADS=never PIP_DISABLE_PIP_VERSION_CHECK=1

STEPS=5
number=0

step() { # description, function
    number=$((number + 1))
    printf '[%d/%d] %-42s' "$number" "$STEPS" "$1"
    local began=$EPOCHREALTIME
    outcome="up to date"
    "$2"
    awk -v a="$began" -v b="$EPOCHREALTIME" -v what="$outcome" 'BEGIN { printf " %s (%.1f s)\n", what, b - a }'
}

fail() {
    printf '\n\nerror: %s\n' "$1" >&2
    exit 2
}

# Runs a command quietly; its output is shown where it fails.
quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        printf '\n' >&2
        tail -n 25 "$log" >&2
        rm -f "$log"
        fail "this failed: $*"
    fi
    rm -f "$log"
}

# For what takes minutes: a terminal shows the command's own progress.
patiently() {
    if [ -t 2 ]; then
        printf '\n' >&2
        "$@" || fail "this failed: $*"
    else
        quietly "$@"
    fi
}

have_java() {
    local java
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*17*/bin/java; do
        if [ -x "$java" ] && [[ $("$java" -version 2>&1) == *'version "17'* ]]; then return 0; fi
    done
    return 1
}

have_browser() {
    command -v chromium-headless-shell >/dev/null || [ -x /usr/lib/chromium/chromium-headless-shell ]
}

# The distribution's interpreter comes first: it is built with optimisation, and vLLM imports twice as fast on it.
find_python() {
    local candidate
    for candidate in /usr/bin/python3 /usr/bin/python3.11 /usr/bin/python3.12 /usr/bin/python3.13; do
        if [ -x "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

missing_packages() {
    have_java || echo openjdk-17-jre-headless
    command -v mvn >/dev/null || echo maven
    have_browser || echo chromium-headless-shell
    # Without a font, pages have boxes for letters.
    compgen -G '/usr/share/fonts/truetype/dejavu/*' >/dev/null || echo fonts-dejavu-core
    compgen -G '/usr/share/fonts/truetype/liberation*/*' >/dev/null || echo fonts-liberation
    # vLLM loads libnuma, and torch compiles kernels on first use.
    [[ $(/sbin/ldconfig -p) == *libnuma.so.1* ]] || echo libnuma1
    command -v g++ >/dev/null || echo g++
    local python
    if ! python=$(find_python); then
        printf '%s\n' python3 python3-venv python3-dev
        return 0
    fi
    "$python" -c 'import ensurepip' 2>/dev/null || echo python3-venv
    "$python" -c 'import pathlib, sysconfig as s, sys; sys.exit(not pathlib.Path(s.get_path("include"), "Python.h").exists())' ||
        echo python3-dev
}

system_packages() {
    local missing
    mapfile -t missing < <(missing_packages)
    if [ ${#missing[@]} = 0 ]; then return; fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "system packages are missing. Install them, then run this again:

    sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}
"
    fi
    printf '\n      installing %s ...' "${missing[*]}"
    quietly apt-get -qq update
    patiently env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    mapfile -t missing < <(missing_packages)
    if [ ${#missing[@]} != 0 ]; then fail "installed, and yet not found: ${missing[*]}"; fi
    outcome="installed"
}

# Whether the stamp of an environment has the digest of what it is made from; $digest is set as well.
is_current() { # environment, files
    local environment=$1
    shift
    digest=$({
        "$PYTHON" -V
        sha256sum "$@"
    } | sha256sum | cut -c1-16)
    [ -x "$environment/bin/python" ] && [ "$(cat "$environment/.stamp" 2>/dev/null || true)" = "$digest" ]
}

tools() {
    PYTHON=$(find_python) || fail "no Python 3.11 or newer in /usr/bin: this system is too old (Debian 12 has one)"
    if is_current .venv/tools requirements/tools.txt; then return; fi
    quietly "$PYTHON" -m venv --clear .venv/tools
    quietly .venv/tools/bin/python -m pip install -q --require-hashes -r requirements/tools.txt
    echo "$digest" >.venv/tools/.stamp
    outcome="made"
}

environment() { # name
    local folder=.venv/$1 requirements=requirements/$1.txt
    if is_current "$folder" "$requirements" pyproject.toml; then return; fi
    if [ ! -x "$folder/bin/python" ] || [ "$("$folder/bin/python" -V)" != "$("$PYTHON" -V)" ]; then
        rm -rf "$folder"
        quietly .venv/tools/bin/uv venv -q --python "$PYTHON" "$folder"
    fi
    # `sync` installs what was pinned, no more; `install` would resolve again, and refuse the model side's overrides.
    patiently .venv/tools/bin/uv pip sync --python "$folder/bin/python" --require-hashes "$requirements"
    # The project itself, from its sources: setuptools is among the pinned, so that nothing else is fetched.
    quietly .venv/tools/bin/uv pip install -q --python "$folder/bin/python" --no-deps --no-build-isolation \
        --config-settings editable_mode=compat --editable .
    echo "$digest" >"$folder/.stamp"
    outcome="made"
}

streams_environment() { environment streams; }
model_environment() { environment model; }

jars() {
    local said
    said=$(.venv/streams/bin/python -m dart_streams.launch.services.jars) || exit $?
    outcome=${said:-$outcome}
}

mkdir -p .venv
# One at a time: a second `make` waits for the first, and then finds all up to date.
exec 9>.venv/.lock
flock 9

step "system packages" system_packages
step "tools (uv)" tools
step "environment .venv/streams" streams_environment
step "environment .venv/model (6 GB)" model_environment
step "jars of Kafka and Cassandra" jars
