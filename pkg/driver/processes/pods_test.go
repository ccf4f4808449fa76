// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

const ownPod types.UID = "0f2a9c1e-0000-4000-8000-0000000000ff"

// layouts are the names of the cgroups of podA, podB and ownPod, in this order, by cgroup driver and cgroupRoot of the kubelet.
var layouts = map[string]struct{ above, a, b, own string }{
	"cgroupfs": {"kubepods", "burstable/pod" + string(podA), "pod" + string(podB), "besteffort/pod" + string(ownPod)},
	"cgroupfs, nested": {"kubelet/node/kubepods", "pod" + string(podA), "burstable/pod" + string(podB),
		"besteffort/pod" + string(ownPod)},
	"systemd": {"kubepods.slice", "kubepods-besteffort.slice/kubepods-besteffort-pod0f2a9c1e_0000_4000_8000_00000000000a.slice",
		"kubepods-pod0f2a9c1e_0000_4000_8000_00000000000b.slice",
		"kubepods-burstable.slice/kubepods-burstable-pod0f2a9c1e_0000_4000_8000_0000000000ff.slice"},
	"systemd, nested": {"kubelet.slice/kubelet-kubepods.slice",
		"kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod0f2a9c1e_0000_4000_8000_00000000000a.slice",
		"kubelet-kubepods-pod0f2a9c1e_0000_4000_8000_00000000000b.slice",
		"kubelet-kubepods-pod0f2a9c1e_0000_4000_8000_0000000000ff.slice"},
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree is a directory with these files.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(data), 0o600)))
	}
	return dir
}

// The processes of a pod are those of its cgroup, whatever the process table has; that of a pod without one is not read where
// the cgroups are the kubelet's.
func TestPods_InCgroups(t *testing.T) {
	for name, l := range layouts {
		for _, unified := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", unified ", unified), func(t *testing.T) {
				files := map[string]string{"cgroup.controllers": "cpu\n"}
				add := func(dir, populated string, procs ...string) {
					files[filepath.Join(dir, eventsFile)] = "populated " + populated + "\nfrozen 0\n"
					files[filepath.Join(dir, processesFile)] = ""
					for i, data := range procs {
						files[filepath.Join(dir, fmt.Sprint("container-", i), processesFile)] = data
					}
				}
				add(l.above+"/"+l.a, "1", "71\n700\n", "8\n71\n")
				add(l.above+"/"+l.b, "0", "")
				add(l.above+"/"+l.own, "1", "1\n4\n")
				if !unified {
					v1 := map[string]string{"pids/x/cgroup.procs": "1\n", "unified/x/cgroup.procs": "1\n"}
					for path, data := range files {
						if filepath.Base(path) == processesFile {
							v1["memory/"+path], v1["cpu,cpuacct/"+path] = data, ""
						}
					}
					files = v1
				}
				p := newPods(Table{proc: "/no-proc", self: 4}, tree(t, files), ownPod)
				for _, test := range []struct {
					pods []types.UID
					want []int
				}{
					{nil, nil}, {[]types.UID{podA}, []int{8, 71, 700}}, {[]types.UID{podB}, nil},
					{[]types.UID{"0f2a9c1e", podB}, nil}, {[]types.UID{podB, "ended", podA}, []int{8, 71, 700}},
				} {
					got, err := p.OfPods(t.Context(), test.pods)
					if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
						t.Errorf("OfPods(%v): %v (-want +got):\n%s", test.pods, err, diff)
					}
				}
			})
		}
	}
}

// What the cgroups do not say for certain, the process table does.
func TestPods_InTable(t *testing.T) {
	table := map[string]string{"7": "0::/kubepods/pod" + string(podA) + "\n", "9": "0::/\n"}
	group, own := "kubepods/pod"+string(podA), "kubepods/pod"+string(ownPod)+"/a/cgroup.procs"
	for name, test := range map[string]struct {
		files   map[string]string
		own     types.UID
		pod     types.UID
		hidden  bool
		want    []int
		wantErr error
	}{
		"no cgroups":                   {own: ownPod, want: []int{7}},
		"of another PID namespace, v1": {map[string]string{"cpu/" + group + "/x": ""}, ownPod, podA, true, nil, ErrHidden},
		"this process in no pod":       {map[string]string{"cgroup.controllers": "", own: "4\n"}, "", podA, false, []int{7}, nil},
		"runtime with cgroups of its own": {map[string]string{"cgroup.controllers": "", own: "5\n", group + "/cgroup.events": "populated 0\n"},
			ownPod, podA, false, []int{7}, nil},
		"another kubelet's":               {map[string]string{"cgroup.controllers": "", "kubepods/x": ""}, ownPod, podA, false, []int{7}, nil},
		"no cgroup":                       {map[string]string{"cgroup.controllers": "", group + "/x": "", own: "4\n"}, ownPod, podA, false, []int{7}, nil},
		"no number":                       {map[string]string{"cpu/" + group + "/cgroup.procs": "x"}, ownPod, podA, false, []int{7}, nil},
		"unreadable events":               {map[string]string{"cgroup.controllers": "", group + "/cgroup.events": "frozen 0", own: "4\n"}, ownPod, podA, false, []int{7}, nil},
		"a UID that leads elsewhere":      {map[string]string{"cgroup.controllers": "", own: "4\n"}, ownPod, "/../pod" + podA, false, nil, nil},
		"gone from the kubelet's cgroups": {map[string]string{"cgroup.controllers": "", own: "4\n"}, ownPod, podA, false, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			table := write(t, table)
			if test.hidden {
				table.self = 1
			}
			if test.pod == "" {
				test.pod = podA
			}
			p := newPods(table, tree(t, test.files), test.own)
			for range 2 { // the second time it knows where to look
				got, err := p.OfPods(t.Context(), []types.UID{test.pod})
				if diff := cmp.Diff(test.want, got); diff != "" || !errors.Is(err, test.wantErr) {
					t.Errorf("got %v, want %v (-want +got):\n%s", err, test.wantErr, diff)
				}
			}
		})
	}
}

// Processes that other PID namespaces hide, or whose first thread alone has ended, are left all the same.
func TestPods_Unlisted(t *testing.T) {
	group := "kubepods/pod" + string(podA)
	for threads, want := range map[string]int{"": 0, "0\n": 0, "74\n": 74} {
		dir := tree(t, map[string]string{"cgroup.controllers": "", group + "/cgroup.events": "populated 1\n",
			group + "/a/cgroup.procs": "", group + "/a/cgroup.threads": threads})
		got, err := newPods(Table{self: 1}, dir, "").OfPods(t.Context(), []types.UID{podB, podA})
		if diff := cmp.Diff([]int{want}, got); diff != "" || err != nil {
			t.Errorf("threads %q: %v (-want +got):\n%s", threads, err, diff)
		}
	}
}

// The kubelet's cgroups are looked for again where it was configured anew.
func TestPods_NewRoot(t *testing.T) {
	own := func(above string) string { return above + "/pod" + string(ownPod) + "/cgroup.procs" }
	dir := tree(t, map[string]string{"cgroup.controllers": "", own("kubepods"): "4\n"})
	p := newPods(Table{proc: "/no-proc", self: 4}, dir, ownPod)
	if got, err := p.OfPods(t.Context(), []types.UID{podA}); len(got) != 0 || err != nil {
		t.Fatalf("got %v, %v, want none", got, err)
	}
	next := filepath.Join(dir, "next")
	err := errors.Join(os.Mkdir(next, 0o700), os.Rename(filepath.Join(dir, "kubepods"), filepath.Join(next, "kubepods")),
		os.Mkdir(filepath.Join(next, "kubepods", "pod"+string(podA)), 0o700))
	events := filepath.Join(next, "kubepods", "pod"+string(podA), eventsFile)
	must(t, errors.Join(err, os.WriteFile(events, []byte("populated 1\n"), 0o600)))
	if got, err := p.OfPods(t.Context(), []types.UID{podA}); len(got) != 1 || err != nil {
		t.Errorf("got %v, %v, want a process", got, err)
	}
}

// While a process of a pod runs, others are not looked at; those who wait share one look.
func TestPods_Scans(t *testing.T) {
	table := write(t, map[string]string{"7": "0::/kubepods/pod" + string(podA) + "\n"})
	p := newPods(table, t.TempDir(), "")
	look := func(pod types.UID) int {
		t.Helper()
		found, err := p.OfPods(t.Context(), []types.UID{pod})
		if err != nil {
			t.Error(err)
		}
		return len(found)
	}
	if look(podA) != 1 {
		t.Fatal("the process was not found")
	}
	broken := filepath.Join(table.proc, "8", "cgroup") // a second scan would fail
	must(t, os.MkdirAll(broken, 0o700))
	if look(podA) != 1 {
		t.Error("the process was not found again")
	}
	must(t, errors.Join(os.RemoveAll(filepath.Dir(broken)), os.RemoveAll(filepath.Join(table.proc, "7"))))
	if look(podA) != 0 || len(p.left) != 0 {
		t.Errorf("the process has ended, %v are remembered", p.left)
	}
	p.scans.turn <- struct{}{} // somebody reads the table
	var wg sync.WaitGroup
	const callers = 8
	for range callers {
		wg.Go(func() { look(podB) })
	}
	for waiting := 0; waiting < callers; {
		p.scans.mu.Lock()
		if p.scans.next != nil {
			waiting = len(p.scans.next.of)
		}
		p.scans.mu.Unlock()
	}
	shared := p.scans.next
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.OfPods(ended, []types.UID{podB}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	<-p.scans.turn
	wg.Wait()
	if p.scans.next != nil || shared.found == nil {
		t.Error("more than one scan was made")
	}
}

// One process of each container is asked, and only where the cgroups do not say which those are, the process table.
func TestPods_OfClaimInCgroups(t *testing.T) {
	const with, without, own = "cdi.gpu-metadata/ns_a/gpu/metadata.json", "cdi.gpu-metadata/ns_b/gpu/metadata.json", "kubepods/pod" + string(ownPod)
	type files = map[string]string
	for name, test := range map[string]struct {
		cgroups files
		// mounts are those of processes; one without any cannot be read.
		mounts files
		want   []int
		fails  bool
	}{
		"one of many":                  {files{"kubepods/podx/c/cgroup.procs": "7\n8\n"}, files{"7": with}, []int{7}, false},
		"of another claim":             {files{"kubepods/podx/c/cgroup.procs": "7\n8\n"}, files{"7": without}, nil, false},
		"the first has just ended":     {files{"kubepods/podx/c/cgroup.procs": "6\n7\n"}, files{"7": with}, []int{7}, false},
		"in the second container":      {files{"kubepods/podx/c/cgroup.procs": "7\n", "kubepods/podx/d/cgroup.procs": "8\n"}, files{"7": without, "8": with}, []int{8}, false},
		"a thread alone":               {files{"kubepods/podx/c/cgroup.procs": "", "kubepods/podx/c/cgroup.events": "populated 1\n", "kubepods/podx/c/cgroup.threads": "7\n"}, files{"7": with}, []int{7}, false},
		"in no pod":                    {files{"system.slice/c/cgroup.procs": "7\n"}, files{"7": with}, nil, false},
		"not to be read":               {files{"kubepods/podx/c/cgroup.procs": "8\n"}, nil, nil, true},
		"hidden, so the table is read": {files{"kubepods/podx/c/cgroup.procs": "0\n"}, files{"7": with, "8": without}, []int{7}, false},
		"cgroups of another runtime":   {files{own + "/cgroup.procs": "5\n"}, files{"7": with, "8": without}, []int{7}, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := "0::/kubepods/podx/c\n"
			table := write(t, files{"4": "0::/x\n", "7": in, "8": in})
			must(t, os.Mkdir(filepath.Join(table.proc, "8", "mountinfo"), 0o700))
			must(t, os.WriteFile(filepath.Join(table.proc, "4", "mountinfo"), nil, 0o600))
			for pid, root := range test.mounts {
				file := filepath.Join(table.proc, pid, "mountinfo")
				_ = os.Remove(file)
				must(t, os.WriteFile(file, []byte("32 30 0:26 /"+root+" /m ro - tmpfs tmpfs rw\n"), 0o600))
			}
			cgroups := files{"cgroup.controllers": "", "kubepods/cgroup.events": "populated 1\n", "kubepods/cgroup.threads": "", own + "/cgroup.procs": "4\n"}
			for path := range test.cgroups {
				for dir := filepath.Dir(path); strings.HasPrefix(dir, "kubepods/"); dir = filepath.Dir(dir) {
					cgroups[dir+"/cgroup.events"], cgroups[dir+"/cgroup.threads"] = "populated 1\n", ""
				}
			}
			maps.Copy(cgroups, test.cgroups)
			got, err := newPods(table, tree(t, cgroups), ownPod).OfClaim(t.Context(), "ns", "a")
			if diff := cmp.Diff(test.want, got); diff != "" || (err != nil) != test.fails {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// The kernel says of a cgroup what the fakes do.
func TestPods_Kernel(t *testing.T) {
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory"} {
		above := filepath.Join(mount, "cleave-test-"+strconv.Itoa(os.Getpid()))
		pod := filepath.Join(above, "kubepods", "burstable", "pod"+string(podA))
		container := filepath.Join(pod, "container")
		_, err := os.Stat(filepath.Join(mount, processesFile))
		if err != nil || os.MkdirAll(container, 0o755) != nil {
			continue
		}
		t.Run(mount, func(t *testing.T) {
			defer func() {
				for dir := container; len(dir) >= len(above); dir = filepath.Dir(dir) {
					_ = os.Remove(dir)
				}
			}()
			cmd := exec.Command("cat")
			in, err := cmd.StdinPipe()
			must(t, errors.Join(err, cmd.Start()))
			pid := cmd.Process.Pid
			if err := os.WriteFile(filepath.Join(container, processesFile), []byte(strconv.Itoa(pid)), 0); err != nil {
				t.Error(err)
			}
			if !exists(filepath.Join(mount, controllersFile)) {
				mount = filepath.Dir(mount)
			}
			p := newPods(Table{proc: "/no-proc", self: os.Getpid()}, mount, "")
			look := func(want ...int) {
				t.Helper()
				got, err := p.OfPods(t.Context(), []types.UID{podA})
				if diff := cmp.Diff(want, got); diff != "" || err != nil {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
			}
			look(pid)
			_ = in.Close()
			for state := ""; !strings.Contains(state, ") Z"); { // it waits to be reaped
				data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
				must(t, err)
				state = string(data)
			}
			look()
			_ = cmd.Wait()
			look()
		})
	}
}
