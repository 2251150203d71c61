# The router, and the command line with which `helm test` and people ask a cluster how it is. No torch.
#
#   docker build --file deploy/docker/router.Dockerfile --tag twostep-router .
ARG PYTHON=python:3.12.11-slim-bookworm

FROM ${PYTHON} AS build
ARG VERSION=0.1.0
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt hatchling
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .
RUN python -m venv /opt/twostep
RUN /opt/twostep/bin/pip install --no-cache-dir --constraint constraints.txt "twostep[k8s] @ file:///wheels/twostep-${VERSION}-py3-none-any.whl"

FROM ${PYTHON}
COPY --from=build /opt/twostep /opt/twostep
ENV PATH=/opt/twostep/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000 8001
CMD ["python", "-m", "twostep.router"]
