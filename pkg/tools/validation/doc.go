// SPDX-License-Identifier: Apache-2.0

// Package validation checks files before anybody uses them, without a cluster: node policies, and the claims and classes of
// workloads. It says what the plugin, the webhook and the API server would say, and where a node is given, what the
// scheduler would find on it.
package validation
