# A data site, and whatever else needs torch: `fkd-server prepare`, `fkd-shards`. From the root of the repository:
#   docker build -f deploy/docker/client.Dockerfile --target cpu -t fkd-client:0.1.0-cpu .
#   docker build -f deploy/docker/client.Dockerfile --target cuda -t fkd-client:0.1.0-cuda .
FROM python:3.11-slim-bookworm AS source
WORKDIR /src
COPY . .
RUN python -m venv --without-pip /opt/fkd

# PyTorch's own index has the smaller wheel; its version, 2.x+cpu, counts as newer than PyPI's 2.x.
FROM source AS build-cpu
RUN python -m pip --python /opt/fkd/bin/python install --no-cache-dir --disable-pip-version-check --only-binary :all: \
      --extra-index-url https://download.pytorch.org/whl/cpu '.[client]' \
    && /opt/fkd/bin/python -c 'import torch; assert torch.version.cuda is None, torch.__version__' \
    && /opt/fkd/bin/fkd-client --version

# PyPI's wheel brings the CUDA libraries; the driver comes from the host.
FROM source AS build-cuda
RUN python -m pip --python /opt/fkd/bin/python install --no-cache-dir --disable-pip-version-check --only-binary :all: \
      '.[client]' \
    && /opt/fkd/bin/python -c 'import torch; assert torch.version.cuda is not None, torch.__version__' \
    && /opt/fkd/bin/fkd-client --version

FROM python:3.11-slim-bookworm AS runtime
LABEL org.opencontainers.image.title="fkd-client" \
      org.opencontainers.image.description="A data site of federated runs" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# LightGBM needs the OpenMP runtime; Debian's security updates to it are wanted, so no version is pinned.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 65532 fkd \
    && useradd --uid 65532 --gid fkd --home-dir /var/lib/fkd --no-create-home --shell /usr/sbin/nologin fkd \
    && install --directory --owner fkd --group fkd --mode 0750 /var/lib/fkd
ENV PATH=/opt/fkd/bin:/usr/local/bin:/usr/bin:/bin \
    XDG_CACHE_HOME=/var/lib/fkd/cache
WORKDIR /var/lib/fkd
VOLUME /var/lib/fkd
USER 65532:65532
# A client listens nowhere: it is well while it runs, and its exit code says how it went.
HEALTHCHECK NONE
ENTRYPOINT ["fkd-client"]

FROM runtime AS cuda
COPY --from=build-cuda /opt/fkd /opt/fkd
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM runtime AS cpu
COPY --from=build-cpu /opt/fkd /opt/fkd
