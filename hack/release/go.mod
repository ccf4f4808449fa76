module github.com/cleave-dra/cleave/hack/release

go 1.26.0

require (
	github.com/github/go-spdx/v2 v2.3.4
	github.com/google/go-cmp v0.6.0
	github.com/google/licensecheck v0.3.1
	github.com/spdx/tools-golang v0.5.5
	golang.org/x/mod v0.41.0
	sigs.k8s.io/bom v0.6.0
)

require github.com/anchore/go-struct-converter v0.0.0-20221118182256-c68fdcfa2092 // indirect
