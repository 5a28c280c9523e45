# The controllers of a Kubernetes cluster and the agent of attestation runs, as a user of their own:
# docs/operate/containers.md.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
# What Debian ships as security updates is wanted; no version of it is pinned.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv ca-certificates
WORKDIR /project
COPY deploy/locks deploy/locks
# An environment without a package manager in it: the one that builds the wheels fills it.
RUN python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes -r deploy/locks/build.lock \
    && python3 -m venv --without-pip /opt/itl-attestation \
    && cat deploy/locks/operator*.lock > image.lock \
    && /build/bin/pip --python /opt/itl-attestation/bin/python install --no-cache-dir --no-compile --require-hashes -r image.lock
COPY . .
# Compiled here, once: nothing can be written later. By content, because an image rounds the times of files.
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation -w /wheels src/sdk src/operator \
    && /build/bin/pip --python /opt/itl-attestation/bin/python install --no-cache-dir --no-compile --no-deps /wheels/*.whl \
    && /opt/itl-attestation/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/itl-attestation/lib

FROM ${BASE}
# The last line: nothing in here becomes somebody else.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends python3 ca-certificates \
    && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log \
    && useradd --uid 10003 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin itl \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
COPY --from=build /opt/itl-attestation /opt/itl-attestation
LABEL org.opencontainers.image.title="itl-attestation-operator" \
      org.opencontainers.image.description="Kubernetes controllers: node certificates only for machines that prove themselves with their TPM" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
ENV PATH=/opt/itl-attestation/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10003:10003
WORKDIR /
EXPOSE 8081
# Metrics of runs, hsm, agent and webhook; where an API server asks the webhook.
EXPOSE 9090 9443
STOPSIGNAL SIGTERM
# The controller is named by who runs it; its probes are asked by the kubelet.
ENTRYPOINT ["attestation-operator"]
CMD ["--help"]
