// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

const (
	dcgmLabel     = "nvidia.com/gpu.deploy.dcgm"
	exporterLabel = "nvidia.com/gpu.deploy.dcgm-exporter"
	pluginLabel   = "nvidia.com/gpu.deploy.device-plugin"
)

// clientBed is a Node at a fake API server whose labels plugins change, inside a synctest bubble.
type clientBed struct {
	*Clients
	t      *testing.T
	client *fake.Clientset
	// kill ends the plugin without a word, stop only its Run.
	kill, stop func()

	// patches are those of plugins, fails is returned by each if it is set, and before is called before each. All are used while
	// the bubble's other goroutines are blocked, or by the one that patches; mu orders these.
	mu      sync.Mutex
	patches int
	fails   error
	before  func()
	failed  []string
}

func newClientBed(t *testing.T, labels map[string]string) *clientBed {
	t.Helper()
	b := &clientBed{t: t}
	b.client = labeledNode(labels, types.JSONPatchType, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.patches++
		if b.before != nil {
			b.before()
		}
		return b.fails
	})
	b.start()
	return b
}

// start starts a plugin; the one before must have ended.
func (b *clientBed) start() {
	b.t.Helper()
	w := NewWatcher(b.client, "gpu.cleave.dev", "node-1", "ns/plugin", func() {})
	b.Clients = NewClients(w, []string{dcgmLabel, exporterLabel}, func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.failed = append(b.failed, err.Error())
	})
	unwatch, stop := followNode(b.t, w), run(b.t, b.Run)
	b.stop, b.kill = stop, func() { stop(); unwatch() }
}

// wait waits in the bubble's time, and until nothing goes on.
func (b *clientBed) wait(d time.Duration) {
	b.sync()
	<-time.After(d)
	synctest.Wait()
	b.sync()
}

// sync orders what was done before it, and what a plugin does after it.
func (b *clientBed) sync() {
	b.mu.Lock()
	defer b.mu.Unlock()
}

// pause wants labels paused.
func (b *clientBed) pause(labels ...string) {
	b.Pause(labels)
	synctest.Wait()
}

// set has another client set a label of DCGM, also while the fake client answers a request.
func (b *clientBed) set(value string) {
	b.t.Helper()
	nodes := corev1.SchemeGroupVersion.WithResource("nodes")
	object, err := b.client.Tracker().Get(nodes, "", "node-1")
	if err != nil {
		b.t.Fatal(err)
	}
	node := object.DeepCopyObject().(*corev1.Node)
	node.Labels[dcgmLabel] = value
	if err := b.client.Tracker().Update(nodes, node, ""); err != nil {
		b.t.Fatal(err)
	}
}

// check compares the labels of the Node, and how often plugins have patched it.
func (b *clientBed) check(what, labels string, patches int) {
	b.t.Helper()
	synctest.Wait()
	has := fmt.Sprintf("%s, %d patches", labelsOf(b.t, b.client, "nvidia.com/gpu.deploy."), b.patches)
	if diff := cmp.Diff(fmt.Sprintf("%s, %d patches", labels, patches), has); diff != "" {
		b.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

const (
	bothDeployed = "dcgm=true dcgm-exporter=true"
	bothPaused   = "dcgm=paused-by-cleave dcgm-exporter=paused-by-cleave"
)

func deployed() map[string]string { return map[string]string{dcgmLabel: "true", exporterLabel: "true"} }

func TestClients_Pause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClientBed(t, map[string]string{dcgmLabel: "true", exporterLabel: "true", pluginLabel: "true", "zone": "a"})
		b.pause(dcgmLabel, exporterLabel, pluginLabel, "zone")
		b.check("paused", "dcgm=paused-by-cleave dcgm-exporter=paused-by-cleave device-plugin=true zone=a", 2)
		b.wait(time.Hour)
		b.check("an hour later", "dcgm=paused-by-cleave dcgm-exporter=paused-by-cleave device-plugin=true zone=a", 2)
		b.pause(dcgmLabel)
		b.check("one is enough", "dcgm=paused-by-cleave dcgm-exporter=true device-plugin=true zone=a", 3)
		b.pause()
		b.check("none", "dcgm=true dcgm-exporter=true device-plugin=true zone=a", 4)
		b.wait(time.Hour)
		b.check("an hour later", "dcgm=true dcgm-exporter=true device-plugin=true zone=a", 4)
		b.pause(dcgmLabel)
		b.check("again", "dcgm=paused-by-cleave dcgm-exporter=true device-plugin=true zone=a", 5)
		if len(b.failed) > 0 {
			t.Errorf("failed: %q", b.failed)
		}
	})
}

// The value that another client sets stays, whenever it comes.
func TestClients_OtherClients(t *testing.T) {
	bubble(t, "before", func(t *testing.T) {
		b := newClientBed(t, map[string]string{dcgmLabel: "false"})
		b.pause(dcgmLabel, exporterLabel)
		b.check("neither is deployed", "dcgm=false", 0)
		b.pause()
		b.check("nor afterwards", "dcgm=false", 0)
	})
	for _, value := range []string{"paused-for-driver-upgrade", "paused-by-cleave_paused-for-driver-upgrade", "true", ""} {
		bubble(t, "during a pause "+value, func(t *testing.T) {
			b := newClientBed(t, deployed())
			b.pause(dcgmLabel)
			b.set(value)
			b.check("changed", "dcgm="+value+" dcgm-exporter=true", 1)
			b.wait(time.Hour)
			b.pause()
			b.check("not wanted any more", "dcgm="+value+" dcgm-exporter=true", 1)
			if strings.HasPrefix(value, v1alpha1.ClientsPaused) { // k8s-driver-manager restores what it has found when it began
				b.set(v1alpha1.ClientsPaused)
				b.check("restored by the other", bothDeployed, 2)
			}
		})
	}
	bubble(t, "at the same moment", func(t *testing.T) {
		b := newClientBed(t, deployed())
		other := func(value string) func() { return func() { b.set(value); b.before = nil } }
		b.before = other("paused-for-mig-change")
		b.pause(dcgmLabel)
		b.check("paused", "dcgm=paused-for-mig-change dcgm-exporter=true", 1)
		b.set("true")
		b.check("and deployed again", "dcgm=paused-by-cleave dcgm-exporter=true", 2)
		b.before = other("false")
		b.pause()
		b.check("set back", "dcgm=false dcgm-exporter=true", 3)
		b.wait(time.Hour)
		b.check("an hour later", "dcgm=false dcgm-exporter=true", 3)
		if len(b.failed) > 0 {
			t.Errorf("failed: %q, though the other client was only faster", b.failed)
		}
	})
}

// A plugin may be killed at any write. The next one sets back what was paused, or goes on, and never leaves anything paused.
func TestClients_Killed(t *testing.T) {
	for writes := range 4 {
		for _, goesOn := range []bool{false, true} {
			bubble(t, fmt.Sprintf("after %d writes, goes on %t", writes, goesOn), func(t *testing.T) {
				b := newClientBed(t, deployed())
				b.before = func() {
					if b.patches > writes {
						b.fails = fmt.Errorf("killed")
					}
				}
				b.pause(dcgmLabel, exporterLabel)
				b.pause()
				b.kill()
				b.fails, b.before = nil, nil
				b.start()
				b.wait(time.Hour)
				synctest.Wait()
				before := b.patches
				left := []string{bothDeployed, "dcgm=paused-by-cleave dcgm-exporter=true", bothPaused, "dcgm=true dcgm-exporter=paused-by-cleave"}
				b.check("before the plugin knows what is wanted", left[writes], before)
				if goesOn {
					b.pause(dcgmLabel, exporterLabel)
					b.check("goes on", bothPaused, before+map[int]int{0: 2, 1: 1, 2: 0, 3: 1}[writes])
				}
				b.pause()
				b.check("in the end", bothDeployed, b.patches)
			})
		}
	}
}

// A plugin that ends sets back what it has paused, and no more.
func TestClients_Leave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClientBed(t, map[string]string{dcgmLabel: "true", exporterLabel: v1alpha1.ClientsPaused})
		b.pause(dcgmLabel, exporterLabel)
		b.check("paused", bothPaused, 1)
		b.stop()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		b.Leave(ended)
		b.check("left", "dcgm=true dcgm-exporter=paused-by-cleave", 2)
		(*Clients)(nil).Leave(t.Context())
		(*Clients)(nil).Pause(nil)
	})
}

// A plugin that ends sets back what it may have paused, too: the answer to its last write was lost, or the Node was not read after it.
func TestClients_LeaveInDoubt(t *testing.T) {
	for name, doubt := range map[string]func(b *clientBed){
		"no answer": func(b *clientBed) { b.before, b.fails = func() { b.set(v1alpha1.ClientsPaused) }, context.Canceled },
		"not read":  func(b *clientBed) { b.have = deployed },
	} {
		bubble(t, name, func(t *testing.T) {
			b := newClientBed(t, deployed())
			doubt(b)
			b.pause(dcgmLabel)
			b.stop()
			b.before, b.fails = nil, nil
			b.check("paused", "dcgm=paused-by-cleave dcgm-exporter=true", 1)
			b.Leave(t.Context())
			b.check("left", bothDeployed, 2)
		})
	}
}

// In a rolling update the next plugin sets back what the one before has paused, and may begin a pause of its own, which the end of the
// first does not end.
func TestClients_LeaveToNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClientBed(t, deployed())
		b.pause(dcgmLabel)
		first, stop := b.Clients, b.stop
		b.start()
		b.pause()
		b.check("the next plugin wants none", bothDeployed, 2)
		b.pause(dcgmLabel)
		b.check("and then pauses", "dcgm=paused-by-cleave dcgm-exporter=true", 3)
		stop()
		first.Leave(t.Context())
		b.check("the first has ended", "dcgm=paused-by-cleave dcgm-exporter=true", 3)
		b.pause()
		b.check("in the end", bothDeployed, 4)
	})
}

// silent is an API server that does not answer patches of Nodes.
type (
	silent      struct{ kubernetes.Interface }
	silentCore  struct{ typedcorev1.CoreV1Interface }
	silentNodes struct{ typedcorev1.NodeInterface }
)

func (s silent) CoreV1() typedcorev1.CoreV1Interface  { return silentCore{s.Interface.CoreV1()} }
func (c silentCore) Nodes() typedcorev1.NodeInterface { return silentNodes{c.CoreV1Interface.Nodes()} }
func (silentNodes) Patch(ctx context.Context, _ string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A plugin that ends does not wait for an API server that does not answer longer than for one write.
func TestClients_LeaveHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClientBed(t, deployed())
		b.pause(dcgmLabel, exporterLabel)
		b.stop()
		b.Clients.client = silent{b.client}
		began := time.Now()
		b.Leave(t.Context())
		if took := time.Since(began); took > labelsTimeout {
			t.Errorf("left after %s, want at most %s", took, labelsTimeout)
		}
	})
}

func TestClients_Uninstalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClientBed(t, deployed())
		b.pause(dcgmLabel)
		uninstall(t, b.client)
		b.check("gone", bothDeployed, 2)
		b.pause(dcgmLabel, exporterLabel)
		b.check("and stay so", bothDeployed, 2)
	})
}

// An error is reported once, and the write repeated.
func TestClients_Refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClientBed(t, deployed())
		b.fails = apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "node-1", fmt.Errorf("no right"))
		b.pause(dcgmLabel)
		b.wait(clientsRetry * 5 / 2)
		b.check("refused", bothDeployed, 3)
		const want = `set the label nvidia.com/gpu.deploy.dcgm of Node node-1 from "true" to "paused-by-cleave"`
		if len(b.failed) != 1 || !strings.Contains(b.failed[0], want) {
			t.Errorf("failed: %q, want one", b.failed)
		}
		b.fails = nil
		b.wait(clientsRetry)
		b.check("later", "dcgm=paused-by-cleave dcgm-exporter=true", 4)
	})
}
