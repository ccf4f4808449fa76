// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// An allocation names devices, also such as this node never had.
func FuzzDeviceNamed(f *testing.F) {
	session, err := simulated.Open(f.Context(), "hgx-h100")
	must(f, err)
	node := session.Node()
	if err := session.Close(); err != nil {
		f.Fatal(err)
	}
	whole := node.GPUs[0].Whole().Name()
	for _, name := range []string{"", whole, whole + "-mps", whole + "-mig-19-6", whole + "-mig-19-6-timeslice", whole + "-mig-19--6", whole + "-mig-9999999999999999999-0", "gpu-../x"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, node := range []*gpu.Node{node, nil} {
			d := deviceNamed(name, node)
			if d.Device != name || !strings.HasPrefix(name, d.GPU) {
				t.Errorf("%q is taken for %q of GPU %q", name, d.Device, d.GPU)
			}
			if d.Partition != nil && (node == nil || node.Find(d.GPU) == nil) {
				t.Errorf("%q is taken for a partition of a GPU that is not there", name)
			}
		}
	})
}
