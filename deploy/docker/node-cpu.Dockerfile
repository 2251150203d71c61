# Prefill and decode nodes on CPU, and what fetches and converts models. The compiler is for the kernels, which are compiled
# for the processor they find.
#
# pip's own settings decide where packages come from. PyPI's torch is the CUDA build; for the one for CPUs give the index that
# PyTorch's installation page shows:
#
#   docker build --file deploy/docker/node-cpu.Dockerfile --build-arg PIP_EXTRA_INDEX_URL=… --tag twostep-node-cpu .
ARG PYTHON=python:3.12.11-slim-bookworm

FROM ${PYTHON} AS build
ARG VERSION=0.1.0
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt hatchling
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .
RUN python -m venv /opt/twostep
RUN /opt/twostep/bin/pip install --no-cache-dir --constraint constraints.txt "twostep[node] @ file:///wheels/twostep-${VERSION}-py3-none-any.whl"

FROM ${PYTHON}
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/twostep /opt/twostep
ENV PATH=/opt/twostep/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 7000 9090
CMD ["python", "-m", "twostep.decode_node"]
