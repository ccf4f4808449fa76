// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// Output in the form of the MIG user guide, NVIDIA/gpu-operator#118 and NVIDIA/NVSentinel#1690; exit codes are NVML's.
func TestSMI_MIG(t *testing.T) {
	root := makeNode(t, "a30")
	steps := []struct {
		args string
		want string
		code int
	}{
		{"mig -lgi", "No MIG-enabled devices found.", sim.CodeNotFound},
		{"-i 0 -mig 1", "Enabled MIG Mode for GPU 00000000:3B:00.0\nAll done.\n", 0},
		{"mig -i 0 -lgip", "|   0  MIG 1g.6gb        14     4/4        5.81       No     14     1     0   |", 0},
		{"mig -i 0 -lgipp", "GPU  0 Profile ID 14 Placements: {0,1,2,3}:1\n", 0},
		{"mig -i 0 -lgipp", "GPU  0 Profile ID  0 Placement : {0}:4\n", 0},
		{"mig -lgi", "No GPU instances found: Not Found\n", sim.CodeNotFound},
		{"mig -cgi 14,2g.12gb:2 -C", "Successfully created GPU instance ID  2 on GPU  0 using profile MIG 2g.12gb (ID  5)\n" +
			"Successfully created compute instance ID  0 on GPU  0 GPU instance ID  2 using profile MIG 2g.12gb (ID  1)\n", 0},
		{"mig -cgi 0", "Failed to create GPU instances: Insufficient Resources\n", sim.CodeInsufficientResources},
		{"mig -cgi nonsense", "", exitUsage},
		{"mig -lgi", "|   0  MIG 2g.12gb       5        2          2:2     |\n", 0},
		{"mig -lci", "|   0      2       MIG 2g.12gb          1         0          0:2     |\n", 0},
		{"-i 0 -mig 0", "Warning: MIG mode is in pending disable state for GPU 00000000:3B:00.0:In use by another client\n", 0},
		{"mig -dgi -gi 2", "Failed to destroy GPU instances: In use by another client\n", sim.CodeInUse},
		{"mig -dci -gi 2 -ci 0", "Successfully destroyed compute instance ID  0 from GPU  0 GPU instance ID  2\n", 0},
		{"mig -dgi -gi 2", "Successfully destroyed GPU instance ID  2 from GPU  0\n", 0},
		{"-i 0 -r", "GPU 00000000:3B:00.0 was successfully reset.\n", 0},
		{"--query-gpu=index,mig.mode.current,memory.total,utilization.gpu --format=csv",
			"index, mig.mode.current, memory.total [MiB], utilization.gpu [%]\n0, Disabled, 24576 MiB, 0 %\n", 0},
		{"--query-gpu=memory.total,clocks.max.sm --format=csv,noheader,nounits", "24576, 1440\n24576, 1440\n", 0},
		{"--query-gpu=nonsense --format=csv", "", exitUsage},
		{"--query-gpu=index", "", exitUsage},
		{"-i 1 -pm 1", "Enabled persistence mode for GPU 00000000:D8:00.0.\nAll done.\n", 0},
		{"-i 1 -r", "The following GPUs could not be reset:\n  GPU 00000000:D8:00.0: In use by another client\n\n1 device is", smiOtherError},
		{"topo -m", "GPU1\tSYS\t X ", 0},
		{"--version", "DRIVER version      : 580.95.05\n", 0},
	}
	for _, step := range steps {
		out, err := smiOutput(t, root, strings.Fields(step.args)...)
		if code := codeOf(err); code != step.code || !strings.Contains(out, step.want) {
			t.Errorf("nvidia-smi %s: exit code %d (%v), want %d and %q in:\n%s", step.args, code, err, step.code, step.want, out)
		}
	}
}

func TestSMI_TopologyNVSwitch(t *testing.T) {
	root := makeNode(t, "hgx-h100")
	out, err := smiOutput(t, root, "topo", "-m")
	if err != nil || !strings.Contains(out, "GPU0\t X \tNV18\tNV18") {
		t.Errorf("topo -m: %v\n%s", err, out)
	}
}

func TestSMI_DetailsXML(t *testing.T) {
	root := makeNode(t, "hgx-h100")
	ok(t, "client", "add", "--root", root, "--gpu", "0", "--pid", "71", "--name", "a<b", "--memory", "64")
	out, err := smiOutput(t, root, "-q", "-x", "-i", "0")
	if err != nil {
		t.Fatal(err)
	}
	type log struct {
		GPUs []struct {
			ID      string `xml:"id,attr"`
			Product string `xml:"product_name"`
			MIG     string `xml:"mig_mode>current_mig"`
			Memory  string `xml:"fb_memory_usage>total"`
			Process string `xml:"processes>process_info>process_name"`
		} `xml:"gpu"`
	}
	var got, want log
	if err := xml.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	want.GPUs = append(want.GPUs, got.GPUs[0])
	want.GPUs[0].ID, want.GPUs[0].Product, want.GPUs[0].MIG = "00000000:1B:00.0", "NVIDIA H100 80GB HBM3", "Disabled"
	want.GPUs[0].Memory, want.GPUs[0].Process = "81559 MiB", "a<b"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-q -x (-want +got):\n%s", diff)
	}
}

// The steps of docs/troubleshooting.md switch an A30, with a plugin that has the GPUs open until the node's label makes it release the
// driver. Those steps without the label do not.
func TestSMI_DocumentedStepsForA30(t *testing.T) {
	doc, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "### MIG mode by hand")
	_, section, _ = strings.Cut(section, "```\n")
	block, _, found := strings.Cut(section, "```")
	if !found {
		t.Fatal("docs/troubleshooting.md has no steps")
	}
	for name, skip := range map[string]string{"as documented": "", "without the label": "release-driver=true"} {
		t.Run(name, func(t *testing.T) {
			root := makeNode(t, "a30")
			plugin, err := sim.Open(root)
			if err != nil {
				t.Fatal(err)
			}
			open := func() {
				if _, err := plugin.Device(0).UUID(); err != nil {
					t.Fatal(err)
				}
			}
			if err := plugin.Init(); err != nil {
				t.Fatal(err)
			}
			open()
			for line := range strings.Lines(block) {
				command, _, _ := strings.Cut(line, "#")
				words := strings.Fields(command)
				switch {
				case len(words) == 0 || skip != "" && strings.Contains(command, skip):
				case strings.Contains(command, "release-driver=true"):
					err = plugin.Shutdown()
				case words[0] == "nvidia-smi":
					_, err = smiOutput(t, root, words[1:]...)
				}
				if err != nil {
					t.Errorf("%s: %v", command, err)
				}
			}
			g := status(t, root).GPUs[0]
			if g.MIG != (skip == "") {
				t.Errorf("after the steps, MIG mode is %s", g.MIGText())
			}
		})
	}
}
