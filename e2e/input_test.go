// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"
)

// runProgram runs cleave or cleave-node to its end, with an empty environment.
func runProgram(ctx context.Context, t *testing.T, program string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(programsDir, program), args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &out, &errOut, []string{}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errOut.String()
}

func TestCommandLine_Errors(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	broken := t.TempDir()
	library := filepath.Join(broken, "usr/lib64/libnvidia-ml.so.1")
	if err := errors.Join(os.MkdirAll(filepath.Dir(library), 0o755), os.WriteFile(library, []byte("not a library"), 0o755)); err != nil {
		t.Fatal(err)
	}
	plugin := func(args ...string) []string {
		return append([]string{"kubelet-plugin", "--node-name", "n", "--kubeconfig", env.cluster.Kubeconfig(), "--metrics-address", ""}, args...)
	}
	for _, test := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"slice"}, 2, []string{`"slice"`, "did you mean slices"}},
		{plugin("--cdi-dir", "cdi"), 2, []string{"--cdi-dir", `"cdi"`, "absolute"}},
		{plugin("--driver-name", "GPU!"), 2, []string{"--driver-name", "GPU!"}},
		{[]string{"kubelet-plugin", "--node-name", "n", "--kubeconfig", "/no/such/file"}, 1, []string{"--kubeconfig", "/no/such/file"}},
		{[]string{"slices", "--driver-root", broken}, 1, []string{library}},
		{[]string{"slices", "--nvml-library", "/no/such/library"}, 1, []string{"--nvml-library", "/no/such/library"}},
	} {
		program := "cleave"
		if len(test.args) > 0 && test.args[0] == "kubelet-plugin" {
			program = "cleave-node"
		}
		code, stdout, stderr := runProgram(ctx, t, program, test.args...)
		name := program + " " + strings.Join(test.args, " ")
		if code != test.code || stdout != "" {
			t.Errorf("%s: exit status %d, want %d; it prints %q and %q", name, code, test.code, stdout, stderr)
		}
		for _, part := range test.says {
			if !strings.Contains(stderr, part) {
				t.Errorf("%s: the error %q does not say %q", name, stderr, part)
			}
		}
		lines := strings.Count(stderr, "\n")
		if want := 1 + test.code/2; lines != want { // wrong use is followed by where to find help
			t.Errorf("%s: the error has %d lines, want %d:\n%s", name, lines, want, stderr)
		}
	}
}

func TestSlices_PrintedArePublished(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	const name = "offline-node"
	_, err := env.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: true}}, metav1.CreateOptions{})
	s.must(err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		s.must(env.kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
		s.must(env.kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.nodeName=" + name}))
	})
	code, printed, stderr := runProgram(ctx, t, "cleave", "slices", "--node-model", model, "--node-name", name, "-o", "json")
	if code != 0 || stderr != "" {
		t.Fatalf("cleave slices: exit status %d, %s", code, stderr)
	}
	_, asYAML, _ := runProgram(ctx, t, "cleave", "slices", "--node-model", model, "--node-name", name, "-o", "yaml")
	for _, form := range []string{printed, asYAML} {
		cmd := exec.CommandContext(ctx, env.cluster.Kubectl(), "--kubeconfig", env.cluster.Kubeconfig(), "apply", "--validate=strict", "-f", "-")
		cmd.Stdin = strings.NewReader(form)
		if out, err := cmd.CombinedOutput(); err != nil || bytes.Contains(out, []byte("Warning")) {
			t.Fatalf("kubectl apply: %v\n%s", err, out)
		}
	}
	var list resourceapi.ResourceSliceList
	s.must(json.Unmarshal([]byte(printed), &list))
	applied := s.published.slices(ctx, name)
	if diff := cmp.Diff(specs(list.Items), specs(applied)); diff != "" {
		t.Errorf("slices (-printed +kept by the API server):\n%s", diff)
	}
	// The order of what is published depends on what other tests hold meanwhile.
	s.eventually(ctx, "the plugin to publish what was printed", func(ctx context.Context) (bool, string, error) {
		diff := cmp.Diff(specs(list.Items), specs(s.published.slices(ctx, env.cluster.NodeName())))
		return diff == "", "slices (-printed +published by the plugin):\n" + diff, nil
	})
}

// specs of slices without what differs from node to node and from time to time.
func specs(list []resourceapi.ResourceSlice) []resourceapi.ResourceSliceSpec {
	var all []resourceapi.ResourceSliceSpec
	for _, s := range list {
		spec := s.Spec.DeepCopy()
		spec.NodeName, spec.Pool.Name, spec.Pool.Generation = nil, "", 0
		all = append(all, *spec)
	}
	return all
}
