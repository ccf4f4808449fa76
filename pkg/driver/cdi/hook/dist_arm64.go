// SPDX-License-Identifier: Apache-2.0

package hook

import "embed"

// dist contains the compressed programs once the Makefile has built them. Compression saves the plugin memory.
//
//go:embed all:dist/arm64
var dist embed.FS
