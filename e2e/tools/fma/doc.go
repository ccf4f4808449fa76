// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package fma pins the controllers and the requester of llm-d's fast model actuation that e2e/launchers runs.
package fma

import (
	_ "github.com/llm-d-incubation/llm-d-fast-model-actuation/cmd/dual-pods-controller"
	_ "github.com/llm-d-incubation/llm-d-fast-model-actuation/cmd/launcher-populator"
	_ "github.com/llm-d-incubation/llm-d-fast-model-actuation/cmd/requester"
)
