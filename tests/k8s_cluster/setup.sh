#!/usr/bin/env bash
# Sets up what `make test-k8s-cluster` needs beyond `make setup`: programs of Debian, and those of Kubernetes. What is
# there already is taken. Usage: setup.sh FOLDER
set -euo pipefail
mkdir -p "$1"
home=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
# conntrack brings two libraries, which the machine may lack.
PACKAGES=(containerd runc containernetworking-plugins etcd-server conntrack libnetfilter-conntrack3 libnfnetlink0)

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

# They are unpacked and not installed: nothing of them starts by itself.
debian() {
    if [ -e "$home/debian/unpacked" ]; then return; fi
    local archives
    archives=$(mktemp -d)
    apt-get -qq update
    (cd "$archives" && apt-get -qq download "${PACKAGES[@]}" 2>&1 | grep -v unsandboxed || true)
    for archive in "$archives"/*.deb; do dpkg -x "$archive" "$home/debian"; done
    rm -rf "$archives"
    [ -x "$home/debian/usr/bin/etcd" ] || fail "these packages could not be fetched: ${PACKAGES[*]}"
    touch "$home/debian/unpacked"
}

[ "$(id -u)" = 0 ] || fail "the node needs root: run this as root"
command -v apt-get >/dev/null || fail "no apt-get: the node's containerd, runc and etcd are packages of Debian"
debian
PATH=$PATH:/usr/sbin:/sbin command -v iptables >/dev/null || apt-get install -y -qq --no-install-recommends iptables >/dev/null
"$here/build_node.sh" "$home"
"$here/../compose/setup.sh" .dart/compose-test images
