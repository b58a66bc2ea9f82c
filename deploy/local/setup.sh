#!/usr/bin/env bash
# Sets up the project on this machine. It can be repeated, and skips finished steps.
#
#   setup.sh          `make demo` and `make test`: system packages, both Python environments, jars, checks of the page
#   setup.sh desktop  the environment `desktop`: the programs of a desktop and of its sandbox, and MCP's client
#   setup.sh osworld  OSWorld's tasks: applications, and the environment of the evaluators
#   setup.sh phone    the environment `phone`: Android's framework with Robolectric, and the phone's applications
#   setup.sh mcp      `dart-streams mcp`, and MCP servers of `env.mcp`: the package mcp
#   setup.sh data     data sets and trackers: their environment
#   setup.sh dev      `make unit` and `make lint`: the environment of the streams side, checks of the page
#   setup.sh pythons  `make test`: an environment of each other supported version of Python that this machine has
#   setup.sh docs     `make docs`: the environment of MkDocs
#   setup.sh adapters `make test-adapters`: environments of BrowserGym and OpenEnv
#   setup.sh peers    `dart-streams bench browsergym` and `bench trl`: environments of BrowserGym and TRL
#
# GPU=1 makes .venv/model for NVIDIA GPUs, GPU=0 for a CPU. The choice is kept; without one the machine decides.
#
# Runs in bash 3.2 too, the version of macOS.
set -euo pipefail
cd "$(dirname "$0")/../.."

# A developer's own Python settings would leak into the environments made here.
unset VIRTUAL_ENV PYTHONPATH PYTHONHOME UV_PYTHON UV_PROJECT_ENVIRONMENT PIP_REQUIRE_VIRTUALENV
export UV_PYTHON_DOWNLOADS=never PIP_DISABLE_PIP_VERSION_CHECK=1

number=0
steps=0

now() {
    local time=${EPOCHREALTIME:-$(date +%s)}
    echo "${time/,/.}"
}

since() { # time
    awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f s", b - a }'
}

step() { # description, function, arguments
    local description=$1 began
    shift
    number=$((number + 1))
    printf '[%d/%d] %-42s' "$number" "$steps" "$description"
    began=$(now)
    outcome="up to date"
    "$@"
    printf ' %s (%s)\n' "$outcome" "$(since "$began")"
}

fail() {
    printf '\n\nerror: %s\n' "$1" >&2
    exit 2
}

# Runs a command quietly, and prints its output if it fails.
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

# Runs a command of minutes; a terminal shows its progress.
patiently() {
    if [ -t 2 ]; then
        printf '\n' >&2
        "$@" || fail "this failed: $*"
    else
        quietly "$@"
    fi
}

on_linux() { [ "$(uname -s)" = Linux ]; }

# The distribution's interpreter comes first: it is built with optimization, and vLLM imports twice as fast on it.
find_python() {
    local candidate
    for candidate in /usr/bin/python3 /usr/bin/python3.{11,12,13} python3 python3.{13,12,11} python; do
        candidate=$(command -v "$candidate") || continue
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

# The same places and versions as in find_java of the local services.
have_java() {
    local java version
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java \
        /opt/homebrew/opt/openjdk*/bin/java /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
        [ -x "$java" ] || continue
        version=$("$java" -version 2>&1 | sed -nE 's/.*version "(1\.)?([0-9]+).*/\2/p') || continue
        if [ "${version:-0}" -ge 17 ] && [ "$version" -le 23 ]; then return 0; fi
    done
    return 1
}

# The same places as in PLACES of workers/env/backends/miniwob/browser.py.
have_browser() {
    local place
    for place in /usr/lib/chromium/chromium-headless-shell chromium-headless-shell chrome-headless-shell \
        /usr/lib/chromium/chromium chromium chromium-browser google-chrome google-chrome-stable \
        "/Applications/Chromium.app/Contents/MacOS/Chromium" \
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; do
        if command -v "$place" >/dev/null; then return 0; fi
    done
    return 1
}

have_font() { # pattern
    [ -n "$(find -L /usr/share/fonts /usr/local/share/fonts -iname "$1" -print 2>/dev/null | head -n 1)" ]
}

have_library() { # name; a system without ldconfig is given the benefit of the doubt
    local ldconfig
    ldconfig=$(PATH=$PATH:/sbin:/usr/sbin command -v ldconfig) || return 0
    [[ $("$ldconfig" -p) == *"$1"* ]]
}

# Prints a line for each missing program or library: its apt packages (alternatives separated by |), and its purpose.
missing_python() {
    local python
    if ! python=$(find_python); then
        echo "python3 python3-venv: Python 3.11, 3.12 or 3.13"
    elif ! "$python" -c 'import ensurepip' 2>/dev/null; then
        echo "python3-venv: the modules venv and ensurepip of $python"
    fi
}

missing() {
    missing_python
    # Kafka 4 needs 17; Cassandra 5.0 installs a security manager, which Java 24 no longer has.
    have_java || echo "openjdk-17-jre-headless|openjdk-21-jre-headless: Java 17 to 23 (JAVA_HOME may name it)"
    command -v mvn >/dev/null || echo "maven: Maven (mvn)"
    have_browser || echo "chromium-headless-shell|chromium: a Chromium or Chrome"
    on_linux || return 0
    # Without a font, pages have boxes for letters.
    have_font 'DejaVu*.ttf' || echo "fonts-dejavu-core: the DejaVu fonts"
    have_font 'Liberation*.ttf' || echo "fonts-liberation: the Liberation fonts"
    # vLLM loads libnuma, and torch compiles kernels on first use.
    have_library libnuma.so.1 || echo "libnuma1: libnuma"
    command -v g++ >/dev/null || echo "g++: a C++ compiler (g++)"
    local python include=
    if python=$(find_python); then include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))'); fi
    [ -e "$include/Python.h" ] || echo "python3-dev: the C headers of Python (Python.h)"
}

# The same programs as in PROGRAMS of plugins/desktops/dart_desktops/desktop/command_line.py and office.py; its modules are of the system's Python, for a
# sandbox sees no other.
missing_desktop() {
    local program module
    on_linux || fail "desktops need Linux: they are sandboxes of its namespaces"
    for program in bwrap:bubblewrap Xvfb:xvfb openbox:openbox dbus-daemon:dbus-daemon zenity:zenity \
        mousepad:mousepad pcmanfm:pcmanfm galculator:galculator wmctrl:wmctrl xclip:xclip xdg-open:xdg-utils \
        localc:libreoffice-calc lowriter:libreoffice-writer loimpress:libreoffice-impress \
        dev.tchx84.Portfolio:portfolio-filemanager dconf-editor:dconf-editor; do
        command -v "${program%:*}" >/dev/null || echo "${program#*:}: ${program%:*}"
    done
    [ -e /usr/lib/libreoffice/program/libvclplug_gtk3lo.so ] || echo "libreoffice-gtk3: the windows of LibreOffice"
    [ -x /usr/libexec/at-spi-bus-launcher ] || echo "at-spi2-core: the accessibility bus"
    for module in Xlib:python3-xlib aiohttp:python3-aiohttp PIL:python3-pil pyatspi:python3-pyatspi uno:python3-uno; do
        /usr/bin/python3 -E -s -c "import ${module%:*}" 2>/dev/null ||
            echo "${module#*:}: the module ${module%:*} of /usr/bin/python3"
    done
    [ -e /usr/share/icons/Adwaita ] || echo "adwaita-icon-theme: the icons of GTK"
    [ -e /usr/share/glib-2.0/schemas/org.gnome.desktop.interface.gschema.xml ] ||
        echo "gsettings-desktop-schemas: the settings of GTK"
    have_font 'DejaVu*.ttf' || echo "fonts-dejavu-core: the DejaVu fonts"
    have_font 'Liberation*.ttf' || echo "fonts-liberation: the Liberation fonts"
}

# Applications of OSWorld's tasks, and the programs by which its contract is served.
missing_osworld() {
    local program
    missing_desktop
    for program in gimp:gimp vlc:vlc thunderbird:thunderbird wmctrl:wmctrl \
        xdotool:xdotool xdg-open:xdg-utils gnome-terminal:gnome-terminal xfce4-terminal:xfce4-terminal bc:bc \
        sqlite3:sqlite3 openssl:openssl scrot:scrot socat:socat ffmpeg:ffmpeg tint2:tint2 rg:ripgrep \
        nautilus:nautilus jq:jq sar:sysstat unzip:unzip xsel:xsel; do
        command -v "${program%:*}" >/dev/null || echo "${program#*:}: ${program%:*}"
    done
    [ -x /usr/lib/chromium/chromium ] || command -v chromium >/dev/null || echo "chromium: Chromium with windows"
    for program in sc:calc sd:impress sw:writer; do
        [ -e "/usr/lib/libreoffice/program/lib${program%:*}lo.so" ] || echo "libreoffice-${program#*:}: LibreOffice"
    done
    [ -e /usr/lib/libreoffice/program/libvclplug_gtk3lo.so ] || echo "libreoffice-gtk3: LibreOffice with GTK"
    /usr/bin/python3 -E -s -c 'import tkinter' 2>/dev/null || echo "python3-tk: the module tkinter of /usr/bin/python3"
    # Without it settings are forgotten between processes.
    [ -n "$(find /usr/lib -name libdconfsettings.so -print -quit)" ] || echo "dconf-gsettings-backend: dconf"
    for program in shell:gnome-shell-common settings-daemon:gnome-settings-daemon-common; do
        [ -n "$(find /usr/share/glib-2.0/schemas -name "org.gnome.${program%:*}*.gschema.xml" -print -quit)" ] ||
            echo "${program#*:}: settings of ${program#*:}"
    done
}

# Of packages with a | between them, the first that this release of the distribution has.
available() {
    local package
    for package in $(tr '|' ' ' <<<"$1"); do
        if [ -n "$(apt-cache show --no-all-versions "$package" 2>/dev/null)" ]; then break; fi
        package=${1%%|*}
    done
    echo "$package"
}

packages() { # lines of missing
    local alternatives
    for alternatives in $(sed 's/:.*//' <<<"$1"); do available "$alternatives"; done | xargs
}

system_packages() { # function that says what is missing
    local lines names
    lines=$("$1")
    if [ -z "$lines" ]; then return; fi
    if ! command -v apt-get >/dev/null; then
        fail "this is missing; install it, then run this again:

$(sed 's/^[^:]*: /    - /' <<<"$lines")
"
    fi
    if [ "$(id -u)" != 0 ]; then
        fail "system packages are missing. Install them, then run this again:

    sudo apt-get update && sudo apt-get install -y --no-install-recommends $(packages "$lines")
"
    fi
    printf '\n      installing what is missing ...'
    quietly apt-get -qq update
    names=$(packages "$lines")
    # shellcheck disable=SC2086
    patiently env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $names
    lines=$("$1")
    if [ -n "$lines" ]; then
        fail "installed $names, and yet this is missing:

$(sed 's/^[^:]*: /    - /' <<<"$lines")
"
    fi
    outcome="installed $names"
}

digest_of() { # files, or stdin
    if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi
}

# Checks that the stamp of an environment has the digest of its sources; sets $digest.
is_current() { # environment, files
    local environment=$1
    shift
    digest=$({
        "$PYTHON" -V
        digest_of "$@"
    } | digest_of | cut -c1-16)
    [ -x "$environment/bin/python" ] && [ "$(cat "$environment/.stamp" 2>/dev/null || true)" = "$digest" ]
}

tools() {
    PYTHON=$(find_python)
    if is_current .venv/tools requirements/tools.txt; then return; fi
    quietly "$PYTHON" -m venv --clear .venv/tools
    quietly .venv/tools/bin/python -m pip install -q --require-hashes -r requirements/tools.txt
    echo "$digest" >.venv/tools/.stamp
    outcome="made"
}

# Installs exactly the pinned packages into an environment.
synced() { # environment, requirements
    local folder=$1
    shift
    if [ ! -x "$folder/bin/python" ] || [ "$("$folder/bin/python" -V)" != "$("$PYTHON" -V)" ]; then
        rm -rf "$folder"
        quietly .venv/tools/bin/uv venv -q --python "$PYTHON" "$folder"
    fi
    # `install` would resolve again, and refuse the model side's overrides.
    patiently .venv/tools/bin/uv pip sync --python "$folder/bin/python" --require-hashes "$@"
}

environment() { # name, name of its requirements
    local folder=.venv/$1 requirements=requirements/${2:-$1}.txt project projects=()
    if is_current "$folder" "$requirements" pyproject.toml plugins/*/pyproject.toml; then return; fi
    synced "$folder" "$requirements"
    # The project and its plug-ins, from their sources: setuptools is among the pinned, so that nothing else is fetched.
    for project in . plugins/*; do projects+=(--editable "$project"); done
    quietly .venv/tools/bin/uv pip install -q --python "$folder/bin/python" --no-deps --no-build-isolation \
        --config-settings editable_mode=compat "${projects[@]}"
    echo "$digest" >"$folder/.stamp"
    outcome="made"
}

# An environment without this project; further requirements are installed without their dependencies.
peer_environment() { # name, further names of requirements
    local folder=.venv/$1 requirements=("${@/#/requirements/}")
    requirements=("${requirements[@]/%/.txt}")
    if is_current "$folder" "${requirements[@]}"; then return; fi
    synced "$folder" "${requirements[@]}"
    echo "$digest" >"$folder/.stamp"
    outcome="made"
}

streams_environment() { environment streams; }

# Beside the pinned packages of the environment; another `make setup` removes it when those change.
mcp_client() {
    quietly .venv/tools/bin/uv pip install --python .venv/streams/bin/python --require-hashes -r requirements/mcp.txt
}

docs_environment() { environment docs; }

data_environment() { environment data; }

# Decisions have to be the same bytes in each of them.
other_pythons() {
    local version candidate
    for version in 3.11 3.12 3.13; do
        for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
            if [[ $("$candidate" -V 2>/dev/null) == "Python $version".* && $("$PYTHON" -V) != "Python $version".* ]]; then
                PYTHON=$candidate environment "python$version" streams
                break
            fi
        done
    done
}

GPU_CHOICE=.venv/.gpu

has_gpu() { # the same devices as GPU_DEVICES of console/cli/gpu_checks.py
    local device
    for device in /dev/nvidia[0-9]*; do
        if [ -e "$device" ]; then return 0; fi
    done
    return 1
}

# Sets $GPU to 1 or 0. A choice is kept, as a cluster's login node has no GPU.
choose_gpu() {
    case ${GPU:-} in
    1 | 0) echo "$GPU" >$GPU_CHOICE ;;
    auto) rm -f $GPU_CHOICE ;;
    '') GPU=$(cat $GPU_CHOICE 2>/dev/null || true) ;;
    *) fail "GPU=$GPU: use 1 (packages for NVIDIA GPUs), 0 (for a CPU) or auto (what this machine has)" ;;
    esac
    case $GPU in
    1 | 0) ;;
    *) if has_gpu; then GPU=1; else GPU=0; fi ;;
    esac
}

model_environment() {
    if on_linux; then
        if [ "$GPU" = 1 ]; then environment model model-gpu; else environment model; fi
    else
        outcome="left out: vLLM has no packages for $(uname -s)"
    fi
}

# TypeScript and axe-core. The product does not need Node: without it `make lint` leaves out the types of the web page's
# scripts, and `make test` the page's accessibility.
page_checks() {
    local folder=.venv/web
    if ! command -v npm >/dev/null; then
        outcome="left out: there is no npm (Node)"
        return
    fi
    digest=$(digest_of requirements/web/*.json | digest_of | cut -c1-16)
    if [ "$(cat "$folder/.stamp" 2>/dev/null || true)" = "$digest" ]; then return; fi
    mkdir -p "$folder"
    cp requirements/web/*.json "$folder"
    quietly npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund
    echo "$digest" >"$folder/.stamp"
    outcome="made"
}

# VS Code's server of the package code-server, without its own. Its scripts would load a ripgrep and a node-gyp.
vscode_server() {
    local folder=.venv/vscode code module headers gyp
    if [[ "$(node --version 2>/dev/null)" != v20.* ]] || ! command -v npm >/dev/null; then
        outcome="left out: VS Code's server needs Node 20 and npm"
        return
    fi
    digest=$(digest_of requirements/vscode/*.json | digest_of | cut -c1-16)
    if [ "$(cat "$folder/.stamp" 2>/dev/null || true)" = "$digest" ]; then return; fi
    mkdir -p "$folder"
    cp requirements/vscode/*.json "$folder"
    patiently npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund
    code=$folder/node_modules/code-server/lib/vscode
    patiently npm install --prefix "$code" --omit=dev --ignore-scripts --no-audit --no-fund
    gyp=$(npm config get node-gyp)
    headers=$(npm config get nodedir)
    for module in @vscode/spdlog native-watchdog node-pty; do
        quietly node "$gyp" -C "$code/node_modules/$module" rebuild "--nodedir=${headers/undefined/}"
    done
    ln -sfn node_modules "$code/node_modules.asar"
    mkdir -p "$code/node_modules/@vscode/ripgrep/bin"
    ln -sfn /usr/bin/rg "$code/node_modules/@vscode/ripgrep/bin/rg"
    find "$folder" -name '*.map' -delete
    echo "$digest" >"$folder/.stamp"
    outcome="made"
}

jars() { # names of poms; without one those of the services and of the page
    local said
    said=$(.venv/streams/bin/python -m console.launch.services.jars "$@") || exit $?
    outcome=${said:-$outcome}
}

missing_phone() {
    missing_python
    have_java || echo "openjdk-17-jre-headless|openjdk-21-jre-headless: Java 17 to 23 (JAVA_HOME may name it)"
    command -v mvn >/dev/null || echo "maven: Maven (mvn)"
}

phone_applications() {
    local said
    said=$(.venv/streams/bin/python -m dart_phones.installation) || exit $?
    outcome=${said:-$outcome}
}

began=$(now)
mkdir -p .venv
# One at a time: a second `make` waits for the first. macOS has no flock.
if command -v flock >/dev/null; then
    exec 9>.venv/.lock
    flock 9
fi

case ${1:-all} in
all)
    steps=6
    choose_gpu
    if [ "$GPU" = 1 ]; then model_side="GPU, 8 GB"; else model_side="CPU, 6 GB"; fi
    step "system packages" system_packages missing
    step "tools (uv)" tools
    step "environment .venv/streams" streams_environment
    step "environment .venv/model ($model_side)" model_environment
    step "jars of Kafka and Cassandra" jars
    step "checks of the web page (npm)" page_checks
    ;;
dev)
    steps=4
    step "Python" system_packages missing_python
    step "tools (uv)" tools
    step "environment .venv/streams" streams_environment
    step "checks of the web page (npm)" page_checks
    ;;
data)
    steps=3
    step "Python" system_packages missing_python
    step "tools (uv)" tools
    step "environment .venv/data (1 GB)" data_environment
    ;;
mcp)
    steps=4
    step "Python" system_packages missing_python
    step "tools (uv)" tools
    step "environment .venv/streams" streams_environment
    step "package mcp (28 MB)" mcp_client
    ;;
pythons)
    steps=3
    step "Python" system_packages missing_python
    step "tools (uv)" tools
    step "environments of other versions of Python" other_pythons
    ;;
docs)
    steps=3
    step "Python" system_packages missing_python
    step "tools (uv)" tools
    step "environment .venv/docs" docs_environment
    ;;
desktop)
    steps=4
    step "desktops" system_packages missing_desktop
    step "tools (uv)" tools
    step "environment .venv/streams" streams_environment
    step "client of MCP servers (28 MB)" mcp_client
    ;;
phone)
    steps=5
    step "Java and Maven" system_packages missing_phone
    step "tools (uv)" tools
    step "environment .venv/streams" streams_environment
    step "jars of Android (350 MB)" jars phone
    step "the phone's applications" phone_applications
    ;;
osworld)
    steps=6
    step "Python" system_packages missing_python
    step "desktops and applications (2 GB)" system_packages missing_osworld
    step "tools (uv)" tools
    step "environment .venv/osworld" peer_environment osworld desktop-env
    step "packages of agents' programs" peer_environment osworld-guest
    step "VS Code (140 MB)" vscode_server
    ;;
peers)
    steps=4
    step "Python" system_packages missing_python
    step "tools (uv)" tools
    step "environment .venv/browsergym" peer_environment browsergym
    step "environment .venv/trl (5 GB)" peer_environment trl
    ;;
adapters)
    steps=4
    step "Python" system_packages missing_python
    step "tools (uv)" tools
    step "environment .venv/browsergym" peer_environment browsergym
    step "environment .venv/openenv" peer_environment openenv
    ;;
*)
    fail "usage: setup.sh [adapters|data|desktop|dev|docs|mcp|osworld|peers|pythons]"
    ;;
esac
printf 'ready in %s\n' "$(since "$began")"
