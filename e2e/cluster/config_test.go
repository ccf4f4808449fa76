// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cleave-dra/cleave/pkg/golden"
)

// testState is a machine with everything this package adapts to.
func testState() state {
	return state{
		Version: "1.37.2", BinDir: "/src/bin/kubernetes", NodeName: "node-a",
		FeatureGates: map[string]bool{"B": false, "A": true},
		Runtime:      []string{"resource.k8s.io/v1beta2=true"},
		Ports:        ports{6443, 1001, 1002, 1003, 1004, 1005, 1006},
		Host:         host{CgroupV1: true, PodGroups: true, RestrictOOMScore: true, Busybox: "/bin/busybox", CNI: "/usr/lib/cni"},
	}
}

func TestConfiguration_Golden(t *testing.T) {
	l, s := layout{"/var/lib/cleave-cluster"}, testState()
	asJSON := func(v any) string {
		data, err := json.MarshalIndent(v, "", "  ")
		must(t, err)
		return string(data) + "\n"
	}
	var commands strings.Builder
	for _, c := range Components() {
		path, args, err := command(l, s, s.machines()[0], c)
		must(t, err)
		commands.WriteString(path + "\n  " + strings.Join(args, "\n  ") + "\n")
	}
	for name, got := range map[string]string{
		"commands.txt":    commands.String(),
		"containerd.toml": containerdConfiguration(l, s),
		"kubelet.json":    asJSON(kubeletConfiguration(l, s, s.machines()[0])),
		"network.json":    asJSON(networkConfiguration(l, s.machines()[0])),
	} {
		golden.Check(t, filepath.Join("testdata", name), got)
	}
}

func TestConfiguration_NRI(t *testing.T) {
	l, s := layout{"/var/lib/cleave-x"}, testState()
	s.NRI = true
	got := containerdConfiguration(l, s)
	if socket := "\n  socket_path = \"/var/lib/cleave-x/run/nri/nri.sock\"\n"; !strings.Contains(got, socket) || strings.Contains(got, "[\"io.containerd.nri") {
		t.Errorf("NRI is not served:\n%s", got)
	}
}

// Nodes differ in name, addresses and where this program finds their files, and in nothing that the chart configures.
func TestConfiguration_SeveralNodes(t *testing.T) {
	l, s := layout{t.TempDir()}, testState()
	s.Nodes = 3
	var got []string
	for _, m := range s.machines() {
		files := l.layoutOf(m)
		must(t, makeDirectories(files.nodeDirectories()))
		must(t, writeNodeConfiguration(l, s, m))
		kubelet := kubeletConfiguration(l, s, m)
		network, err := json.Marshal(networkConfiguration(l, m)["plugins"])
		must(t, err)
		if !strings.Contains(string(network), m.pods) || kubelet["address"] != m.address || kubelet["tlsCertFile"] != l.pki("kubelet.crt") {
			t.Errorf("node %s: network %s, kubelet %v", m.name, network, kubelet)
		}
		for _, path := range []string{files.kubeletConfig(), files.containerdConfig()} {
			data, err := os.ReadFile(path)
			must(t, err)
			if strings.Contains(string(data), files.dir) {
				t.Errorf("%s has a path that the node does not have: %s", path, data)
			}
		}
		got = append(got, m.name+" "+m.address+" "+m.pods)
	}
	want := []string{"node-a-1 10.87.0.2 10.86.1.0/24", "node-a-2 10.87.0.3 10.86.2.0/24", "node-a-3 10.87.0.4 10.86.3.0/24"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	must(t, errors.Join(makeDirectories(l.directories()), writePKI(l, s)))
	config, err := clientcmd.LoadFromFile(l.layoutOf(s.machines()[1]).componentConfig(Kubelet))
	must(t, err)
	if user, server := config.Contexts[config.CurrentContext].AuthInfo, config.Clusters["cleave"].Server; user != "system:node:node-a-2" ||
		server != "https://10.87.0.1:6443" {
		t.Errorf("the second kubelet is %s at %s", user, server)
	}
	// Names of network devices.
	if link := l.links() + "9"; len(l.bridge()) > 15 || len(link) > 15 {
		t.Errorf("%s or %s has more than 15 bytes", l.bridge(), link)
	}
}

func TestCommand_UnknownComponent(t *testing.T) {
	_, _, err := command(layout{"/x/y"}, testState(), machine{}, "kube-proxy")
	if err == nil || !strings.Contains(err.Error(), "kube-controller-manager") {
		t.Errorf("the error should list the components, got: %v", err)
	}
}

func TestConfiguration_PathsBelowDir(t *testing.T) {
	l, s := layout{"/var/lib/other"}, testState()
	text := containerdConfiguration(l, s)
	for _, c := range Components() {
		_, args, err := command(l, s, s.machines()[0], c)
		must(t, err)
		text += strings.Join(args, "\n")
	}
	if strings.Contains(text, "/var/lib/kubelet") || strings.Contains(text, DefaultDir) || strings.Contains(text, "0.0.0.0") {
		t.Errorf("a component uses a directory or an address that is not the cluster's:\n%s", text)
	}
	if longest := l.path("s"); len(strings.Repeat("d", maxDirLen)+strings.TrimPrefix(longest, l.dir)) > 38 {
		t.Errorf("maxDirLen %d leaves no room for containerd's shim sockets", maxDirLen)
	}
	for _, directory := range slices.Concat(l.directories(), l.nodeDirectories()) {
		top, _, _ := strings.Cut(strings.TrimPrefix(directory, l.dir+"/"), "/")
		if !slices.Contains(entries, top) {
			t.Errorf("Up makes %s, which Down would refuse to remove", directory)
		}
	}
}

func TestState_RoundTrip(t *testing.T) {
	l := layout{t.TempDir()}
	must(t, writeState(l, testState()))
	got, err := readState(l)
	must(t, err)
	if diff := cmp.Diff(testState(), got); diff != "" {
		t.Errorf("state changed on the way (-want +got):\n%s", diff)
	}
}

func TestPKI_KubeconfigsAndKeys(t *testing.T) {
	l, s := layout{t.TempDir()}, testState()
	must(t, os.MkdirAll(l.path("pki"), 0o700))
	must(t, writePKI(l, s))
	users := map[string]string{
		l.kubeconfig():                       "cleave-admin",
		l.componentConfig(Kubelet):           "system:node:node-a",
		l.componentConfig(Scheduler):         "system:kube-scheduler",
		l.componentConfig(ControllerManager): "system:kube-controller-manager",
	}
	for path, want := range users {
		config, err := clientcmd.LoadFromFile(path)
		must(t, err)
		if got := config.Contexts[config.CurrentContext].AuthInfo; got != want {
			t.Errorf("%s is for %s, want %s", path, got, want)
		}
		if got := config.Clusters["cleave"].Server; got != "https://127.0.0.1:6443" {
			t.Errorf("%s points to %s", path, got)
		}
	}
	err := filepath.Walk(l.dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", path, info.Mode())
		}
		return err
	})
	must(t, err)
}
