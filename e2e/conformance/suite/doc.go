// SPDX-License-Identifier: Apache-2.0

// Package suite is the behaviour suite: its cases, and how they are run and reported. A case knows nothing of the driver but
// what any driver has: a name, ResourceSlices, DeviceClasses and sockets.
package suite
