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

# A changed source file builds this anew, and installs no requirement again.
FROM packages AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY topics topics
COPY dart_streams dart_streams
COPY workers workers
COPY trainer trainer
COPY console console
COPY plugins plugins
RUN for project in . plugins/*; do \
        uv build --wheel --offline --no-build-isolation --python /opt/venv/bin/python --out-dir /wheel "$project" || exit 1; \
    done

FROM python:3.11-slim-bookworm
# vLLM compiles small kernels at its first request and binds its threads by libnuma.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libnuma1 tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 dart
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY deploy/config deploy/config
# Recipes and environments are found by the entry points of what is installed.
RUN --mount=type=bind,from=wheel,target=/build \
    /build/usr/local/bin/uv pip install --offline --no-cache --no-deps --compile-bytecode \
        --python /opt/venv/bin/python /build/wheel/*.whl \
    && mkdir .dart && chown dart .dart
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
USER dart
# tini passes signals on, and reaps what vLLM leaves.
ENTRYPOINT ["tini", "--", "dart-streams"]
CMD ["--help"]
