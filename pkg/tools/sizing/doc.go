// SPDX-License-Identifier: Apache-2.0

// Package sizing advises which devices workloads could do with: it compares what their claims were allocated with what Prometheus, or
// the plugins, have seen them use.
//
// Advice is a pure function of the cluster and of figures over time. Where figures are missing it says so, and advises nothing. What
// would be free if all of it were followed is replayed on the model of pkg/domain/packing, which pkg/tools/simulation uses, too.
package sizing
