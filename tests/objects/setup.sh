#!/usr/bin/env bash
# Builds the S3 server of `make test-s3`: versitygw, with objects as files on a disk. Usage: setup.sh FOLDER
set -euo pipefail
VERSITYGW=github.com/versity/versitygw/cmd/versitygw@v1.8.0
mkdir -p "$1"
home=$(realpath "$1")
if [ -x "$home/versitygw" ]; then exit; fi
if ! command -v go >/dev/null; then
    printf 'error: no go: install Go 1.25 or newer, or put versitygw into %s\n' "$home" >&2
    exit 2
fi
GOBIN=$home go install -trimpath -ldflags '-s -w' "$VERSITYGW"
