// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// Containers that have been given a claim have its metadata mounted, and a tenant what only looks like it.
func TestPods_OfClaim(t *testing.T) {
	in := "0::/kubepods/pod" + string(podA) + "/c\n"
	cgroups := map[string]string{"4": "0::/x\n", "1": "0::/init.scope\n", "10": in + zombie, "11": in}
	mounts := map[string]string{
		"1": "0:26 /cdi/gpu.cleave.dev-metadata/ns_a/gpu/metadata.json", "10": "0:26 /cdi/gpu.cleave.dev-metadata/ns_a/gpu/metadata.json",
		"20": "0:26 /cdi/gpu.cleave.dev-metadata/ns_a/gpu/metadata.json", "21": "0:26 /cdi/gpu.cleave.dev-metadata/ns_a-b/gpu/metadata.json",
		"22": "0:26 /cdi/gpu.nvidia.com-metadata/ns_a/gpu/metadata.json//deleted",
		// Of a release that had a directory for each driver name.
		"23": `8:1 /kubelet\040x/plugins/gpu.cleave.dev/dra-device-metadata/ns_a/gpu/metadata.json`,
		// A tenant's: the subPath of a volume on another disk or the same, a directory beside, and a path in its own memory.
		"30": "254:0 /kubelet/pods/u/volumes/kubernetes.io~empty-dir/v/a-metadata/ns_a/b", "31": "8:1 /pv/a-metadata/ns_a/b",
		"32": "0:26 /cdi-x/gpu.cleave.dev-metadata/ns_a/b", "33": "0:99 /cdi/gpu.cleave.dev-metadata/ns_a/gpu/metadata.json",
	}
	all := []int{20, 22, 23, 30, 31, 32, 33}
	run := t.TempDir() // where the directories are, also by a link
	must(t, errors.Join(os.Mkdir(filepath.Join(run, "run"), 0o700), os.Symlink("run", filepath.Join(run, "var"))))
	own := "30 1 0:50 / / rw - overlay o rw\n31 30 0:26 /cdi " + run + "/run/cdi rw - tmpfs t rw\n" +
		`32 30 8:1 /kubelet\040x/plugins/gpu.cleave.dev ` + run + `/k\040x/gpu.cleave.dev rw - ext4 d rw` + "\n"
	dirs := []string{run + "/var/cdi", run + "/k x/gpu.cleave.dev"}
	for name, test := range map[string]struct {
		own  string
		dirs []string
		want []int
	}{
		"places known":                  {own, dirs, []int{20, 22, 23}},
		"directory removed":             {strings.Replace(own, "/cdi ", "/cdi//deleted ", 1), dirs, []int{20, 22, 23}},
		"CDI directory without a mount": {strings.Replace(own, "0:26 /cdi "+run+"/run/cdi", "0:26 / "+run+"/run", 1), dirs, []int{20, 22, 23}},
		"of a mount of its own":         {strings.Replace(own, "0:26 /cdi ", "0:99 / ", 1), dirs[:1], []int{33}},
		"places unknown":                {own, nil, all},
		"mounts of the plugin unknown":  {"", dirs, all},
		"one not to be found":           {own, append(dirs, "/proc/self/cmdline/x"), all},
	} {
		t.Run(name, func(t *testing.T) {
			for pid := range mounts {
				if cgroups[pid] == "" {
					cgroups[pid] = in
				}
			}
			table := write(t, cgroups)
			for pid, root := range mounts {
				lines := "31 30 0:27 / /dev rw - tmpfs tmpfs rw\n32 30 " + root + " /m ro - tmpfs tmpfs rw\n"
				must(t, os.WriteFile(filepath.Join(table.proc, pid, "mountinfo"), []byte(lines), 0o600))
			}
			must(t, os.WriteFile(filepath.Join(table.proc, "4", "mountinfo"), []byte(test.own), 0o600))
			p := newPods(table, t.TempDir(), "")
			p.metadata = func() []string { return test.dirs }
			got, err := p.OfClaim(t.Context(), "ns", "a")
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			p.table.self = 1
			if _, err := p.OfClaim(t.Context(), "ns", "a"); !errors.Is(err, ErrHidden) {
				t.Errorf("got %v, want %v", err, ErrHidden)
			}
		})
	}
}

// A process can have any number of mounts, of any length: that costs neither memory nor time.
func TestPods_OfClaimManyMounts(t *testing.T) {
	table := write(t, map[string]string{"7": "0::/kubepods/podx/c\n"})
	other := "33 30 0:26 /" + strings.Repeat(`\040`, 1<<15) + " /m rw - tmpfs tmpfs rw\n"
	given := "32 30 0:26 /cdi/gpu-metadata/ns_a/gpu/metadata.json /m ro - tmpfs tmpfs rw\n"
	data := other + given + strings.Repeat(other, 2*maxMounts/len(other)) + strings.Replace(given, "ns_a", "ns_b", 1)
	must(t, os.WriteFile(filepath.Join(table.proc, "7", "mountinfo"), []byte(data), 0o600))
	for claim, want := range map[string][]int{"a": {7}, "b": nil} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, err := newPods(table, t.TempDir(), "").OfClaim(t.Context(), "ns", claim)
		runtime.ReadMemStats(&after)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%d bytes allocated, want 1 MiB at most", n)
		}
	}
}

// Who looks at the processes of others for too long gives up, on behalf of all who wait.
func TestScans_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		look := func(ctx context.Context, _ []string) (map[string][]int, error) {
			<-ctx.Done()
			return newPods(write(t, map[string]string{"7": "0::/kubepods/podx/c\n"}), t.TempDir(), "").byMark(ctx, []string{"x"})
		}
		s := scans[string]{turn: make(chan struct{}, 1), look: look}
		if _, err := s.join(t.Context(), []string{"a"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
}
