#!/usr/bin/env bash
# Fetches promtool of Debian's package prometheus, without installing it. Usage: setup.sh FOLDER
set -euo pipefail
mkdir -p "$1"
home=$(realpath "$1")
if [ -x "$home/promtool" ]; then exit 0; fi
if program=$(command -v promtool); then
    ln -s "$program" "$home/promtool"
    exit 0
fi
command -v apt-get >/dev/null || {
    echo "error: promtool is missing: install Prometheus" >&2
    exit 2
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && apt-get -qq download prometheus)
dpkg-deb -x "$folder"/prometheus_*.deb "$folder"
mv "$folder/usr/bin/promtool" "$home/promtool"
