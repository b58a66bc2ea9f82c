#!/usr/bin/env bash
# Sets up what `make test-k8s` needs beyond `make setup`: kustomize, Kubernetes' schemas, and the definitions of KEDA's
# and Strimzi's resources. What is there already is taken. Usage: setup.sh FOLDER
set -euo pipefail
home=$1
KUSTOMIZE=sigs.k8s.io/kustomize/kustomize/v5@v5.7.1
KEDA=github.com/kedacore/keda/v2@v2.21.0
PLUGIN=org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies
here=$(dirname "$0")
mkdir -p "$home/definitions"
home=$(realpath "$home")

left_out() {
    printf 'left out: %s\n' "$1" >&2
}

renderer() {
    if [ -x "$home/kustomize" ]; then return; fi
    # Debian 12's kubectl has version 2, which knows no components.
    if [[ $(kustomize version 2>/dev/null) == *v5* ]]; then
        ln -s "$(command -v kustomize)" "$home/kustomize"
    elif [[ $(kubectl version --client 2>/dev/null) == *'Kustomize Version: v5'* ]]; then
        # `kustomize build` is the same as `kubectl kustomize`.
        printf '#!/bin/sh\nshift\nexec kubectl kustomize "$@"\n' >"$home/kustomize"
        chmod +x "$home/kustomize"
    elif command -v go >/dev/null; then
        GOBIN=$home go install "$KUSTOMIZE"
    else
        printf 'error: no kustomize 5: install it, or a kubectl that has it, or Go 1.23 to build it\n' >&2
        exit 2
    fi
}

schemas() {
    local requirements=$here/../../requirements/k8s.txt
    if cmp -s "$requirements" "$home/schemas/requirements.txt"; then return; fi
    .venv/tools/bin/uv venv -q --clear --python .venv/streams/bin/python "$home/schemas"
    .venv/tools/bin/uv pip sync -q --python "$home/schemas/bin/python" --require-hashes "$requirements"
    cp "$requirements" "$home/schemas/requirements.txt"
}

keda_definitions() {
    if [ -e "$home/definitions/keda.yaml" ]; then return; fi
    if ! command -v go >/dev/null; then
        left_out "KEDA's definitions, which are fetched with Go"
        return
    fi
    local source
    source=$(go mod download -json "$KEDA" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    install -m 644 "$source/config/crd/bases/keda.sh_scaledobjects.yaml" "$home/definitions/keda.yaml"
}

# Strimzi's generator is compiled for Java 21; Debian 12 has 17.
newer_java() {
    local java version
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        [ -x "$java" ] || continue
        version=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
        if [ "${version:-0}" -ge 21 ]; then
            echo "$java"
            return
        fi
    done
    return 1
}

strimzi_definitions() {
    if [ -e "$home/definitions/KafkaTopic.yaml" ]; then return; fi
    local java jars kind
    if ! java=$(newer_java); then
        left_out "Strimzi's definitions, which are made with Java 21 or newer"
        return
    fi
    jars=$(mktemp -d)
    mvn -q -B -f "$here/pom.xml" "$PLUGIN" -DoutputDirectory="$jars"
    for kind in kafka.Kafka nodepool.KafkaNodePool topic.KafkaTopic; do
        "$java" -cp "$jars/*" io.strimzi.crdgenerator.CrdGenerator --yaml \
            "io.strimzi.api.kafka.model.$kind=$home/definitions/${kind#*.}.yaml"
    done
    rm -rf "$jars"
}

renderer
schemas
keda_definitions
strimzi_definitions
