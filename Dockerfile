# syntax=docker/dockerfile:1
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
# The caches outlive a build, so that a change of one file doesn't compile the dependencies again.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin homing && cp target/release/homing /homing

# glibc and libgcc, nothing else: no shell, no package manager.
FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /homing /usr/local/bin/homing
# 8080 data, 9090 health and metrics. The admin port (9091) stays on loopback inside the container.
EXPOSE 8080 9090
# No HEALTHCHECK: the image has no client to ask with. Probe http://…:9090/livez and /readyz from outside.
# Stop with SIGTERM and give it the drain delay and the grace period of the configuration.
ENTRYPOINT ["/usr/local/bin/homing"]
CMD ["serve", "--config", "/etc/homing/homing.yaml"]
