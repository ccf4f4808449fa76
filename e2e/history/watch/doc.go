// SPDX-License-Identifier: Apache-2.0

// Package watch is where the events of a history come from, but for those between kubelet and plugin: the API server, the
// container runtime and the simulated hardware. What a source could not see for a while it looks up afterwards, and marks as
// a gap.
package watch
