# Environment workers, recorder, curator, monitor and the command line: no torch in here.
FROM python:3.11-slim-bookworm AS packages
RUN pip install --no-cache-dir uv
WORKDIR /app
COPY requirements/streams.txt requirements/
RUN uv venv /opt/venv && uv pip sync --python /opt/venv/bin/python --require-hashes requirements/streams.txt

FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install -y --no-install-recommends chromium-headless-shell fonts-dejavu-core \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 dart
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY topics topics
COPY dart_streams dart_streams
COPY workers workers
COPY trainer trainer
COPY deploy/config deploy/config
RUN mkdir .dart && chown dart .dart
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1
USER dart
ENTRYPOINT ["python", "-m", "dart_streams.cli"]
CMD ["--help"]
