# One image for every pod size: the entrypoint plans from the cgroup at each start.
#   make image                                   both demo models, PyTorch's CPU wheels
#   docker build --build-arg RUNTIMES=openvino   another runtime's packages beside IPEX
# All stages need the same Debian 12, whose Python is 3.11.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS python
# no version of a Debian package: they go with the release, and security updates are wanted
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*

# what Python needs, by itself: other changes of pyproject.toml must not install torch again
FROM python AS requirements
COPY pyproject.toml /
RUN python3 -c "import tomllib; print(*tomllib.load(open('/pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
      > /requirements.txt

FROM python AS build
# a wheel index for torch without CUDA (6 GB less); empty: the default index only
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
# packages of other runtimes that the archives are served with: openvino, onnxruntime
ARG RUNTIMES=""
COPY --from=requirements /requirements.txt /
# Python's packages first: they change seldom, and weigh a hundred times as much as the toolkit
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/venv \
 && /opt/venv/bin/pip install --disable-pip-version-check \
      ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} -r /requirements.txt ${RUNTIMES} \
 # headers and static libraries are for compilers, which the image has none of
 && rm -rf /opt/venv/lib/python3.11/site-packages/torch/include /opt/venv/lib/python3.11/site-packages/torch/share \
 && find /opt/venv -name '*.a' -delete
# before the toolkit's own files: a change of those must not copy the packages again
RUN echo /app > /opt/venv/lib/python3.11/site-packages/tscpu.pth \
 && printf '#!/opt/venv/bin/python3\nfrom scripts.cli import app\napp()\n' > /opt/venv/bin/tscpu \
 && chmod 755 /opt/venv/bin/tscpu
COPY handlers /app/handlers
COPY configs /app/configs
COPY models /app/models
COPY serving /app/serving
COPY scripts /app/scripts
# a checkout may be readable to its owner only; the root file system is read-only at run time, so bytecode is compiled
# here or at every start
RUN chmod -R a+rX /app \
 && /opt/venv/bin/python3 -m compileall -q /app

FROM ${BASE}
# libjemalloc2 is not used unless LD_PRELOAD names it: glibc with huge pages measures the same, and OpenVINO crashes
# under jemalloc
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends libjemalloc2 numactl openjdk-17-jre-headless python3 tini \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/venv /opt/venv
COPY --from=build /app /app
# writable to all: a tmpfs that is mounted there takes the folder's mode, and belongs to root
RUN groupadd --gid 10001 tscpu \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tscpu \
 && install -d -o 10001 -g 10001 -m 1777 /run/tscpu
COPY deploy/base/serving.yaml /etc/tscpu/serving.yaml
COPY build/model-store /models
# HOME: whatever writes a cache does so where it may
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="torchserve-cpu-toolkit" \
      org.opencontainers.image.description="PyTorch vision models on CPUs with TorchServe, planned from the pod" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080 8082 8090
# longer than the supervisor waits for a start; an orchestrator has its own probes on the same port
HEALTHCHECK --interval=15s --timeout=5s --start-period=240s --retries=3 \
    CMD ["/usr/bin/python3", "/app/serving/probe.py", "http://127.0.0.1:8090/ready"]
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/venv/bin/tscpu", "serve", "--serving", "/etc/tscpu/serving.yaml", \
            "--model-store", "/models", "--run-dir", "/run/tscpu"]
