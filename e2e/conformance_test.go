// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"

	nvidia "github.com/cleave-dra/cleave/api/nvidia/v1beta1"
	"github.com/cleave-dra/cleave/e2e/cluster"
	conformance "github.com/cleave-dra/cleave/e2e/conformance/suite"
	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/process"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// testDriver is the name of the DRA driver with which Kubernetes tests itself.
const testDriver = "test-driver.cdi.k8s.io"

// suiteRun is a test that runs the behaviour suite of e2e/conformance.
type suiteRun struct{ *space }

// compare runs the behaviour suite against a driver on the cluster's node and compares its results with a column of the
// table in e2e/conformance/README.md.
func (s suiteRun) compare(ctx context.Context, column int, config conformance.Config) {
	s.Helper()
	config.Client, config.Node, config.Namespace = env.kube, env.cluster.NodeName(), s.name+"-suite"
	config.RegistryDir, config.CDIDirs = env.cluster.RegistryDir(), []string{env.cluster.CDIDir()}
	config.Timeout, config.SettleTimeout = 2*time.Minute, 30*time.Second
	report, err := conformance.Run(ctx, config)
	s.must(err)
	var table bytes.Buffer
	s.must(report.WriteTable(&table))
	s.Log("\n" + table.String())
	got := map[string]string{}
	for _, c := range report.Cases {
		got[c.Name] = string(c.Result)
		if c.Seconds > 4 {
			s.Logf("%s took %.1f s", c.Name, c.Seconds)
		}
	}
	if diff := cmp.Diff(s.documented(column), got); diff != "" {
		s.Errorf("results (-README.md +now):\n%s", diff)
	}
}

// documented are the results in a column of README.md.
func (s suiteRun) documented(column int) map[string]string {
	s.Helper()
	data, err := os.ReadFile(filepath.Join(env.source, "e2e", "conformance", "README.md"))
	s.must(err)
	results := map[string]string{}
	name := regexp.MustCompile("^`([a-z]+/[a-z-]+)`$")
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if match := name.FindStringSubmatch(strings.TrimPrefix(cells[0], "| ")); match != nil && len(cells) > column {
			results[match[1]] = strings.Fields(strings.Trim(cells[column], " |"))[0]
		}
	}
	return results
}

// ofNode are the parts of the suite that need Cleave's process or its hardware.
func (s suiteRun) ofNode(n *node.Node, driver string, classes ...string) conformance.Config {
	return conformance.Config{
		Driver: driver, Classes: classes,
		Restart: func(ctx context.Context) error { return errors.Join(n.Kill(), n.Start(ctx), n.WaitReady(ctx)) },
		Damage: func(ctx context.Context, _, device string) error {
			_, err := n.Sim(ctx, "fault", "--gpu", s.gpuIndex(ctx, driver, device), "--recovery", "1")
			return err
		},
		Repair: func(ctx context.Context, _, device string) error {
			_, err := n.Sim(ctx, "fault", "--gpu", s.gpuIndex(ctx, driver, device), "--clear")
			return err
		},
	}
}

func (s suiteRun) gpuIndex(ctx context.Context, driver, device string) string {
	s.Helper()
	list, err := env.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + driver})
	s.must(err)
	for _, slice := range list.Items {
		for _, d := range slice.Spec.Devices {
			if d.Name == device {
				return fmt.Sprint(*d.Attributes["index"].IntValue)
			}
		}
	}
	s.Fatalf("device %s is not published", device)
	return ""
}

func TestConformance_Native(t *testing.T) {
	ctx, s := newSpace(t)
	s.hardware.recoverAfter(ctx)
	suiteRun{s}.compare(ctx, 3, suiteRun{s}.ofNode(env.node, workload.Driver, workload.Driver, "timeslice.cleave.dev"))
	s.plugin.waitRecords(ctx, env.node)
}

// TestConformance_Program runs the suite as others do: the program, with an administrator's access and flags alone.
func TestConformance_Program(t *testing.T) {
	program := filepath.Join(t.TempDir(), "dra-conformance")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "./e2e/conformance")
	build.Dir = env.source
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build e2e/conformance: %v: %s", err, out)
	}
	ctx, s := newSpace(t)
	subjects := "^(registration|prepare|unprepare|shares)/"
	cmd := exec.CommandContext(ctx, program, "--kubeconfig", env.cluster.Kubeconfig(), "--driver", workload.Driver, "--node", env.cluster.NodeName(),
		"--class", workload.Driver, "--class", "timeslice.cleave.dev", "--namespace", s.name+"-suite", "--registry-dir", env.cluster.RegistryDir(),
		"--cdi-dir", env.cluster.CDIDir(), "--run", subjects, "--output", "json")
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the program: %v: %s%s", err, log.String(), out)
	}
	var report conformance.Report
	s.must(json.Unmarshal(out, &report))
	got := map[string]string{}
	for _, c := range report.Cases {
		got[c.Name] = string(c.Result)
	}
	want := suiteRun{s}.documented(3)
	maps.DeleteFunc(want, func(name, _ string) bool { return !regexp.MustCompile(subjects).MatchString(name) })
	if diff := cmp.Diff(want, got); diff != "" || len(got) == 0 {
		t.Errorf("results (-README.md +now):\n%s", diff)
	}
	s.plugin.waitRecords(ctx, env.node)
}

func TestConformance_Compatible(t *testing.T) {
	ctx, s := newSpace(t)
	n := s.startCompatible(ctx)
	suiteRun{s}.compare(ctx, 4, suiteRun{s}.ofNode(n, nvidia.DriverName, "gpu.nvidia.com"))
	s.cleared(ctx, n)
}

func TestConformance_KubernetesTestDriver(t *testing.T) {
	// Built once, for as long as that takes: newSpace begins the time of the test.
	path, err := cluster.BuildDRATestDriver(t.Context(), cluster.Options{Source: env.source, Dir: clusterDir, Output: os.Stdout})
	if err != nil {
		t.Fatal(err)
	}
	_, s := newSpace(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*timeout) // cases wait for what this driver does not do
	t.Cleanup(cancel)
	var running *process.Program
	start := func() error {
		// Bound to no context, as it is ended by its own.
		cmd := exec.Command(path, "kubelet-plugin", "--drivername", testDriver, "--node-name", env.cluster.NodeName(), //nolint:noctx // see above
			"--kubeconfig", env.cluster.Kubeconfig(), "--datadir", env.cluster.PluginsDir(), "--plugin-registration-path", env.cluster.RegistryDir(),
			"--cdi-dir", env.cluster.CDIDir(), "--num-devices", "10")
		without := func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") } // which it prefers to the flag
		cmd.Env = append(slices.DeleteFunc(os.Environ(), without), env.cluster.Environment()...)
		running, err = process.Start(cmd, filepath.Join(t.TempDir(), "test-driver.log"))
		return err
	}
	s.must(os.MkdirAll(filepath.Join(env.cluster.PluginsDir(), testDriver), 0o750)) // which it expects
	s.must(start())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of the test driver ends with:\n%s", running.LogTail(40))
		}
		s.must(running.End(syscall.SIGTERM))
		// The kubelet does the same half a minute later.
		ctx := context.WithoutCancel(ctx)
		s.must(env.kube.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.driver=" + testDriver}))
		s.must(env.kube.ResourceV1().DeviceClasses().Delete(ctx, testDriver, metav1.DeleteOptions{}))
		s.must(os.RemoveAll(filepath.Join(env.cluster.PluginsDir(), testDriver)))
		left, err := filepath.Glob(filepath.Join(env.cluster.CDIDir(), testDriver+"*"))
		s.must(err)
		for _, file := range left { // it forgets claims when it restarts: restart/unprepare
			s.must(os.Remove(file))
		}
	})
	_, err = env.kube.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: testDriver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{
			CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", testDriver)},
		}}},
	}, metav1.CreateOptions{})
	s.must(err)
	s.must(env.client.WaitSlices(ctx, testDriver, nil))
	suiteRun{s}.compare(ctx, 5, conformance.Config{
		Driver: testDriver, Classes: []string{testDriver},
		Restart: func(context.Context) error { return errors.Join(running.End(syscall.SIGKILL), start()) },
	})
}
