#!/usr/bin/env bash
# Builds KEDA's operator and metrics adapter from the Go module proxy, with its manifests beside them. Those of the same
# version are taken as they are. Usage: build_keda.sh FOLDER
set -euo pipefail
KEDA=2.21.0
mkdir -p "$1"
home=$(realpath "$1")
programs=$home/keda-$KEDA
if [ -e "$programs/built" ]; then exit 0; fi

if ! command -v go >/dev/null; then
    printf 'error: no Go: install Go 1.24 or newer\n' >&2
    exit 2
fi
# Its own go.mod has to be the main one, since it replaces modules.
module=$home/keda-module
rm -rf "$module"
mkdir -p "$module" "$programs"
own=$(cd / && go mod download -json "github.com/kedacore/keda/v2@v$KEDA")
cp -r "$(sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$own")/." "$module"
chmod -R u+w "$module"
cp -r "$module/config" "$programs"
cd "$module"
export CGO_ENABLED=0
flags="-s -w -X github.com/kedacore/keda/v2/version.Version=$KEDA"
go build -mod=mod -trimpath -ldflags "$flags" -o "$programs/keda" ./cmd/operator
go build -mod=mod -trimpath -ldflags "$flags" -o "$programs/keda-adapter" ./cmd/adapter
cd "$home"
rm -rf "$module"
touch "$programs/built"
