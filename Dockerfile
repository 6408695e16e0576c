# The server with the shipped model, on CPUs:
#   docker build -t findtta .
#   docker run --rm -p 8000:8000 findtta
#   docker run --rm -p 8000:8000 -v "$PWD/models:/models:ro" -e FINDTTA_API_KEY findtta --config /models/flowers.toml
# For GPUs, build with --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128 and run with --gpus all ... --device cuda.
FROM python:3.12-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml README.md LICENSE /code/
COPY src /code/src
RUN python -m venv /opt/findtta && /opt/findtta/bin/pip install --extra-index-url "${TORCH_INDEX}" "/code[serve]"

FROM python:3.12-slim
RUN useradd --create-home --uid 10001 findtta
COPY --from=build /opt/findtta /opt/findtta
ENV PATH=/opt/findtta/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/findtta
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/livez', timeout=2)"]
# Options given to docker run follow these; a container listens on all of its own addresses.
ENTRYPOINT ["findtta", "serve", "--host", "0.0.0.0", "--port", "8000"]
