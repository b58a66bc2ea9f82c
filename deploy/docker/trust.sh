# Build steps that fetch packages source this file, to trust the authorities of the build secret `ca` (PEM).
if [ -s /run/secrets/ca ]; then
    # A file for each, as Java's store takes them.
    awk -v folder=/usr/local/share/ca-certificates '
        /-----BEGIN CERTIFICATE-----/ { file = sprintf("%s/build-%03d.crt", folder, ++number) }
        file { print > file }
        /-----END CERTIFICATE-----/ { close(file); file = "" }
        END { exit !number }' /run/secrets/ca ||
        { echo "error: the build secret ca (DART_BUILD_CA) has no certificate in PEM" >&2 && exit 1; }
    update-ca-certificates >/dev/null 2>&1
    export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
fi
# A slow proxy or a busy machine answers a few connections in time, and not the fifty that uv opens.
export UV_CONCURRENT_DOWNLOADS=8 UV_HTTP_RETRIES=8
