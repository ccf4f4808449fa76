// SPDX-License-Identifier: Apache-2.0

// Package mps is what the rest of Cleave knows of MPS: the types and the client of the supervisor, a process of its own
// that starts, watches and stops one MPS control daemon per GPU (pkg/mps/supervisor). A plugin that is upgraded or
// crashes so never ends anyone's MPS server.
package mps
