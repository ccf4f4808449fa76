// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// run runs nvml-sim and returns what it writes and its exit code.
func run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	c := newCommand()
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	if err != nil {
		out.WriteString(err.Error())
	}
	return out.String(), codeOf(err)
}

// ok runs nvml-sim and expects it to succeed.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	out, code := run(t, args...)
	if code != 0 {
		t.Fatalf("nvml-sim %s: exit code %d: %s", strings.Join(args, " "), code, out)
	}
	return out
}

// makeNode creates a node with a stand-in for the library.
func makeNode(t *testing.T, model string) (root string) {
	t.Helper()
	dir := t.TempDir()
	library := filepath.Join(dir, "libnvidia-ml.so.1")
	if err := os.WriteFile(library, []byte("library"), 0o600); err != nil {
		t.Fatal(err)
	}
	root = filepath.Join(dir, "root")
	out := ok(t, "create", "--node", model, "--root", root, "--library", library, "--no-device-nodes")
	if !strings.Contains(out, model) {
		t.Errorf("create says %q", out)
	}
	return root
}

func TestUsage(t *testing.T) {
	t.Setenv("NVML_SIM_ROOT", "")
	root := makeNode(t, "hgx-h100")
	tests := []struct {
		args []string
		code int
		want string
	}{
		{[]string{}, 0, "makes simulated GPU nodes"},
		{[]string{"models"}, 0, "hgx-h100"},
		{[]string{"creat"}, 2, `unknown command "creat" of "nvml-sim": did you mean create?`},
		{[]string{"create", "--node", "hgx-h1000", "--root", root}, 2, "hgx-h100, hgx-h200"},
		{[]string{"create", "--node", "t4"}, 2, "--root"},
		{[]string{"create", "--node", "t4", "--root", root, "--library", "/nowhere"}, 1, "make sim"},
		{[]string{"show", "--root", root, "--colour"}, 2, "unknown flag: --colour"},
		{[]string{"show", "--root", root, "-o", "xml"}, 2, "table or json"},
		{[]string{"show", "--root", t.TempDir()}, 1, "no simulated node"},
		{[]string{"fault", "--root", root}, 2, "nothing to do"},
		{[]string{"fault", "--root", root, "--xid", "79"}, 2, "no --gpu"},
		{[]string{"fault", "--root", root, "--gpu", "8", "--lost"}, 1, "no GPU 8"},
		{[]string{"fault", "--root", root, "--gpu", "0", "--recovery", "8"}, 1, "they are 0 to 7"},
		{[]string{"fault", "--root", root, "--fail", "nvmlDeviceGetUUID"}, 2, "want one argument"},
		{[]string{"fault", "--root", root, "--fail", "nvmlDeviceGetUUID", "NOPE"}, 2, "IN_USE"},
		{[]string{"fault", "--root", root, "--absent"}, 2, "no --gpu"},
		{[]string{"fault", "--root", root, "--gpu", "8", "--absent"}, 1, "no GPU 8"},
		{[]string{"fault", "--root", root, "--gpu", "0", "--fabric", "done"}, 2, "not-started, in-progress"},
		{[]string{"fault", "--root", root, "--gpu", "0", "--virtualization", "kvm"}, 2, "pass-through, vgpu"},
		{[]string{"fault", "--root", root, "--gpu", "0", "--fabric", "in-progress", "--times", "-1"}, 2, "--times"},
		{[]string{"fault", "--root", root, "--quirk", "nope"}, 1, "mode-wipes-instances"},
		{[]string{"fault", "--root", root, "--slow", "2s", "migmode"}, 2, "nvmlDeviceGetMigMode"},
		{[]string{"mig", "mode", "--root", root, "maybe"}, 2, "on or off"},
		{[]string{"mig", "create", "--root", root, "--profile", "9g.90gb"}, 2, "1g.10gb (19)"},
		{[]string{"mig", "destroy", "--root", root}, 2, "--gi ID or --all"},
		{[]string{"reset", "--root", root}, 2, "no --gpu"},
		{[]string{"client", "remove", "--root", root, "--pid", "1"}, 1, "no process 1"},
		{[]string{"driver", "restart"}, 2, "restart"},
		{[]string{"reset", "--root", root, "--gpu", "0", "--remake"}, 2, "--force"},
	}
	for _, tt := range tests {
		out, code := run(t, tt.args...)
		if code != tt.code || !strings.Contains(out, tt.want) {
			t.Errorf("nvml-sim %s: exit code %d, want %d, and %q in:\n%s", strings.Join(tt.args, " "), code, tt.code, tt.want, out)
		}
	}
}

func status(t *testing.T, root string) sim.Status {
	t.Helper()
	var st sim.Status
	if err := json.Unmarshal([]byte(ok(t, "show", "--root", root, "-o", "json")), &st); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestNode_Lifecycle(t *testing.T) {
	root := makeNode(t, "hgx-h100")
	ok(t, "mig", "mode", "--root", root, "--gpu", "1", "on")
	ok(t, "mig", "create", "--root", root, "--gpu", "1", "--profile", "3g.40gb", "--start", "4")
	ok(t, "mig", "create", "--root", root, "--gpu", "1", "--profile", "19", "--no-compute-instance")
	ok(t, "client", "add", "--root", root, "--gpu", "1", "--pid", "71", "--name", "dcgm", "--gi", "2", "--ci", "0")
	ok(t, "fault", "--root", root, "--slow", "2s", "nvmlDeviceGetName")
	ok(t, "fault", "--root", root, "--quirk", "first-instance-in-use")
	ok(t, "fault", "--root", root, "--quirk", "first-instance-in-use", "--clear")
	ok(t, "fault", "--root", root, "--gpu", "3", "--xid", "79", "--lost")
	ok(t, "fault", "--root", root, "--gpu", "4", "--ecc", "--unavailable", "--recovery", "6")

	g := status(t, root).GPUs[1]
	want := []sim.InstanceStatus{
		{ID: 2, Profile: "3g.40gb", ProfileID: 9, Start: 4, Size: 4, Serial: 1, Compute: []sim.ComputeStatus{
			{Profile: "3g.40gb", ProfileID: 2, Size: 3, UUID: g.Instances[0].Compute[0].UUID}}},
		{ID: 7, Profile: "1g.10gb", ProfileID: 19, Size: 1, Serial: 3},
	}
	if diff := cmp.Diff(want, g.Instances); diff != "" {
		t.Errorf("instances (-want +got):\n%s", diff)
	}
	table := ok(t, "show", "--root", root)
	for _, want := range []string{"lost", "recovery action 6", "3g.40gb  4:4", "client 71 (dcgm) on GPU 1 GI 2 CI 0", "fault #1 nvmlDeviceGetName takes 2s"} {
		if !strings.Contains(table, want) {
			t.Errorf("show has no %q:\n%s", want, table)
		}
	}
	if out, code := run(t, "mig", "destroy", "--root", root, "--gpu", "1", "--all"); code != 1 || !strings.Contains(out, "process 71 (dcgm)") {
		t.Errorf("destroy of an instance in use: exit code %d: %s", code, out)
	}
	ok(t, "client", "remove", "--root", root, "--gpu", "1", "--pid", "71")
	ok(t, "mig", "destroy", "--root", root, "--gpu", "1", "--all")
	ok(t, "fault", "--root", root, "--clear")
	if got := status(t, root).GPUs[4].StateText(); got != "ok" {
		t.Errorf("after clearing, GPU 4 is %q", got)
	}
	ok(t, "reset", "--root", root, "--gpu", "1")
	ok(t, "driver", "unload", "--root", root)
	if !status(t, root).Unloaded {
		t.Error("the driver is still there")
	}
	ok(t, "driver", "load", "--root", root)
	before := status(t, root).BootID
	ok(t, "reboot", "--root", root)
	after := status(t, root)
	if after.BootID == before || len(after.Faults) > 0 || after.GPUs[3].Lost || after.GPUs[1].MIG {
		t.Errorf("after a reboot: %+v", after)
	}
	ok(t, "remove", "--root", root)
}

// smiOutput runs nvidia-smi on a node.
func smiOutput(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	t.Setenv("NVML_SIM_ROOT", root)
	var out bytes.Buffer
	stdout = &out
	defer func() { stdout = os.Stdout }()
	err := runSMI(args)
	return out.String(), err
}

func TestSMI_Queries(t *testing.T) {
	root := makeNode(t, "hgx-h100")
	ok(t, "mig", "mode", "--root", root, "--gpu", "2", "on")
	ok(t, "mig", "create", "--root", root, "--gpu", "2", "--profile", "1g.10gb")
	ok(t, "fault", "--root", root, "--gpu", "7", "--lost")
	uuid := status(t, root).GPUs[4].UUID
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"-L"}, "GPU 4: NVIDIA H100 80GB HBM3 (UUID: " + uuid + ")"},
		{[]string{"-L"}, "  MIG 1g.10gb      Device  0: (UUID: MIG-"},
		{[]string{"-L"}, "GPU7: 0000:df:00.0: GPU is lost"},
		{nil, "Driver Version: 580.95.05   CUDA Version: 13.0"},
		{nil, "0000:52:00.0         0/81559MiB     on |"},
		{[]string{"-i", uuid, "-c", "EXCLUSIVE_PROCESS"}, "Set compute mode to EXCLUSIVE_PROCESS for GPU 4."},
		{[]string{"compute-policy", "-i", "0000:1b:00.0", "--set-timeslice", "2"}, "Successfully set timeslice to MEDIUM for GPU 0."},
		{[]string{"compute-policy", "-i", "0", "-l"}, "GPU 0: timeslice MEDIUM"},
	}
	for _, tt := range tests {
		out, err := smiOutput(t, root, tt.args...)
		if err != nil || !strings.Contains(out, tt.want) {
			t.Errorf("nvidia-smi %s: %v, want %q in:\n%s", strings.Join(tt.args, " "), err, tt.want, out)
		}
	}
	g := status(t, root).GPUs
	if g[4].ComputeMode != 3 || g[0].TimeSlice != 2 {
		t.Errorf("compute mode %d, time slice %d", g[4].ComputeMode, g[0].TimeSlice)
	}
	for _, args := range [][]string{{"--foo"}, {"-c", "FASTER"}, {"compute-policy", "--set-timeslice", "9"}} {
		if _, err := smiOutput(t, root, args...); codeOf(err) != exitUsage {
			t.Errorf("nvidia-smi %s = %v", strings.Join(args, " "), err)
		}
	}
	if _, err := smiOutput(t, root, "-i", "9", "-L"); codeOf(err) != sim.CodeNotFound {
		t.Errorf("nvidia-smi -i 9 = %v", err)
	}
	if _, err := smiOutput(t, root, "-i", "2", "-c", "0"); codeOf(err) != sim.CodeNotSupported {
		t.Errorf("nvidia-smi -c on a GPU in MIG mode = %v", err)
	}
	if _, err := smiOutput(t, t.TempDir()); codeOf(err) != sim.CodeDriverNotLoaded {
		t.Errorf("nvidia-smi without a node = %v", err)
	}
}
