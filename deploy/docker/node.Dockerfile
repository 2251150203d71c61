# Prefill and decode nodes on NVIDIA GPUs, with RDMA. CUDA comes with torch's packages, the driver with the machine.
#
#   docker build --file deploy/docker/node.Dockerfile --tag twostep-node .
ARG PYTHON=python:3.12.11-slim-bookworm

FROM ${PYTHON} AS build
ARG VERSION=0.1.0
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt hatchling
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .
RUN python -m venv /opt/twostep
RUN /opt/twostep/bin/pip install --no-cache-dir --constraint constraints.txt --constraint deploy/docker/gpu-constraints.txt "twostep[gpu] @ file:///wheels/twostep-${VERSION}-py3-none-any.whl"

FROM ${PYTHON}
# Triton compiles with gcc at run time; the rest is what UCX finds InfiniBand and RoCE devices with.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev ibverbs-providers libibverbs1 librdmacm1 libnuma1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/twostep /opt/twostep
ENV PATH=/opt/twostep/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
EXPOSE 7000 9090
CMD ["python", "-m", "twostep.decode_node"]
