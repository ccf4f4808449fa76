// Package manifests holds the DeviceClasses that come with Cleave.
package manifests

import "embed"

// Files are the manifests, *.yaml.
//
//go:embed *.yaml
var Files embed.FS
