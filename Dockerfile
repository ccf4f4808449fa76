# syntax=docker/dockerfile:1
# Two images, each the root file system that make lays out, which tests use, too:
#   docker build .                      the driver
#   docker build --target scheduler .   cleave-scheduler
# Both are cross-compiled for other platforms: docker build --platform linux/arm64 .
ARG GO_VERSION=1.26
# Debian with Go, gcc and make; make images builds one of Debian's packages.
ARG BASE=golang:${GO_VERSION}-bookworm

# cgo: NVML is loaded with dlopen, which needs glibc.
FROM --platform=$BUILDPLATFORM ${BASE} AS source
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .

FROM source AS build
ARG VERSION=unknown
ARG TARGETARCH
RUN make image-root VERSION=${VERSION} GOARCH=${TARGETARCH}

FROM source AS build-scheduler
ARG TARGETARCH
RUN make scheduler-image-root GOARCH=${TARGETARCH}

# kube-scheduler with Cleave's plugin. It needs nothing of its node.
FROM scratch AS scheduler
COPY --from=build-scheduler /src/bin/scheduler-image/ /
USER 65532:65532
ENTRYPOINT ["/usr/bin/cleave-scheduler"]

# The driver. Nothing to log in to: no shell, no package manager.
FROM scratch AS cleave
COPY --from=build /src/bin/image/ /
# The kubelet's plugin sockets, device nodes and NVML need root; every other subcommand runs as anyone:
# docker run --user 65532 IMAGE slices --node-model hgx-h100
USER 0
ENTRYPOINT ["/usr/bin/cleave"]
CMD ["kubelet-plugin"]
