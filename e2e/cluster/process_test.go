// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/process"
)

func TestParseStat(t *testing.T) {
	tail := strings.Repeat(" 0", 18) + " 4711 9 9"
	for line, want := range map[string]bool{
		"12 (sh) S" + tail:                     true,
		"12 (a b) c) (d) S" + tail:             true, // a name may hold anything
		"12 (sh) S 1 2 3":                      false,
		"12 (sh) S" + tail[:3] + " x":          false,
		"":                                     false,
		"12 sh S" + tail:                       false,
		"12 (sh) Sleeping" + tail:              false,
		"12 (sh) S" + strings.Repeat(" -", 20): false,
	} {
		state, start, err := parseStat([]byte(line))
		if ok := err == nil && state == 'S' && start == 4711; ok != want {
			t.Errorf("parseStat(%q) = %c, %d, %v", line, state, start, err)
		}
	}
}

func TestParseStat_Zombie(t *testing.T) {
	for threads, want := range map[string]byte{"0": 'Z', "1": 'Z', "7": 'R'} {
		line := "12 (kube-apiserver) Z" + strings.Repeat(" 1", 16) + " " + threads + " 0 4711 1"
		if state, _, err := parseStat([]byte(line)); err != nil || state != want {
			t.Errorf("a zombie of %s threads is in state %c, %v; want %c", threads, state, err, want)
		}
	}
}

func TestParseProcess(t *testing.T) {
	for text, want := range map[string]identity{
		"12 345\n": {12, 345},
		"":         {},
		"12":       {},
		"1 345":    {}, // never the first process
		"-5 3":     {}, // nor a group
		"a b":      {},
	} {
		got, err := parseProcess(text)
		if got != want || (err == nil) != (want != identity{}) {
			t.Errorf("parseProcess(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

// startSleeper starts a process that runs until the test ends.
func startSleeper(t *testing.T, env ...string) identity {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.Env = append(os.Environ(), env...)
	must(t, cmd.Start())
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	_, start, err := readStat(cmd.Process.Pid)
	must(t, err)
	return identity{cmd.Process.Pid, start}
}

func TestSignal_PIDReused(t *testing.T) {
	p := startSleeper(t)
	other := identity{p.pid, p.start + 1}
	if other.alive() {
		t.Error("a process that started at another time counts as alive")
	}
	if err := other.signal(syscall.SIGKILL); err != nil {
		t.Errorf("signal to a process that is gone: %v", err)
	}
	if !p.alive() {
		t.Fatal("the signal reached a process that was not meant")
	}
	must(t, p.signal(syscall.SIGKILL))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if left := waitGone(ctx, []identity{p}); len(left) > 0 {
		t.Error("the process did not end")
	}
}

func TestKillOwned(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	mine := startSleeper(t, ownerVariable+"="+dir)
	neighbour := startSleeper(t, ownerVariable+"="+dir+"-2")
	server := startSleeper(t, pipeVariable+"="+dir+"/guests/node/mps/gpu-0/pipe") // of MPS: it has no other mark
	bystander := startSleeper(t, "LOOKING_AT="+dir)
	must(t, killOwned(t.Context(), layout{dir}))
	if mine.alive() || server.alive() {
		t.Error("a process of the cluster is left")
	}
	if !neighbour.alive() || !bystander.alive() {
		t.Error("a process that is not of the cluster was killed")
	}
}

func TestParseMounts(t *testing.T) {
	text := `25 30 0:23 / /proc rw,relatime shared:14 - proc proc rw
90 30 0:50 / /var/lib/c/run/rootfs rw - overlay overlay rw,lowerdir=/var/lib/c/containerd/1/fs,upperdir=/var/lib/c/containerd/2/fs
91 30 0:51 /sub /var/lib/c/a\040b rw master:1 - tmpfs tmpfs rw
92 30 0:52 / /var/lib/cc rw - tmpfs tmpfs rw
nonsense
`
	all := parseMounts([]byte(text))
	var points []string
	for _, m := range selectBelow(all, "/var/lib/c") {
		points = append(points, m.point)
	}
	if diff := cmp.Diff([]string{"/var/lib/c/a b", "/var/lib/c/run/rootfs"}, points); diff != "" {
		t.Errorf("mounts below, last first (-want +got):\n%s", diff)
	}
	for dir, want := range map[string]bool{"/var/lib/c": true, "/var/lib/cc": false, "/var/lib/c/cont": false} {
		if got := all[1].isLayerBelow(dir); got != want {
			t.Errorf("isLayerBelow(%s) = %t, want %t", dir, got, want)
		}
	}
}

func TestWipe_UnmanagedDirectory(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	must(t, os.WriteFile(precious, nil, 0o600))
	err := wipe(t.Context(), layout{dir})
	if err == nil || !strings.Contains(err.Error(), "precious") {
		t.Errorf("the error should name what is in the way, got: %v", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	unlock, err := lock(t.Context(), dir, os.Stderr)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*pollInterval)
	defer cancel()
	var said strings.Builder
	if _, err := lock(ctx, dir, &said); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second lock: %v, want it to wait", err)
	}
	if strings.Count(said.String(), "waiting for another program") != 1 {
		t.Errorf("the wait should be announced once, got %q", said.String())
	}
	// The directory goes with its cluster: who waited gets a new one.
	must(t, os.Remove(dir))
	unlock()
	again, err := lock(t.Context(), dir, &said)
	must(t, err)
	again()
}

func TestInParallel_FirstError(t *testing.T) {
	boom := errors.New("boom")
	err := inParallel(t.Context(),
		func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		func(context.Context) error { return boom })
	if !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
}

func TestFailure_ShowsLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "etcd.log")
	must(t, os.WriteFile(log, []byte("first\n"+strings.Repeat("line\n", 40)+"panic: no space\n"), 0o600))
	program, err := process.Start(exec.Command("sh", "-c", "exit 2"), log)
	must(t, err)
	<-program.Ended()
	d := &daemon{component: Etcd, logFile: log, program: program}
	got := d.failure(context.DeadlineExceeded).Error()
	for _, want := range []string{"etcd", "exit status 2", log, "panic: no space"} {
		if !strings.Contains(got, want) {
			t.Errorf("the error lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "first") {
		t.Errorf("the error shows more than the end of the log:\n%s", got)
	}
}

func TestHasCapability(t *testing.T) {
	const without = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n"
	if got, err := hasSysResource(without); got || err != nil {
		t.Errorf("without the capability: %t, %v", got, err)
	}
	if got, err := hasSysResource(strings.Replace(without, "fffeff", "ffffff", 1)); !got || err != nil {
		t.Errorf("with the capability: %t, %v", got, err)
	}
	if _, err := hasSysResource("Name:\tx\n"); err == nil {
		t.Error("no capabilities should be an error")
	}
}

// TestHost_AsFoundBy covers a cluster that starts while the kubelet of another one runs, which changed the machine.
func TestHost_AsFoundBy(t *testing.T) {
	first := testState()
	first.Host.OwnKubeletDir, first.Host.Sysctls = true, []sysctl{{"/proc/sys/kernel/panic", "1"}}
	dir := t.TempDir()
	must(t, writeState(layout{dir}, first))
	now := host{Busybox: "/bin/busybox", Sysctls: []sysctl{{"/proc/sys/kernel/panic", "10"}}}
	for environ, found := range map[string]bool{
		"A=b\x00" + ownerVariable + "=" + dir + "\x00": true,
		ownerVariable + "=" + dir + "-gone\x00":        false,
		"A=" + dir:                                     false,
	} {
		got, want := now, now
		if found {
			want.OwnKubeletDir, want.Sysctls = true, first.Host.Sysctls
		}
		if ok := got.asFoundBy([]byte(environ)); ok != found {
			t.Errorf("asFoundBy(%q) = %t", environ, ok)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("asFoundBy(%q) (-want +got):\n%s", environ, diff)
		}
	}
}

func TestPortsDiffer(t *testing.T) {
	p, err := choosePorts(t.Context())
	must(t, err)
	seen := map[int]bool{0: true}
	for _, port := range []int{p.APIServer, p.EtcdClient, p.EtcdPeer, p.Scheduler, p.ControllerManager, p.Kubelet, p.KubeletHealth} {
		if seen[port] {
			t.Errorf("port %d twice or zero in %+v", port, p)
		}
		if port > lastPort {
			t.Errorf("port %d, of those that any connection may get, in %+v", port, p)
		}
		seen[port] = true
	}
}
