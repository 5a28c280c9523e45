# The service, two workers, as a user of its own: docs/operate/containers.md.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
# What Debian ships as security updates is wanted; no version of it is pinned.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv ca-certificates
WORKDIR /project
COPY deploy/locks deploy/locks
# An environment without a package manager in it: the one that builds the wheels fills it.
# What only some need is in it too, and does nothing before it is set: PostgreSQL, tokens, time stamps, metrics.
RUN python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes -r deploy/locks/build.lock \
    && python3 -m venv --without-pip /opt/itl-attestation \
    && cat deploy/locks/service*.lock deploy/locks/extensions.lock > image.lock \
    && /build/bin/pip --python /opt/itl-attestation/bin/python install --no-cache-dir --no-compile --require-hashes -r image.lock
COPY . .
# Compiled here, once: nothing can be written later. By content, because an image rounds the times of files.
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation -w /wheels src/sdk src/service src/extensions \
    && /build/bin/pip --python /opt/itl-attestation/bin/python install --no-cache-dir --no-compile --no-deps /wheels/*.whl \
    && /opt/itl-attestation/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/itl-attestation/lib

FROM ${BASE}
# The last line: nothing in here becomes somebody else.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends python3 ca-certificates \
    && apt-get clean && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log \
    && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/itl-reg --shell /usr/sbin/nologin itl \
    && install -d -m 0700 -o itl -g itl /var/lib/itl-reg /var/lib/itl-reg/db /var/lib/itl-reg/ca /var/lib/itl-reg/configs \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
COPY --from=build /opt/itl-attestation /opt/itl-attestation
COPY deploy/containers/healthcheck.py /opt/itl-attestation/
LABEL org.opencontainers.image.title="itl-attestation-service" \
      org.opencontainers.image.description="The attestation control plane: admission, appraisal, sealed delivery and audit" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
ENV PATH=/opt/itl-attestation/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/itl-reg
VOLUME /var/lib/itl-reg
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/opt/itl-attestation/bin/python", "-I", "/opt/itl-attestation/healthcheck.py"]
ENTRYPOINT ["attestation-service"]
CMD ["--workers", "2"]
