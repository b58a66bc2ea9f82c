#!/bin/sh
# Copies the jars for the plots of the web page into a folder: those of the checkout (.dart/jars, here beside the pom),
# or else from Maven. Usage: page-jars.sh FOLDER
set -eu
sums=$PWD/jars.sha256
given=page-$(sha256sum pom.xml | cut -c 1-12)
if [ -d "$given" ]; then
    mv "$given" "$1"
    cd "$1" && exec sha256sum --check --strict "$sums"
fi

# Maven does not read the proxy's variable.
proxy=${HTTPS_PROXY:-${https_proxy:-}}
if [ -n "$proxy" ]; then
    address=${proxy#*://}
    address=${address%%/*}
    place=${address##*@}
    login=
    if [ "$place" != "$address" ]; then
        login=${address%@*}
        login="<username>${login%%:*}</username><password>${login#*:}</password>"
    fi
    mkdir -p ~/.m2
    cat >~/.m2/settings.xml <<END
<settings><proxies><proxy>
  <protocol>https</protocol><host>${place%:*}</host><port>${place##*:}</port>$login
</proxy></proxies></settings>
END
fi

fetch() {
    . ./trust.sh &&
        mkdir -p /usr/share/man/man1 &&
        apt-get update &&
        apt-get install -y --no-install-recommends maven &&
        mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies -DoutputDirectory="$1"
}

if ! fetch "$1"; then
    echo "error: the web page's jars could not be fetched. Where a proxy opens TLS, name its authority: DART_BUILD_CA=FILE." >&2
    echo "Or fetch them elsewhere: \`make setup\` puts them into .dart/jars, and the build takes them from there." >&2
    exit 1
fi
if ! (cd "$1" && sha256sum --check --strict "$sums"); then
    echo "error: Maven's repository has another jar than deploy/local/page/jars.sha256. Do not trust it." >&2
    exit 1
fi
