# syntax=docker/dockerfile:1
# The image holds the one binary and the C library it links.
ARG GO_VERSION=1.26

FROM golang:${GO_VERSION}-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
# cgo: NVML is loaded with dlopen, which needs glibc. The flags are the Makefile's.
RUN make build VERSION=${VERSION} && mkdir -p /out/usr/bin && cp bin/cleave /out/usr/bin/

# What the binary links, as a root file system of its own: the loader, the C library, CA certificates.
RUN mkdir -p /out/etc/ssl/certs /out/licenses && \
    cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ && \
    ldd /out/usr/bin/cleave | grep -o '/[^ ]*' | xargs -I{} cp --parents -L {} /out && \
    cp LICENSE /out/licenses/

# Nothing to log in to: no shell, no package manager.
FROM scratch
COPY --from=build /out/ /
# The kubelet's plugin sockets, device nodes and NVML need root; every other subcommand runs as anyone:
# docker run --user 65532 IMAGE slices --node-model hgx-h100
USER 0
ENTRYPOINT ["/usr/bin/cleave"]
CMD ["kubelet-plugin"]
