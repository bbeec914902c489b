# Parties' agents, coordinators and everything else of the command sqlfl: docker build -t sqlfl .
# The compose files that `sqlfl provision` writes take this image, a site's folder and nothing else.
FROM python:3.12-slim AS build
# a compiler for the C part, which the image itself does without
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir '/source[metrics]'

FROM python:3.12-slim
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
ENTRYPOINT ["sqlfl"]
CMD ["--help"]
