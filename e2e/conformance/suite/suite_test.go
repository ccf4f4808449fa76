// SPDX-License-Identifier: Apache-2.0

package suite_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/conformance/fakedriver"
	"github.com/cleave-dra/cleave/e2e/conformance/suite"
)

// bed is a driver with an API server, and the suite's view of both.
type bed struct {
	*fakedriver.Driver
	t      *testing.T
	client kubernetes.Interface
	config suite.Config
}

func start(t *testing.T, faults []fakedriver.Fault, without []fakedriver.Feature) *bed {
	t.Helper()
	dir, err := os.MkdirTemp("", "c") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	client := fakedriver.NewAPIServer()
	d := fakedriver.New(dir, client, faults, without)
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &bed{Driver: d, t: t, client: client, config: suite.Config{
		Client: client, Driver: fakedriver.Name, Node: fakedriver.Node, Classes: []string{fakedriver.Class}, Namespace: "dra-conformance",
		RegistryDir: d.RegistryDir(), CDIDirs: []string{d.CDIDir()}, Restart: d.Restart, Damage: d.Damage, Repair: d.Repair,
		Timeout: 20 * time.Second, SettleTimeout: 10 * time.Second,
	}}
}

// run runs the suite, which has to trust its report.
func (b *bed) run() *suite.Report {
	b.t.Helper()
	report, err := suite.Run(b.t.Context(), b.config)
	if err != nil {
		b.t.Fatal(err)
	}
	return report
}

// nothingLeft checks that neither the API server nor the driver has anything of the suite.
func (b *bed) nothingLeft() {
	b.t.Helper()
	claims, err := b.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(b.t.Context(), metav1.ListOptions{})
	if err != nil || len(claims.Items) > 0 {
		b.t.Errorf("claims are left: %v, %v", claims, err)
	}
	namespaces, err := b.client.CoreV1().Namespaces().List(b.t.Context(), metav1.ListOptions{})
	if err != nil || len(namespaces.Items) > 0 {
		b.t.Errorf("namespaces are left: %v, %v", namespaces, err)
	}
	if n := b.Prepared(); n > 0 {
		b.t.Errorf("%d claims are still prepared", n)
	}
	if files, err := filepath.Glob(filepath.Join(b.CDIDir(), "*")); err != nil || len(files) > 0 {
		b.t.Errorf("CDI specs are left: %q, %v", files, err)
	}
}

func results(report *suite.Report) map[string]suite.Result {
	all := map[string]suite.Result{}
	for _, c := range report.Cases {
		all[c.Name] = c.Result
	}
	return all
}

func TestRun_SoundDriver(t *testing.T) {
	for name, without := range map[string][]fakedriver.Feature{"all services": nil, "v1beta1 only": {fakedriver.V1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, nil, without)
			report := b.run()
			for _, c := range report.Cases {
				if c.Result != suite.Pass || c.Reason == "" {
					t.Errorf("%s: %s: %q", c.Name, c.Result, c.Reason)
				}
			}
			if len(report.Cases) != len(suite.Cases()) || report.Passed != len(report.Cases) || report.Failed+report.Skipped != 0 {
				t.Errorf("%d cases, %d passed, %d failed, %d skipped", len(report.Cases), report.Passed, report.Failed, report.Skipped)
			}
			b.nothingLeft()
		})
	}
}

// What a driver does not offer, and what the suite was not given, is skipped, and never passes.
func TestRun_NotOffered(t *testing.T) {
	t.Parallel()
	b := start(t, nil, []fakedriver.Feature{fakedriver.Health, fakedriver.Status, fakedriver.Metadata, fakedriver.Shares, fakedriver.Counters,
		fakedriver.Taints, fakedriver.CDI})
	b.config.Restart, b.config.Damage, b.config.Repair, b.config.SettleTimeout = nil, nil, nil, 300*time.Millisecond
	b.config.RegistryDir, b.config.Socket = "", b.Socket()
	want := map[string]suite.Result{}
	skips := regexp.MustCompile(`^(registration|restart|shares|health|status|metadata)/|^taints/(published|damaged)|^slices/counters|/cdi$|^unprepare/undone`)
	for _, c := range suite.Cases() {
		want[c.Name] = suite.Pass
		if skips.MatchString(c.Name) {
			want[c.Name] = suite.Skip
		}
	}
	report := b.run()
	if diff := cmp.Diff(want, results(report)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	b.nothingLeft()

	b.config.CDIDirs = nil
	b.config.Only = regexp.MustCompile(`/cdi$|undone|^metadata/`)
	for _, c := range b.run().Cases {
		if c.Result != suite.Skip || !strings.Contains(c.Reason, "was given no directory of CDI specs") {
			t.Errorf("%s without CDI directories: %s: %s", c.Name, c.Result, c.Reason)
		}
	}
}

// A full node is no failure of the driver.
func TestRun_NothingFree(t *testing.T) {
	t.Parallel()
	b := start(t, nil, []fakedriver.Feature{fakedriver.Shares, fakedriver.Counters})
	allocate(t, b.client, "device-0", "device-1", "device-2", "device-3", "device-4", "device-5", "device-6", "device-7", "device-8", "device-9")
	passes := regexp.MustCompile(`^(registration|slices)/|^health/(report|complete|again)$|^taints/published$`)
	for _, c := range b.run().Cases {
		want := suite.Skip
		if passes.MatchString(c.Name) && c.Name != "slices/counters" {
			want = suite.Pass
		}
		if c.Result != want {
			t.Errorf("%s: %s, want %s: %s", c.Name, c.Result, want, c.Reason)
		}
	}
}

// allocate makes another client's claim.
func allocate(t *testing.T, client kubernetes.Interface, devices ...string) {
	t.Helper()
	allocation := &resourceapi.AllocationResult{}
	for _, d := range devices {
		allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "device", Driver: fakedriver.Name, Pool: fakedriver.Node, Device: d,
		})
	}
	_, err := client.ResourceV1().ResourceClaims("others").Create(t.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "others"}, Status: resourceapi.ResourceClaimStatus{Allocation: allocation},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// What a run left that was killed is released and removed by the next one.
func TestRun_AfterKilledRun(t *testing.T) {
	t.Parallel()
	b := start(t, nil, nil)
	killed := errors.New("killed")
	func() {
		defer func() {
			if err, _ := recover().(error); !errors.Is(err, killed) {
				t.Fatalf("got %v, want the panic of the test", err)
			}
		}()
		b.config.Damage = func(context.Context, string, string) error { panic(killed) }
		b.config.Only = regexp.MustCompile("taints/damaged")
		b.run()
	}()
	if b.Prepared() != 1 {
		t.Fatalf("%d claims are prepared after the run was killed, want 1", b.Prepared())
	}
	b.config.Only = regexp.MustCompile("prepare/devices")
	if report := b.run(); report.Passed != 1 {
		t.Errorf("the next run: %+v", report)
	}
	b.nothingLeft()
}

func TestRun_Interrupted(t *testing.T) {
	t.Parallel()
	b := start(t, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	b.config.Restart = func(context.Context) error { cancel(); return ctx.Err() }
	report, err := suite.Run(ctx, b.config)
	if !errors.Is(err, context.Canceled) || report == nil || len(report.Cases) == len(suite.Cases()) {
		t.Errorf("got %v, %v", report, err)
	}
	b.nothingLeft()
}

func TestRun_CannotBegin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*bed)
		want   string
	}{
		"no node":  {func(b *bed) { b.config.Node = "node-2" }, "read node node-2"},
		"no class": {func(b *bed) { b.config.Classes = []string{"other"} }, "find DeviceClass other: there is none"},
		"no name":  {func(b *bed) { b.config.Classes = nil }, "no DeviceClass is given"},
		"namespace of others": {func(b *bed) {
			_, err := b.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{Name: b.config.Namespace},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}, "it exists and is not the suite's"},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil, nil)
			c.change(b)
			if report, err := suite.Run(t.Context(), b.config); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, %v, want %q", report, err, c.want)
			}
			if namespaces, err := b.client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil ||
				len(namespaces.Items) != map[bool]int{true: 1}[name == "namespace of others"] {
				t.Errorf("namespaces: %v, %v", namespaces, err)
			}
		})
	}
}
