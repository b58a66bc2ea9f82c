#!/usr/bin/env bash
# Sets up what `make test-compose` needs beyond `make setup`: Docker with Compose, and where the test has to start an
# engine of its own, that, and Jaeger for its stand-in. What is there already is taken. `images` leaves Jaeger out, for
# tests that only build images. Usage: setup.sh FOLDER [images]
set -euo pipefail
mkdir -p "$1/docker/cli-plugins"
home=$(realpath "$1")
COMPOSE=github.com/docker/compose/v2
COMPOSE_VERSION=v2.40.3
JAEGER=github.com/jaegertracing/jaeger
JAEGER_VERSION=v1.76.0 # released with Jaeger 2.13.0, of the same sources
GO=1.25.5              # both want 1.24 or newer

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

install() { # packages
    [ "$(id -u)" = 0 ] || fail "these are missing: $*: install them, or run this as root"
    command -v apt-get >/dev/null || fail "these are missing: $*"
    apt-get -qq update
    # The test has an engine of its own: nothing that is installed for it starts by itself, now or later.
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    if [[ " $* " == *" docker.io "* ]] && command -v systemctl >/dev/null; then
        systemctl disable -q docker.service docker.socket containerd.service
    fi
}

engine() {
    local packages=() program
    for program in dockerd:docker.io debootstrap slirp4netns ip:iproute2; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${program%:*}" >/dev/null || packages+=("${program#*:}")
    done
    # From Debian 13 on the client is a package of its own.
    if ! command -v docker >/dev/null && apt-cache show docker-cli >/dev/null 2>&1; then packages+=(docker-cli); fi
    if [ ${#packages[@]} != 0 ]; then install "${packages[@]}"; fi
}

# A Go that is old fetches a newer one by itself since 1.21; Debian 12's fetches it as the module that it is.
go_command() {
    command -v go >/dev/null || install golang-go ca-certificates
    if ! printf '%s\n' go1.21 "$(go version | awk '{ print $3 }')" | sort --version-sort --check=quiet; then
        local module
        module=golang.org/toolchain@v0.0.1-go$GO.linux-$(dpkg --print-architecture)
        if [ ! -d "$home/go" ]; then
            cp -r "$(go mod download -json "$module" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')" "$home/go.partial"
            chmod -R u+wx "$home/go.partial"
            mv "$home/go.partial" "$home/go"
        fi
        export PATH=$home/go/bin:$PATH
    fi
}

# Its own go.mod has to be the main one: `go install` refuses those that replace a module.
build() { # module, version, package, program, option of the linker
    if [ -x "$4" ]; then return; fi
    go_command
    local source folder
    source=$(go mod download -json "$1@$2" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    folder=$home/build
    if [ -e "$folder" ]; then rm -rf "$folder"; fi
    mkdir "$folder"
    cp -r "$source/." "$folder"
    chmod -R u+w "$folder"
    (cd "$folder" && go build -trimpath -ldflags "-s -w ${5:-}" -o "$4.partial" "$3")
    mv "$4.partial" "$4"
    rm -rf "$folder"
}

if ! docker info >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] || fail "no Docker engine answers, and only root can start one: start Docker, or run this as root"
    engine
    if [ "${2:-}" != images ]; then build $JAEGER $JAEGER_VERSION ./cmd/jaeger "$home/jaeger"; fi
fi
plugin=$home/docker/cli-plugins/docker-compose
if DOCKER_CONFIG=$home/docker docker compose version >/dev/null 2>&1; then exit 0; fi
if docker compose version >/dev/null 2>&1; then
    ln -s "${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins/docker-compose" "$plugin"
    exit 0
fi
# Debian 12 has no Compose v2.
build $COMPOSE $COMPOSE_VERSION ./cmd "$plugin" "-X $COMPOSE/internal.Version=$COMPOSE_VERSION"
