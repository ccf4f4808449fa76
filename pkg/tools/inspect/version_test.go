// SPDX-License-Identifier: Apache-2.0

package inspect

import "testing"

// On-call searches for the release as nvidia-smi writes it.
func TestVersions(t *testing.T) {
	for of, want := range map[string]string{"": "", "580.95.5": "580.95.05", "550.54.15": "550.54.15", "535.104.5": "535.104.05", "390.87.0": "390.87", "390.87": "390.87", "580.95.05": "580.95.05"} {
		if got := driverText(of); got != want {
			t.Errorf("driver %s: got %s, want %s", of, got, want)
		}
	}
	for of, want := range map[string]string{"13.0.0": "13.0", "12.8.0": "12.8", "12.8.1": "12.8.1", "13.0": "13.0", "13": "13"} {
		if got := shortVersion(of); got != want {
			t.Errorf("CUDA %s: got %s, want %s", of, got, want)
		}
	}
}
