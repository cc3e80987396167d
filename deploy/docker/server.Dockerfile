# The coordinator: no torch, no LightGBM, no compiler. From the root of the repository:
#   docker build -f deploy/docker/server.Dockerfile -t fkd-server:0.1.0 .
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY . .
# Wheels only: what would need a compiler is refused here, not found out later.
RUN python -m venv --without-pip /opt/fkd \
    && python -m pip --python /opt/fkd/bin/python install --no-cache-dir --disable-pip-version-check --only-binary :all: . \
    && /opt/fkd/bin/fkd-server --version

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="fkd-server" \
      org.opencontainers.image.description="Coordinator of federated runs; serves a prepared folder" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 65532 fkd \
    && useradd --uid 65532 --gid fkd --home-dir /var/lib/fkd --no-create-home --shell /usr/sbin/nologin fkd \
    && install --directory --owner fkd --group fkd --mode 0750 /var/lib/fkd
COPY --from=build /opt/fkd /opt/fkd
COPY --from=build /src/deploy/docker/healthcheck.py /opt/fkd/healthcheck.py
ENV PATH=/opt/fkd/bin:/usr/local/bin:/usr/bin:/bin \
    XDG_CACHE_HOME=/var/lib/fkd/cache
WORKDIR /var/lib/fkd
VOLUME /var/lib/fkd
USER 65532:65532
# Runs; certificates for tokens; health, metrics and page.
EXPOSE 50051 50052 50053
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "/opt/fkd/healthcheck.py"]
ENTRYPOINT ["fkd-server"]
