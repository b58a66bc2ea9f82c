#!/usr/bin/env bash
# Sets up what `make test-compose` needs beyond `make setup`: Docker with Compose, and debootstrap where the test has to
# start an engine of its own. What is there already is taken. Usage: setup.sh FOLDER
set -euo pipefail
home=$1
COMPOSE=github.com/docker/compose/v2
VERSION=v2.40.3

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

packages=()
if ! docker info >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] || fail "no Docker engine answers, and only root can start one: start Docker, or run this as root"
    [ -x /usr/sbin/dockerd ] || packages+=(docker.io)
    command -v debootstrap >/dev/null || packages+=(debootstrap)
fi
if [ ${#packages[@]} != 0 ]; then
    command -v apt-get >/dev/null || fail "these are missing: ${packages[*]}"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

mkdir -p "$home/docker/cli-plugins"
if DOCKER_CONFIG=$home/docker docker compose version >/dev/null 2>&1; then exit 0; fi
if docker compose version >/dev/null 2>&1; then
    ln -s "${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins/docker-compose" "$home/docker/cli-plugins/"
    exit 0
fi
# Debian 12 has no Compose v2; its sources build with a current Go.
go=$(command -v go) || fail "no Docker Compose v2: install its plugin (docker-compose-plugin), or Go 1.24 to build it"
source=$("$go" mod download -json "$COMPOSE@$VERSION" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
build=$(mktemp -d)
trap 'chmod -R u+w "$build"; rm -rf "$build"' EXIT
cp -r "$source/." "$build"
chmod -R u+w "$build"
plugin=$(realpath "$home/docker/cli-plugins")/docker-compose
(cd "$build" && "$go" build -trimpath -ldflags "-s -w -X $COMPOSE/internal.Version=$VERSION" -o "$plugin" ./cmd)
