// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"testing"
)

func TestCandidates(t *testing.T) {
	for name, tt := range map[string]struct {
		root, mounted string
		want          []Root
	}{
		"host":                {"/", "", []Root{{"/", "/"}}},
		"driver container":    {"/run/nvidia/driver/", "", []Root{{"/run/nvidia/driver", "/run/nvidia/driver"}}},
		"mounted elsewhere":   {"/run/nvidia/driver", "/driver/", []Root{{"/run/nvidia/driver", "/driver"}}},
		"auto":                {Auto, "", []Root{{"/", "/"}, {"/run/nvidia/driver", "/run/nvidia/driver"}}},
		"auto in a container": {Auto, "/host", []Root{{"/", "/host"}, {"/run/nvidia/driver", "/host/run/nvidia/driver"}}},
	} {
		t.Run(name, func(t *testing.T) {
			equal(t, "roots", tt.want, Candidates(tt.root, tt.mounted))
		})
	}
}
