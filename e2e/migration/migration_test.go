// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// Stages of a node, which are the columns of the table.
const (
	before = iota
	installed
	drained
	moved
	back
	stages
)

var titles = []string{"before", "Cleave installed", "drained, plugin removed", "on Cleave", "rolled back"}

// walk is a migration under way.
type walk struct {
	// pods are those of a kind when they were last seen.
	pods map[string][]corev1.Pod
	// holders are the devices of all pods that run.
	holders map[string][]held
	// seen are the cells of the table by the name of the kind, or the row of the node.
	seen map[string]*[stages]string
	// partitions are those of nodes before anything happened.
	partitions map[string][]string
	// resources are those of the device plugin on nodes before anything happened.
	resources map[string][]string
}

// Nodes move one by one by the commands of docs/migrate.md, and back. Old manifests run throughout, as the table there says.
func TestMigration(t *testing.T) {
	ctx := tests.Bound(t, timeout)
	prepareAdmin(t)
	w := &walk{
		pods: map[string][]corev1.Pod{}, holders: map[string][]held{}, seen: map[string]*[stages]string{}, partitions: map[string][]string{},
		resources: map[string][]string{
			"mixed":  {"2 mig-1g.10gb", "2 mig-2g.20gb.shared", "7 gpu"},
			"sliced": {"32 gpu.shared"},
			"mps":    {"32 gpu"},
		},
	}
	ended := watch(ctx)
	steps := []workload.Step{
		{Name: "before", Run: w.before},
		{Name: "import and install", Run: w.install},
	}
	for _, p := range env.places {
		steps = append(steps, workload.Step{Name: p.config + " moves", Run: func(t *testing.T, ctx context.Context) { w.move(t, ctx, p) }})
	}
	for _, p := range env.places {
		steps = append(steps, workload.Step{Name: p.config + " goes back", Run: func(t *testing.T, ctx context.Context) { w.goBack(t, ctx, p) }})
	}
	steps = append(steps, workload.Step{Name: "uninstall", Run: w.uninstall})
	workload.RunSteps(t, timeout, diagnosis, steps)
	for _, twice := range ended() {
		t.Error(twice)
	}
	checkTable(t, w.table())
}

// before starts pods of all kinds on the device plugin.
func (w *walk) before(t *testing.T, ctx context.Context) {
	for _, p := range env.places {
		p.waitAllocatable(t, ctx, w.resources[p.config]...)
		holdings, err := env.release.Holdings(ctx, p.index)
		must(t, err)
		w.partitions[p.config] = holdings["partitions"]
	}
	if got := len(w.partitions["mixed"]); got != len(made) {
		t.Fatalf("there are %d partitions, want those of the MIG manager, %v", got, made)
	}
	for _, k := range kinds {
		k.create(t, ctx)
	}
	for _, p := range env.places {
		w.record(t, ctx, p, before)
	}
}

// install follows the steps 1 to 3. The node's partitions are as the MIG manager made them, so the files of the device plugin are all.
func (w *walk) install(t *testing.T, ctx context.Context) {
	run(t, ctx, without(t, commands(t, "**1. Import**"), "default-mig-parted-config"),
		"cleave import device-plugin -", "cleave import device-plugin - --driver-name gpu.nvidia.com")
	var files []string
	for _, p := range env.places {
		run(t, ctx, commands(t, "**2. Check**"), "cleave/policies", "cleave-device-plugin/policies", "all-balanced", p.config)
		files = append(files, fmt.Sprintf("--set-file policies.%s=cleave-device-plugin/policies/%s.yaml", p.config, p.config))
	}
	files = append(files, "--values values.yaml", "--set nvidiaCompatible=true", "--set policies.excluded.rules[0].exclude=true",
		"--set 'policyLabels={gpu.cleave.dev/policy,"+configLabel+"}'")
	run(t, ctx, commands(t, "**3. Install Cleave**"), "--set image.repository=REGISTRY/cleave", "", // which values.yaml has
		"--set-file policies.all-balanced=cleave/policies/all-balanced.yaml", strings.Join(files, " "), "cleave/deviceclasses.yaml", "cleave-device-plugin/deviceclasses.yaml")
	for _, p := range env.places {
		must(t, env.client.WaitEvent(ctx, corev1.NamespaceDefault, p.Name(), "GPUConflict", "a device plugin offers GPUs of this node"))
		w.undisturbed(t, ctx, p)
		w.record(t, ctx, p, installed)
	}
}

// move follows the steps 4 to 6 for a node.
func (w *walk) move(t *testing.T, ctx context.Context, p *place) {
	run(t, ctx, without(t, commands(t, "**4. Move a node.**"), "gpu.cleave.dev/policy=all-balanced"), "NODE", p.Name())
	p.waitRemoved(t, ctx)
	p.waitAllocatable(t, ctx)
	w.record(t, ctx, p, drained)
	must(t, p.Component(cluster.Kubelet).Restart(ctx, syscall.SIGTERM)) // in place of five minutes
	p.waitPublished(t, ctx, true)
	run(t, ctx, commands(t, "**6. Verify, and admit pods.**"), "NODE", p.Name())
	w.record(t, ctx, p, moved)
	w.others(t, ctx, p)
}

// goBack follows the rollback of a node.
func (w *walk) goBack(t *testing.T, ctx context.Context, p *place) {
	for _, line := range commands(t, "## Rollback") {
		run(t, ctx, []string{line}, "NODE", p.Name())
		if strings.Contains(line, "=excluded") {
			w.look(t, ctx, p, false)
			p.waitPublished(t, ctx, false)
			must(t, env.release.WaitHolds(ctx, p.index, w.partitions[p.config]...))
		}
	}
	p.waitAllocatable(t, ctx, w.resources[p.config]...)
	w.record(t, ctx, p, back)
	w.others(t, ctx, p)
}

// uninstall removes Cleave, which nobody uses any more.
func (w *walk) uninstall(t *testing.T, ctx context.Context) {
	run(t, ctx, []string{"helm uninstall cleave --namespace cleave-system --wait"})
	for _, p := range env.places {
		w.undisturbed(t, ctx, p)
	}
}

// record writes down what a node offers, and what its pods see.
func (w *walk) record(t *testing.T, ctx context.Context, p *place, stage int) {
	t.Helper()
	w.look(t, ctx, p, stage != drained)
	for _, k := range kinds {
		if k.config == p.config {
			w.write(k.name, stage, w.cell(k))
		}
	}
	w.write(p.row(), stage, p.cell(t, ctx))
}

func (w *walk) write(row string, stage int, text string) {
	if w.seen[row] == nil {
		w.seen[row] = &[stages]string{}
	}
	w.seen[row][stage] = text
}

// look looks at the pods of a node. Those with claims run on Cleave alone.
func (w *walk) look(t *testing.T, ctx context.Context, p *place, run bool) {
	t.Helper()
	for _, k := range kinds {
		if k.config != p.config {
			continue
		}
		types, err := p.published(ctx)
		must(t, err)
		runs := run && (!k.dra || len(types) > 0)
		w.pods[k.name], w.holders[k.name] = k.pods(t, ctx, runs), nil
		if runs {
			w.holders[k.name] = k.look(t, ctx, w.pods[k.name])
		}
	}
	var all []held
	for _, k := range kinds {
		all = append(all, w.holders[k.name]...)
	}
	for _, c := range conflicts(all) {
		t.Error(c)
	}
}

func (w *walk) cell(k kind) string {
	if len(w.holders[k.name]) == 0 {
		return "waits"
	}
	return cell(w.holders[k.name])
}

// others checks that nothing happened to the pods of other nodes.
func (w *walk) others(t *testing.T, ctx context.Context, p *place) {
	t.Helper()
	for _, other := range env.places {
		if other != p {
			w.undisturbed(t, ctx, other)
		}
	}
}

// undisturbed checks that the pods of a node run as when they were last seen.
func (w *walk) undisturbed(t *testing.T, ctx context.Context, p *place) {
	t.Helper()
	for _, k := range kinds {
		if k.config != p.config || len(w.holders[k.name]) == 0 {
			continue
		}
		for i := range w.pods[k.name] {
			diff, err := env.client.Undisturbed(ctx, &w.pods[k.name][i])
			must(t, err)
			if diff != "" {
				t.Errorf("pod %s was disturbed (-before +after):\n%s", w.pods[k.name][i].Name, diff)
			}
		}
	}
}

// table is that of the documentation.
func (w *walk) table() string {
	var b strings.Builder
	row := func(cells ...string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	row(slices.Concat([]string{"old manifest"}, titles)...)
	row(slices.Repeat([]string{"---"}, stages+1)...)
	for _, k := range kinds {
		row(slices.Concat([]string{k.says}, w.seen[k.name][:])...)
	}
	for _, p := range env.places {
		row(slices.Concat([]string{p.row()}, w.seen[p.row()][:])...)
	}
	return b.String()
}
