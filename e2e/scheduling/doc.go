// SPDX-License-Identifier: Apache-2.0

// Package scheduling tests cleave-scheduler, and Kueue with it, against a real etcd and API server, on nodes without kubelets.
package scheduling
