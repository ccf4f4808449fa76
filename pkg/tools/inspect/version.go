// SPDX-License-Identifier: Apache-2.0

package inspect

import "strings"

// driverText is the semantic version of a driver, as slices have it, as nvidia-smi writes it: 580.95.5 is 580.95.05.
func driverText(version string) string {
	parts := strings.Split(shortVersion(version), ".")
	if len(parts) == 3 && len(parts[2]) == 1 {
		parts[2] = "0" + parts[2]
	}
	return strings.Join(parts, ".")
}

// shortVersion leaves out a third number of zero: a driver 390.87.0 is 390.87, CUDA 13.0.0 is 13.0.
func shortVersion(version string) string {
	if strings.Count(version, ".") != 2 {
		return version
	}
	return strings.TrimSuffix(version, ".0")
}
