module github.com/cleave-dra/cleave/e2e/tools/dranet

go 1.26.0

require sigs.k8s.io/dranet v1.4.0
