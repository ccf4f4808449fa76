# syntax=docker/dockerfile:1
# The image is the root file system that make image-root lays out, which tests use, too.
ARG GO_VERSION=1.26

# cgo: NVML is loaded with dlopen, which needs glibc.
FROM golang:${GO_VERSION}-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
RUN make image-root VERSION=${VERSION}

# Nothing to log in to: no shell, no package manager.
FROM scratch
COPY --from=build /src/bin/image/ /
# The kubelet's plugin sockets, device nodes and NVML need root; every other subcommand runs as anyone:
# docker run --user 65532 IMAGE slices --node-model hgx-h100
USER 0
ENTRYPOINT ["/usr/bin/cleave"]
CMD ["kubelet-plugin"]
