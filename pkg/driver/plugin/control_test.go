// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/sim/simulated"
)

// controlBed is a plugin on a simulated node, with a fake API server.
type controlBed struct {
	*service
	t      *testing.T
	client *fake.Clientset
	// asks has the plugin ask at the start what the cluster counts; else it counts all.
	asks bool
}

func newControlBed(t *testing.T) *controlBed {
	t.Helper()
	config, dir := shortConfig(t)
	config.Procfs, config.Sysfs, config.DriverRoot, config.CgroupRoot = filepath.Join(dir, "proc"), dir, dir, dir
	config.NVMLLibrary, config.PolicyFile = filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join(dir, "policies")
	config.DriverRetry, config.ReconcileEvery, config.MPSSocket = 10*time.Millisecond, time.Hour, ""
	b := &controlBed{service: newService(config), t: t, client: fake.NewClientset(labeledNode("", ""))}
	var names atomic.Int32
	b.client.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		slice.Name = fmt.Sprintf("%s%d", slice.GenerateName, names.Add(1)) // the fake one makes no names
		return false, nil, nil
	})
	b.service.client, b.events = b.client, cluster.NewEventsWith(record.NewFakeRecorder(1000), "node-1")
	for path, data := range map[string]string{
		bootIDFile(dir): "boot\n", config.NVMLLibrary: "", filepath.Join(config.PolicyFile, "training.yaml"): "rules: [{tiers: [exclusive]}]",
		filepath.Join(config.PolicyFile, "default.yaml"): "{}",
	} {
		if strings.HasSuffix(path, ".yaml") {
			data = "apiVersion: gpu.cleave.dev/v1alpha1\nkind: NodePolicy\n" + strings.TrimPrefix(data, "{}")
		}
		write(t, path, data)
	}
	return b
}

// start runs the plugin's control on a simulated node until ctx ends, and returns what it ends with.
func (b *controlBed) start(ctx context.Context, model string) <-chan error {
	b.t.Helper()
	session, err := simulated.Open(ctx, model)
	if err != nil {
		b.t.Fatal(err)
	}
	fatal := func(err error) {
		if ctx.Err() == nil {
			b.t.Errorf("the plugin ends: %v", err)
		}
	}
	if err := errors.Join(b.open(ctx), b.startKubeletPlugin(ctx, fatal)); err != nil {
		b.t.Fatal(err)
	}
	if b.asks {
		if err := b.counting.Wait(ctx, b.config.DriverRetry); err != nil {
			b.t.Fatal(err)
		}
	}
	go b.cluster.Run(ctx, func(error) {})
	go b.names.run(ctx)
	b.driver.used(b.config.DriverRoot)
	hw := &hardware{Session: session, look: b.finder.now, closed: b.specs.closed}
	done := make(chan error, 1)
	go func() { done <- b.control(ctx, hw) }()
	return done
}

// run is start until the test ends or stop, and fails unless it ends well.
func (b *controlBed) run(model string) (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	done := b.start(ctx, model)
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("the control ends with %v", err)
		}
		b.helper.Stop()
	})
	b.t.Cleanup(stop)
	return stop
}

// label sets a label of the Node, and no other.
func (b *controlBed) label(key, value string) {
	b.t.Helper()
	if _, err := b.client.CoreV1().Nodes().Update(b.t.Context(), labeledNode(key, value), metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

// published waits until the devices that the API server has, with the keys of their taints, are as wanted.
func (b *controlBed) published(step string, want func(devices map[string][]string) bool) {
	b.t.Helper()
	var devices map[string][]string
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		list, err := b.client.ResourceV1().ResourceSlices().List(b.t.Context(), metav1.ListOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		devices = map[string][]string{}
		for _, s := range list.Items {
			for _, d := range s.Spec.Devices {
				devices[d.Name] = []string{}
				for _, taint := range d.Taints {
					devices[d.Name] = append(devices[d.Name], taint.Key)
				}
			}
		}
		if want(devices) {
			return
		}
		<-time.After(20 * time.Millisecond)
	}
	b.t.Fatalf("%s: the API server has %v", step, devices)
}

func allTainted(devices map[string][]string, key string) bool {
	for _, taints := range devices {
		if !slices.Contains(taints, key) {
			return false
		}
	}
	return len(devices) > 0
}

// What the API server has follows the node's labels, until the driver is released.
func TestControl(t *testing.T) {
	b := newControlBed(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := b.start(ctx, "a30")
	defer b.helper.Stop()
	all := 0
	b.published("at the start", func(devices map[string][]string) bool {
		all = len(devices)
		return all > 2 && allTainted(devices, nodeslices.TaintIncomplete) // the driver has no device nodes
	})
	if diff := cmp.Diff([]string{"cleave_policy_info{policy=default} 1"}, series(t, b.metrics.policy)); diff != "" {
		t.Errorf("active policy (-want +got):\n%s", diff)
	}
	b.label(v1alpha1.PolicyLabel, "training")
	b.published("exclusive", func(devices map[string][]string) bool { return len(devices) == 2 })
	b.label(v1alpha1.PolicyLabel, "default")
	b.published("default again", func(devices map[string][]string) bool { return len(devices) == all })
	b.label(v1alpha1.ReleaseDriverLabel, "true")
	b.published("driver released and that noted", func(devices map[string][]string) bool {
		_, err := os.Stat(b.marker.path())
		return err == nil && allTainted(devices, nodeslices.TaintDraining)
	})
	// Two owners: the operator's label outlives Cleave's, and the driver stays released.
	b.label("nvidia.com/gpu.deploy.client", "paused-for-driver-upgrade")
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(message(b.ready.err()), "paused-for-driver-upgrade"); {
		if time.Now().After(deadline) {
			t.Fatalf("got readiness %v, want that the operator has paused", b.ready.err())
		}
		<-time.After(20 * time.Millisecond)
	}
	b.label("nvidia.com/gpu.deploy.client", "true")
	select {
	case err := <-done:
		if !errors.Is(err, ErrDriverAvailable) {
			t.Errorf("got %v, want %v", err, ErrDriverAvailable)
		}
	case <-time.After(20 * time.Second):
		t.Error("the driver can be used, and is not")
	}
}
