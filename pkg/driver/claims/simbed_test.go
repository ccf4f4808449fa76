// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/nvml"
	"github.com/cleave-dra/cleave/pkg/sim"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// specDir is a CDI that keeps the specs of claims as files, one line for each partition or share.
type specDir struct {
	dir string
	// ensure resolves ids; nil to resolve all.
	ensure func(ids []string) error
	// step is called for each change before and after it; nil for none. fail refuses changes, and err is asked at each step.
	step func(what string)
	fail error
	err  func(what string) error
}

// under has the specs of claims of a driver name.
func (s *specDir) under(driver string) SpecRemover { return s.of(driver) }

func (s *specDir) of(driver string) *specDir {
	if driver == filepath.Base(s.dir) {
		return s
	}
	other := &specDir{dir: filepath.Join(filepath.Dir(s.dir), driver)}
	_ = os.MkdirAll(other.dir, 0o700)
	return other
}

func (s *specDir) PartitionsID(device string) string { return s.DeviceID(device) + "-mig" }

func (s *specDir) DeviceID(device string) string { return testDriver + "/gpu=" + device }

func (s *specDir) ClaimID(uid types.UID, d *records.Device) string {
	return testDriver + "/claim=" + string(uid) + "-" + d.Device
}

func (s *specDir) Ensure(_ context.Context, ids []string) error {
	if s.ensure == nil {
		return nil
	}
	return s.ensure(ids)
}

func (s *specDir) path(uid types.UID) string { return filepath.Join(s.dir, string(uid)) }

func (s *specDir) WriteClaim(_ context.Context, r *records.Record) error {
	uid := r.Claim.UID
	if s.fail != nil {
		return s.fail
	}
	var text strings.Builder
	for _, d := range r.WithEdits() {
		switch {
		case d.Partition != nil:
			fmt.Fprintf(&text, "%s gi%d ci%d\n", d.Device, d.Partition.GI, *d.Partition.CI)
		case d.Share == nil:
			fmt.Fprintf(&text, "%s %v\n", d.Device, r.UUIDs(d.Request))
		case d.Share.MPS != nil:
			fmt.Fprintf(&text, "%s %s %s\n", d.Device, d.Share.ID, d.Share.MPS.PipeDir)
		default:
			fmt.Fprintf(&text, "%s %s\n", d.Device, d.Share.ID)
		}
	}
	for _, d := range r.Partitions() {
		if d.Session != "" && !d.Partition.Existing {
			fmt.Fprintf(&text, "session %s %s\n", d.Device, d.Session)
		}
	}
	if err := hook(s.step, s.err, "before WriteClaim"); err != nil {
		return err
	}
	if err := os.WriteFile(s.path(uid), []byte(text.String()), 0o600); err != nil {
		return err
	}
	return hook(s.step, s.err, "after WriteClaim")
}

func (s *specDir) EnsureNodes(context.Context, *records.Record) {}

func (s *specDir) HasClaim(uid types.UID) bool {
	_, err := os.Lstat(s.path(uid))
	return err == nil
}

func (s *specDir) ClaimSession(uid types.UID, device string) string {
	data, err := os.ReadFile(s.path(uid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if session, ok := strings.CutPrefix(line, "session "+device+" "); ok {
			return strings.TrimSpace(session)
		}
	}
	return ""
}

func (s *specDir) Claims() ([]types.UID, error) {
	files, err := filepath.Glob(s.path("*"))
	uids := make([]types.UID, 0, len(files))
	for _, f := range files {
		uids = append(uids, types.UID(filepath.Base(f)))
	}
	return uids, err
}

func (s *specDir) RemoveClaim(uid types.UID) error {
	if err := hook(s.step, s.err, "before RemoveClaim"); err != nil {
		return err
	}
	if err := (store.Disk{}).Remove(s.path(uid)); err != nil {
		return err
	}
	return hook(s.step, s.err, "after RemoveClaim")
}

// simBed is a plugin on a simulated node.
type simBed struct {
	*plugin
	edits   []func(*Options)
	node    *sim.Node
	session *nvml.Session
	rule    *v1alpha1.Rule // of the node's policy, if any
	offers  []policy.Offer // of its GPUs
}

func newSimNode(t testing.TB, model string) *sim.Node {
	t.Helper()
	node, err := sim.New(model)
	must(t, err)
	must(t, node.Init())
	return node
}

// newSimBed is a plugin on a fresh node of a model, loaded and with hardware.
func newSimBed(t testing.TB, model string, setUp ...func(node *sim.Node)) *simBed {
	t.Helper()
	node := newSimNode(t, model)
	for _, f := range setUp {
		f(node)
	}
	return openSimBed(t, t.TempDir(), node)
}

// openSimBed is one more plugin process on a node, whose GPUs offer everything that needs no policy.
func openSimBed(t testing.TB, dir string, node *sim.Node, edits ...func(*Options)) *simBed {
	t.Helper()
	p, o := openPlugin(t, dir, edits...)
	b := &simBed{plugin: p, edits: edits, node: node}
	var err error
	b.session, err = simulated.OpenNode(t.Context(), node)
	must(t, err)
	b.Preparer = New(o)
	b.load()
	for i := range b.session.Node().GPUs {
		b.offers = append(b.offers, policy.Unrestricted(&b.session.Node().GPUs[i]))
	}
	b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
	b.Recover(t.Context())
	return b
}

// use has a rule of a policy hold.
func (b *simBed) use(rule v1alpha1.Rule) {
	b.t.Helper()
	b.rule = &rule
	means := policy.Capabilities{Allocated: records.AllocatedOf(b.Ledger.Records()), Partitions: b.Partitions.Unclaimed}
	b.offers = policy.Apply(&v1alpha1.NodePolicy{Rules: []v1alpha1.Rule{rule}}, b.session.Node(), means).Offers
	b.SetHardware(offeredHardware{b.session, b.offers}, b.specs)
}

// restart ends the plugin and starts it again, in another boot or session if one is named.
func (b *simBed) restart(edits ...func(*Options)) *simBed {
	b.t.Helper()
	b.die()
	again := openSimBed(b.t, b.dir, b.node, append(slices.Clone(b.edits), edits...)...)
	if b.rule != nil {
		again.use(*b.rule)
		again.Recover(b.t.Context())
	}
	return again
}

// name is the device of a partition of the i-th GPU, by profile ID and start; or of the whole GPU.
func (b *simBed) name(i int, mig ...int) string {
	name := b.session.Node().GPUs[i].PCI.DeviceName()
	if len(mig) == 2 {
		name += fmt.Sprintf("-mig-%d-%d", mig[0], mig[1])
	}
	return name
}

// deviceClaim is allocated and reserved and has the named devices; a shared one with a share ID and the interval, if any,
// that its name ends in; a whole GPU with the interval, or the MPS server, that it is to have for the claim alone.
func deviceClaim(uid types.UID, devices ...string) *resourceapi.ResourceClaim {
	var parts []part
	for i, d := range devices {
		name, wish, _ := strings.Cut(d, "!")
		p := part{result: deviceResult("r", name)}
		switch isAdmin := wish == "admin"; {
		case isAdmin:
			p.result.AdminAccess = &isAdmin
		case strings.HasSuffix(name, string(gpu.TimeSlice)) || strings.HasSuffix(name, string(gpu.MPS)):
			p.result.ShareID = new(types.UID)
			p.result.Request = fmt.Sprintf("share-%d%s", i, wish) // a request of its own: one may not have MPS shares of two GPUs
			p.interval = wish
		case wish != "":
			p.result.Request = fmt.Sprintf("alone-%d", i)
			if p.alone = plainMPS; wish != "mps" {
				p.alone = slicingAt(wish)
			}
		}
		parts = append(parts, p)
	}
	return claimFor(uid, parts...)
}

// baseName is the device of a name with a wish.
func baseName(device string) string {
	name, _, _ := strings.Cut(device, "!")
	return name
}

// admin marks a device as asked for with admin access.
func admin(device string) string { return device + "!admin" }

func (b *simBed) prepare(uid types.UID, devices ...string) []records.Device {
	b.t.Helper()
	return mustPrepare(b.t, b.Preparer, deviceClaim(uid, devices...))
}

func (b *simBed) tryPrepare(uid types.UID, devices ...string) error {
	_, err := b.Prepare(b.t.Context(), deviceClaim(uid, devices...))
	return err
}

func (b *simBed) unprepare(uid types.UID) {
	b.t.Helper()
	mustUnprepare(b.t, b.Preparer, deviceClaim(uid))
}

// instances lists what is on the boards, as "gpu profile start:size [ci]", in order.
func (b *simBed) instances() []string {
	b.t.Helper()
	return instancesOf(b.t, b.node)
}

func instancesOf(t testing.TB, node *sim.Node) []string {
	t.Helper()
	st, err := node.Status()
	must(t, err)
	list := []string{}
	for _, g := range st.GPUs {
		for _, gi := range g.Instances {
			line := fmt.Sprintf("%d %d@%d", g.Index, gi.ProfileID, gi.Start)
			if len(gi.Compute) != 1 {
				line += fmt.Sprintf(" with %d compute instances", len(gi.Compute))
			}
			list = append(list, line)
		}
	}
	return list
}

// modes lists the GPUs in MIG mode.
func (b *simBed) modes() []int {
	b.t.Helper()
	st, err := b.node.Status()
	must(b.t, err)
	on := []int{}
	for _, g := range st.GPUs {
		if g.MIG {
			on = append(on, g.Index)
		}
	}
	return on
}

// files lists a directory of the plugin's state.
func (p *plugin) files(dir string) []string {
	p.t.Helper()
	entries, err := os.ReadDir(filepath.Join(p.dir, dir))
	must(p.t, err)
	list := []string{}
	for _, e := range entries {
		if !e.IsDir() {
			list = append(list, strings.TrimSuffix(e.Name(), ".json"))
		}
	}
	return list
}

// want compares the boards, the records and the specs with what should be there; specs are those of records unless
// they are named.
func (b *simBed) want(instances, claims, specs []string) {
	b.t.Helper()
	for what, pair := range map[string][2][]string{
		"instances": {instances, b.instances()}, "records": {claims, b.files("claims")}, "specs": {specs, b.files("specs/" + b.Ledger.id.Driver)},
	} {
		want, got := slices.Clone(pair[0]), pair[1]
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
			b.t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
}

func list(words ...string) []string { return words }

// occupy makes a partition that the plugin knows nothing of, as an admin with nvidia-smi does, with a compute instance.
func occupy(t testing.TB, node *sim.Node, i, profile, start, size int) *sim.GPUInstance {
	t.Helper()
	d := node.Device(i)
	if activation, err := d.MIG().SetMIGMode(true); err != nil || activation != nil {
		t.Fatal(err, activation)
	}
	gi, err := d.MIG().CreateGPUInstanceWithPlacement(profile, gpu.Placement{Start: start, Size: size})
	must(t, err)
	info, err := gi.ComputeInstanceProfileInfo(0, 0)
	must(t, err)
	if _, err := gi.CreateComputeInstance(info.ID); err != nil {
		t.Fatal(err)
	}
	return gi
}
