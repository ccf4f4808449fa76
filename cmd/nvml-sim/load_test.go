// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/sim"
)

func TestLoad(t *testing.T) {
	root := makeNode(t, "hgx-h100")
	clients := func() []sim.Client {
		t.Helper()
		n, err := sim.Open(root)
		if err != nil {
			t.Fatal(err)
		}
		st, err := n.Status()
		if err != nil {
			t.Fatal(err)
		}
		return st.GPUs[0].Clients
	}
	want := sim.Client{PID: 4711, Name: "python", Memory: 6 << 30, GPUInstance: -1, ComputeInstance: -1, Load: &sim.Load{SM: 40, DRAM: 10}}
	ok(t, "load", "--root", root, "--pid", "4711", "--sm", "40", "--dram", "10", "--memory", "6Gi")
	if diff := cmp.Diff([]sim.Client{want}, clients()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	ok(t, "load", "--root", root, "--pid", "4711")
	want.Load = &sim.Load{}
	if diff := cmp.Diff([]sim.Client{want}, clients()); diff != "" {
		t.Errorf("idle (-want +got):\n%s", diff)
	}
	for args, says := range map[string]string{
		"--sm 101": "0 to 100", "--memory 6X": "6X", "--gpu 9": "no GPU 9", "--pid 1 --gi 3 --ci 0": "no GPU instance 3",
	} {
		if out, code := run(t, append([]string{"load", "--root", root, "--pid", "4712"}, strings.Fields(args)...)...); code == 0 || !strings.Contains(out, says) {
			t.Errorf("load %s: code %d, %q does not say %q", args, code, out, says)
		}
	}
}
