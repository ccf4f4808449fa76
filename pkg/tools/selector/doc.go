// SPDX-License-Identifier: Apache-2.0

// Package selector evaluates the CEL selectors of requests and DeviceClasses, and knows what they look at. It is apart from
// resourcepool so that programs on nodes, which read pools, link no interpreter of CEL.
package selector
