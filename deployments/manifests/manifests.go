// SPDX-License-Identifier: Apache-2.0

// Package manifests holds the DeviceClasses that come with Cleave.
package manifests

import "embed"

// Files hold them, alongside comments.
//
//go:embed deviceclass*.yaml
var Files embed.FS
