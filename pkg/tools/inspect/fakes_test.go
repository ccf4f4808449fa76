// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/golden"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// machine is a simulated node with what claims hold of it.
type machine struct {
	t       *testing.T
	node    *sim.Node
	session *nvml.Session
	policy  *v1alpha1.NodePolicy
	noMPS   error
	Hardware
}

func newMachine(t *testing.T, model string) *machine {
	t.Helper()
	node, err := sim.New(model)
	if err != nil {
		t.Fatal(err)
	}
	return machineOf(t, node)
}

func machineOf(t *testing.T, node *sim.Node) *machine {
	t.Helper()
	session, err := simulated.OpenNode(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return &machine{t: t, node: node, session: session, policy: &v1alpha1.NodePolicy{}}
}

func (m *machine) gpu(index int) *gpu.GPU { return &m.session.Node().GPUs[index] }

// mig puts a GPU into MIG mode, by a reset where it needs one.
func (m *machine) mig(index int) {
	m.t.Helper()
	activation, err := m.node.Device(index).MIG().SetMIGMode(true)
	if err != nil {
		m.t.Fatal(err)
	}
	if activation != nil {
		if err := m.node.Hardware().Reset(index); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := m.session.Refresh(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) place(index int, profile string, start int) gpu.Shape {
	m.t.Helper()
	g := m.gpu(index)
	for i := range g.MIG.Profiles {
		for _, at := range g.MIG.Profiles[i].Placements {
			if g.MIG.Profiles[i].Name == profile && at.Start == start {
				return gpu.Shape{GPU: g, Profile: &g.MIG.Profiles[i], Placement: at}
			}
		}
	}
	m.t.Fatalf("%s has no %s at %d", g.ProductName, profile, start)
	return gpu.Shape{}
}

func (m *machine) make(index int, profile string, start int) gpu.Partition {
	m.t.Helper()
	if !m.gpu(index).MIG.Enabled {
		m.mig(index)
	}
	p, err := m.session.CreatePartition(m.t.Context(), m.place(index, profile, start))
	if err != nil {
		m.t.Fatal(err)
	}
	return p
}

// claim records what a claim, "namespace/name", has.
func (m *machine) claim(name string, devices ...records.Device) *records.Record {
	namespace, name, _ := strings.Cut(name, "/")
	r := &records.Record{
		Format: records.Format, BootID: "boot", Devices: devices,
		Claim: records.Claim{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name)},
	}
	m.Records = append(m.Records, r)
	return r
}

func (m *machine) whole(index int) records.Device {
	g := m.gpu(index)
	return records.Device{Request: "r", Pool: "n", Device: g.PCI.DeviceName(), GPU: g.PCI.DeviceName(), UUID: g.UUID}
}

func (m *machine) share(index int, s records.Share) records.Device {
	d := m.whole(index)
	d.Device += "-" + string(s.Kind)
	d.Share = &s
	return d
}

// partition is a device that is, or is to be, a partition.
func (m *machine) partition(index int, profile string, start int, p gpu.Partition) records.Device {
	m.t.Helper()
	s := m.place(index, profile, start)
	d := m.whole(index)
	p.ProfileID, p.Placement = s.Profile.ID, s.Placement
	d.Device, d.Partition = s.Name(), &p
	return d
}

// made is an existing partition of a claim.
func (m *machine) made(index int, profile string, start int) records.Device {
	m.t.Helper()
	return m.partition(index, profile, start, m.make(index, profile, start))
}

// view looks at the machine.
func (m *machine) view() *View {
	m.t.Helper()
	m.Partitions = map[gpu.PCIAddress][]gpu.Partition{}
	for i := range m.session.Node().GPUs {
		g := m.gpu(i)
		parts, err := m.session.Partitions(m.t.Context(), g)
		if err != nil {
			m.t.Fatal(err)
		}
		m.Partitions[g.PCI] = parts
	}
	m.Node = policy.Apply(m.policy, m.session.Node(), policy.Capabilities{MPS: m.noMPS, Allocated: records.AllocatedOf(m.Records), Partitions: m.Unclaimed})
	v := OfMachine(m.Hardware)
	v.Driver = "gpu.cleave.dev"
	return v
}

func policyOf(t *testing.T, rules string) *v1alpha1.NodePolicy {
	t.Helper()
	p, err := v1alpha1.DecodeNodePolicy([]byte("apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\nrules:\n" + rules))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// text is what people see of a view.
func text(t *testing.T, v *View, o Options) string {
	t.Helper()
	var out bytes.Buffer
	if err := v.Print(&out, o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// checkGolden compares text with a file in testdata.
func checkGolden(t *testing.T, name, got string) {
	t.Helper()
	golden.Check(t, filepath.Join("testdata", name), got)
}

// asJSON is what programs see of a view.
func asJSON(t *testing.T, v *View) string {
	t.Helper()
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data) + "\n"
}

// only keeps some GPUs of a view, so that a golden file can be read.
func only(v *View, indexes ...int) *View {
	less := *v
	less.GPUs, less.Connections = nil, nil
	for _, i := range indexes {
		less.GPUs = append(less.GPUs, v.GPUs[i])
		var row []string
		for _, j := range indexes {
			row = append(row, v.Connections[i][j])
		}
		less.Connections = append(less.Connections, row)
	}
	return &less
}

// unexported lets cmp look at whole views.
var unexported = cmp.Options{cmpopts.IgnoreUnexported(Shape{}), cmpopts.EquateEmpty()}

// lines of a text that hold a word.
func lines(text, word string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return !strings.Contains(l, word) })
}
