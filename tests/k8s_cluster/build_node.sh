#!/usr/bin/env bash
# Builds the programs of a one-node Kubernetes from the Go module proxy: the node and CoreDNS. Programs of the same
# versions are taken as they are. Usage: build_node.sh FOLDER
set -euo pipefail
KUBERNETES=1.34.4
COREDNS=v1.13.1
here=$(dirname "$(realpath "$0")")
mkdir -p "$1"
home=$(realpath "$1")
programs=$home/bin-$KUBERNETES-${COREDNS#v}
if [ -e "$programs/built" ]; then exit 0; fi

if ! command -v go >/dev/null; then
    printf 'error: no Go: install Go 1.24 or newer\n' >&2
    exit 2
fi
module=$home/module
mkdir -p "$module/dns" "$programs"
cp "$here/node/main.go" "$module"
cp "$here/node/dns/main.go" "$module/dns"
cd "$module"
# The module replaces its libraries by folders of its own tree, which does not count in a dependency.
own=$(cd / && go mod download -json "k8s.io/kubernetes@v$KUBERNETES")
file() { sed -n "s/^\t\"$1\": \"\(.*\)\",\$/\1/p" <<<"$own"; }
{
    printf 'module node\n\ngo 1.24.0\n\ngodebug default=go1.24\n\n'
    printf 'require (\n\tk8s.io/kubernetes v%s\n\tgithub.com/coredns/coredns %s\n)\n\nreplace (\n' $KUBERNETES $COREDNS
    sed -n "s/^\t\(k8s.io\/[a-z-]*\) => .\/staging.*/\t\1 => \1 v0.${KUBERNETES#1.}/p" "$(file GoMod)"
    printf ')\n'
} >go.mod
cp "$(file Dir)/go.sum" go.sum
export CGO_ENABLED=0
set=k8s.io/component-base/version
flags="-s -w -X $set.gitVersion=v$KUBERNETES -X $set.gitMajor=1 -X $set.gitMinor=$(cut -d. -f2 <<<$KUBERNETES)"
flags="$flags -X $set.buildDate=$(date -u +%Y-%m-%dT%H:%M:%SZ)"
go build -mod=mod -trimpath -tags selinux -ldflags "$flags" -o "$programs/node" .
go build -mod=mod -trimpath -ldflags "-s -w" -o "$programs/coredns" ./dns
gcc -Os -static -DVERSION=3.10 -o "$programs/pause" "$(file Dir)/build/pause/linux/pause.c"
for component in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
    ln -sf node "$programs/$component"
done
rm -rf "$module"
touch "$programs/built"
