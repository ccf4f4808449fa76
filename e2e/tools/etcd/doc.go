// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package etcd pins the etcd server that the local node runs.
package etcd

import (
	_ "go.etcd.io/etcd/server/v3"
)
