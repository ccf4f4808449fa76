# syntax=docker/dockerfile:1
# Three images, each the root file system that make lays out, which tests use, too:
#   docker build .                      the driver
#   docker build --target scheduler .   cleave-scheduler
#   docker build --target dashboard .   cleave, as the dashboard
# All are cross-compiled for other platforms: docker build --platform linux/arm64 .
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

FROM source AS build-dashboard
ARG VERSION=unknown
ARG TARGETARCH
RUN make dashboard-image-root VERSION=${VERSION} GOARCH=${TARGETARCH}

# The program for people, which serves the dashboard. Every subcommand runs as anyone:
# docker run IMAGE slices --node-model hgx-h100
FROM scratch AS dashboard
COPY --from=build-dashboard /src/bin/dashboard-image/ /
USER 65532:65532
ENTRYPOINT ["/usr/bin/cleave"]
CMD ["dashboard"]

# kube-scheduler with Cleave's plugin. It needs nothing of its node.
FROM scratch AS scheduler
COPY --from=build-scheduler /src/bin/scheduler-image/ /
USER 65532:65532
# kubeadm's manifest names the program without its directory.
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/cleave-scheduler"]

# The driver. Nothing to log in to: no shell, no package manager.
FROM scratch AS cleave
COPY --from=build /src/bin/image/ /
# The kubelet's plugin sockets, device nodes and NVML need root; the webhook runs as anyone.
USER 0
ENTRYPOINT ["/usr/bin/cleave-node"]
CMD ["kubelet-plugin"]
