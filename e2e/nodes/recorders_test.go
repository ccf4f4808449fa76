// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/history"
	"github.com/cleave-dra/cleave/e2e/history/tap"
	"github.com/cleave-dra/cleave/e2e/history/watch"
	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// recorders record a history of each node.
type recorders struct {
	taps  []*tap.Tap
	nodes []*history.Recorder
	// links is a directory of links to those of the nodes: the paths of sockets there are too long.
	links string
	procs []*os.File
}

// record has the plugins register where taps listen, and begins a history of each node.
func record(t *testing.T, ctx context.Context) *recorders {
	t.Helper()
	r := &recorders{}
	t.Cleanup(r.close)
	var err error
	r.links, err = os.MkdirTemp("/tmp", "")
	must(t, err)
	plugins, err := podsOf(ctx, "plugin")
	must(t, err)
	registry := ""
	for _, p := range env.places {
		registry, err = p.GuestDir("registry")
		must(t, err)
		sockets, err := p.GuestDir("tap")
		must(t, err)
		link := filepath.Join(r.links, strconv.Itoa(p.index))
		must(t, os.Symlink(p.HostPath(env.cluster.Dir()+"/"), link))
		tapped, err := tap.Start(ctx, tap.Options{
			PluginRegistry: registry, KubeletRegistry: env.cluster.RegistryDir(), Dir: sockets,
			HostPath: func(path string) string { return link + strings.TrimPrefix(path, env.cluster.Dir()) },
		})
		must(t, err)
		r.taps = append(r.taps, tapped)
	}
	env.helm(t, ctx, env.valuesFor(release.Settings{RegistryDir: registry}), "upgrade", "cleave", release.Chart(env.release.Source), "--wait",
		"--timeout", "300s")
	waitPods(t, ctx, "plugin", plugins)
	for i, p := range env.places {
		p.waitSlices(t, ctx)
		r.nodes = append(r.nodes, r.recordNode(t, ctx, p, r.taps[i]))
	}
	return r
}

func (r *recorders) recordNode(t *testing.T, ctx context.Context, p place, tapped *tap.Tap) *history.Recorder {
	t.Helper()
	var proc *os.File
	must(t, p.Inside(func() (err error) {
		proc, err = os.Open("/proc")
		return err
	}))
	r.procs = append(r.procs, proc)
	recorder, err := history.Record(ctx, history.Sources{
		File: filepath.Join(env.release.Source, "bin", "history-"+p.Name()+".jsonl"), Node: p.Name(), Driver: workload.Driver,
		Of: []history.Source{
			tapped,
			watch.API{Kube: env.kube, Driver: workload.Driver, Node: p.Name()},
			watch.Pods{Kube: env.kube, Node: p.Name()},
			watch.Scheduling{Kube: env.kube, Namespace: demo},
			watch.Runtime{Socket: p.HostPath(env.cluster.ContainerRuntime())},
			watch.Simulator{Root: p.HostPath(p.gpus.Root()), Program: "cleave-node", Proc: "/proc/self/fd/" + strconv.Itoa(int(proc.Fd()))},
		},
	})
	must(t, err)
	return recorder
}

// check ends the histories and says what in them must not have happened.
func (r *recorders) check(t *testing.T) {
	t.Helper()
	limits := history.Limits{PodsUnseen: !cluster.PodGroups(env.cluster)}
	var all history.History
	for i, recorder := range r.nodes {
		h, err := recorder.Stop()
		must(t, err)
		t.Logf("the history of %s has %d events", env.places[i].Name(), len(h.Events))
		all.Events = append(all.Events, h.Events...)
		for _, v := range history.Check(h, limits) {
			t.Errorf("%s: %s", env.places[i].Name(), v)
			for _, e := range v.Events {
				t.Logf("\t%s %s %+v", e.At, e.Fact.Kind(), e.Fact)
			}
		}
	}
	r.nodes = nil
	if lacks := history.Lacks(all, limits); len(lacks) > 0 {
		t.Errorf("the histories have nothing of %q: the rules do not see them", lacks)
	}
}

func (r *recorders) close() {
	for _, recorder := range r.nodes { // where the test has ended early
		_, _ = recorder.Stop()
	}
	for _, tapped := range r.taps {
		tapped.Close()
	}
	for _, proc := range r.procs {
		_ = proc.Close()
	}
	_ = os.RemoveAll(r.links)
}
