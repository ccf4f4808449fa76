// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
)

func TestProcessesRoot(t *testing.T) {
	empty, linked, other := t.TempDir(), t.TempDir(), t.TempDir()
	for root, target := range map[string]string{linked: "/etc/alternatives/nowhere", other: "/bin/true"} {
		program := filepath.Join(root, "usr/bin", controlProgram)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(program), 0o700), os.Symlink(target, program)))
	}
	if got := (Processes{DriverRoots: []string{empty, linked, other}}).root(); got != linked {
		t.Errorf("got %s, want %s", got, linked)
	}
	if got := (Processes{DriverRoots: []string{empty, t.TempDir()}}).root(); got != empty {
		t.Errorf("got %s, want the first where none has it, for the error to name", got)
	}
	for err, want := range map[error]string{nil: other, errStep: linked} {
		p := Processes{DriverRoots: []string{empty, linked, other}, Running: func(context.Context) (string, error) { return other, err }}
		if got := p.Root(t.Context()); got != want {
			t.Errorf("with the running driver in %s (%v): got %s, want %s", other, err, got, want)
		}
	}
	p := Processes{DriverRoots: []string{empty, linked, other}, Running: func(context.Context) (string, error) { return empty, nil }}
	if got := p.Root(t.Context()); got != linked {
		t.Errorf("with a running driver that has no MPS: got %s, want %s", got, linked)
	}
}

// A control program that repeats itself fills no memory.
func TestLimited(t *testing.T) {
	var out limited
	cmd := exec.Command("head", "-c", "10000000", "/dev/zero")
	cmd.Stdout = &out
	must(t, cmd.Run())
	if got := len(out.String()); got != maxAnswer {
		t.Errorf("kept %d bytes, want %d", got, maxAnswer)
	}
}

func TestDiskRemoveDirs(t *testing.T) {
	base, one, two := t.TempDir(), t.TempDir(), t.TempDir()
	p := pathsOf(filepath.Join(base, "mps"), "gpu-0000-1b-00-0")
	for _, root := range []string{"", one, two} {
		for _, dir := range []string{p.pipe, p.log} {
			must(t, os.MkdirAll(filepath.Join("/", root, dir), 0o700))
		}
	}
	must(t, (Disk{DriverRoots: []string{"/", one, two}}).RemoveDirs(p))
	for _, path := range []string{p.dir, filepath.Join(one, base, "mps"), filepath.Join(two, base, "mps")} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left (%v)", path, err)
		}
	}
}

// starter copies a program to one that looks like MPS's, in the directory, and starts it.
func starter(t *testing.T, dir string) func(environment ...string) int {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	must(t, err)
	data, err := os.ReadFile(sleep)
	must(t, err)
	program := filepath.Join(dir, "nvidia-cuda-mps-server")
	must(t, os.WriteFile(program, data, 0o700))
	return func(environment ...string) int {
		cmd := exec.Command(program, "1000")
		cmd.Env = append([]string{}, environment...) // nil would be this process's
		must(t, cmd.Start())
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		return cmd.Process.Pid
	}
}

// What a tenant runs under that name and with those variables is neither believed nor killed.
func TestFindProcesses_OtherPod(t *testing.T) {
	pod := filepath.Join(cgroup2(t), "kubepods-pod"+string(uuid.NewUUID()))
	must(t, os.Mkdir(pod, 0o755))
	t.Cleanup(func() { _ = os.Remove(pod) })
	dir := t.TempDir()
	start := starter(t, dir)
	must(t, os.WriteFile(filepath.Join(pod, "cgroup.procs"), []byte(strconv.Itoa(start(pipeVariable+dir))), 0o600))
	server := start(pipeVariable + dir)
	if found, err := findProcesses(dir); err != nil || len(found) != 1 || found[0].PID != server {
		t.Errorf("got %v, %v, want process %d", found, err, server)
	}
}

// Containers may have any number of programs that look like MPS's and have no environment, as one has for a moment as it starts.
func TestFindProcesses_Decoys(t *testing.T) {
	dir := t.TempDir()
	start := starter(t, dir)
	const decoys = 40
	for range decoys {
		start()
	}
	server := start(pipeVariable + dir)
	began := time.Now()
	found, err := findProcesses(dir)
	if err != nil || len(found) != 1 || found[0].PID != server {
		t.Errorf("got %v, %v, want process %d", found, err, server)
	}
	if took := time.Since(began); took > decoys*maxLook/2 {
		t.Errorf("it took %s: it waited for each of them", took)
	}
}
