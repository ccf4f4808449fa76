// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// One look at a pod on a node with 5,000 processes: in its cgroup, while it has one and after, and in the process table.
func BenchmarkPods(b *testing.B) {
	const running = 5000
	procs, group := map[string]string{}, "kubepods/burstable/pod"+string(podA)
	for i := range running {
		dir := fmt.Sprint(10 + i)
		procs[dir+"/cgroup"] = fmt.Sprintf("0::/kubepods/besteffort/pod%08d-0000-4000-8000-000000000000/container\n", i)
	}
	table := Table{proc: tree(b, procs), self: 4}
	dir := tree(b, map[string]string{"cgroup.controllers": "", group + "/cgroup.events": "populated 0\nfrozen 0\n",
		"kubepods/pod" + string(ownPod) + "/cgroup.procs": "4\n"})
	for _, look := range []struct {
		name   string
		finder interface {
			OfPods(context.Context, []types.UID) ([]int, error)
		}
		pod types.UID
	}{
		{"cgroup", newPods(table, dir, ownPod), podA}, {"gone", newPods(table, dir, ownPod), podB}, {"table", table, podA},
	} {
		b.Run(look.name, func(b *testing.B) {
			for b.Loop() {
				if found, err := look.finder.OfPods(b.Context(), []types.UID{look.pod}); err != nil || len(found) > 0 {
					b.Fatal(found, err)
				}
			}
		})
	}
}

// One look at who has a claim, on a node with 5,000 processes in 200 containers: by cgroups, and in the process table.
func BenchmarkPods_OfClaim(b *testing.B) {
	const running, containers = 5000, 200
	procs, groups := map[string]string{}, map[string]string{"cgroup.controllers": "", "kubepods/pod" + string(ownPod) + "/cgroup.procs": "4\n"}
	mounts := strings.Repeat("31 30 0:27 /var/lib/some/directory /dev/some/where rw - tmpfs tmpfs rw\n", 40)
	for i := range running {
		pid := strconv.Itoa(10 + i)
		group := fmt.Sprintf("kubepods/pod%08d-0000-4000-8000-000000000000/container", i%containers)
		procs[pid+"/cgroup"], procs[pid+"/mountinfo"] = "0::/"+group+"\n", mounts
		groups[group+"/cgroup.procs"] += pid + "\n"
		for _, dir := range []string{"kubepods", filepath.Dir(group)} {
			groups[dir+"/cgroup.events"], groups[dir+"/cgroup.threads"] = "populated 1\n", ""
		}
	}
	procs["4/mountinfo"] = mounts
	table := Table{proc: tree(b, procs), self: 4}
	for name, mount := range map[string]string{"cgroups": tree(b, groups), "table": b.TempDir()} {
		b.Run(name, func(b *testing.B) {
			p := newPods(table, mount, ownPod)
			for b.Loop() {
				if found, err := p.OfClaim(b.Context(), "ns", "claim"); err != nil || len(found) > 0 {
					b.Fatal(found, err)
				}
			}
		})
	}
}
