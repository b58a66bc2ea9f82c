#!/usr/bin/env bash
# Sets up the old release of `make test-upgrade`: its files out of this repository's history, and its environment.
# Usage: setup.sh FOLDER REVISION
set -euo pipefail
folder=$1/$2
if cmp -s "$folder/requirements/streams.txt" "$folder/.venv/synced.txt"; then exit; fi
if ! git cat-file -e "$2^{commit}" 2>/dev/null; then
    printf 'error: the history lacks %s: fetch it (git fetch --unshallow)\n' "$2" >&2
    exit 2
fi
mkdir -p "$folder"
git archive "$2" | tar -x -C "$folder"
.venv/tools/bin/uv venv -q --clear --python .venv/streams/bin/python "$folder/.venv/streams"
.venv/tools/bin/uv pip sync -q --python "$folder/.venv/streams/bin/python" --require-hashes "$folder/requirements/streams.txt"
cp "$folder/requirements/streams.txt" "$folder/.venv/synced.txt"
