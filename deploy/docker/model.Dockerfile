# Rollout workers and the trainer: torch, transformers and vLLM. For a CPU by default; REQUIREMENTS=model-gpu is for GPUs.
FROM python:3.11-slim-bookworm AS packages
ARG REQUIREMENTS=model
WORKDIR /app
COPY deploy/docker/trust.sh .
COPY requirements/tools.txt requirements/
RUN --mount=type=secret,id=ca . ./trust.sh \
    && pip install --no-cache-dir --require-hashes -r requirements/tools.txt
COPY requirements/${REQUIREMENTS}.txt requirements/
# Bytecode is compiled here: who runs the image may not write it, and would compile anew at each start.
RUN --mount=type=secret,id=ca . ./trust.sh \
    && uv venv /opt/venv \
    && uv pip sync --no-cache --compile-bytecode --python /opt/venv/bin/python --require-hashes requirements/${REQUIREMENTS}.txt

FROM python:3.11-slim-bookworm
# vLLM compiles small kernels at its first request and binds its threads by libnuma.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libnuma1 tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 dart
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY topics topics
COPY dart_streams dart_streams
COPY workers workers
COPY trainer trainer
COPY deploy/config deploy/config
RUN mkdir .dart && chown dart .dart && python -m compileall -q topics dart_streams workers trainer
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/app PYTHONUNBUFFERED=1
USER dart
# tini passes signals on, and reaps what vLLM leaves.
ENTRYPOINT ["tini", "--", "python", "-m", "dart_streams.console.cli"]
CMD ["--help"]
