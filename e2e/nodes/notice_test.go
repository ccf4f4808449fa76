// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleave-dra/cleave/e2e/release"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

const (
	// spotTime is from the notice to the end of a spot instance, evictBefore how long before that its pods are evicted.
	spotTime, evictBefore = 2 * time.Minute, 105 * time.Second
	// reclaimed is the answer of the metadata service (docs.aws.amazon.com, "Spot Instance interruption notices").
	reclaimed = `{"action": "terminate", "time": "%s"}`
)

// metadata stands in for the instance metadata service of Amazon EC2, version 2. It tells one node by the address of its pod.
type metadata struct {
	mu     sync.Mutex
	notice string
	asks   string          // the address that has the notice
	others map[string]bool // those that have asked and have none
}

func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	switch {
	case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
		_, _ = fmt.Fprint(w, "token-of-"+from)
	case r.Header.Get("X-aws-ec2-metadata-token") != "token-of-"+from:
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/latest/meta-data/spot/instance-action" && from == m.asks && m.notice != "":
		_, _ = fmt.Fprint(w, m.notice)
	default:
		m.others[from] = true
		w.WriteHeader(http.StatusNotFound)
	}
}

func (m *metadata) set(asks, notice string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asks, m.notice = asks, notice
}

// hasAsked reports whether an address has asked and was told nothing.
func (m *metadata) hasAsked(address string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.others[address]
}

// noticed lets the machine of a node be taken away as a spot instance. The pod that has its GPU saves its state when it is told to end, and
// goes on from there on another node, in time. Once the notice is withdrawn, the node is as before.
func noticed(t *testing.T, ctx context.Context) {
	service := serveMetadata(t, ctx)
	state := t.TempDir()
	trains(t, ctx, state)
	var first *corev1.Pod
	step := 0
	must(t, workload.Until(ctx, "the training to make steps", func(ctx context.Context) (bool, string, error) {
		var err error
		first, err = trainer(ctx)
		step = steps(t, state)
		return err == nil && first != nil && step > 2, fmt.Sprint(step, " steps"), err
	}))
	plugins, err := podsOf(ctx, "plugin")
	must(t, err)
	address := plugins[first.Spec.NodeName].Status.PodIP
	must(t, workload.Until(ctx, "the plugin of the node to ask the metadata service", func(context.Context) (bool, string, error) {
		return service.hasAsked(address), "", nil
	}))
	end := time.Now().Add(spotTime)
	service.set(address, fmt.Sprintf(reclaimed, end.UTC().Format(time.RFC3339)))
	waitTaint(t, ctx, first.Spec.NodeName, true)
	var second *corev1.Pod
	must(t, workload.Until(ctx, "the training to go on elsewhere", func(ctx context.Context) (bool, string, error) {
		var err error
		second, err = trainer(ctx)
		if err != nil || second == nil || second.UID == first.UID {
			return false, "", err
		}
		_, err = os.Stat(filepath.Join(state, string(second.UID)+".from"))
		return err == nil, "its program has not begun", nil
	}))
	if second.Spec.NodeName == first.Spec.NodeName {
		t.Errorf("the training goes on on %s, which is about to end", second.Spec.NodeName)
	}
	if !time.Now().Before(end) {
		t.Error("the training goes on after the machine's end")
	}
	saved := fmt.Sprint(checkpoint(t, state, string(first.UID)))
	if replayed := fmt.Sprint(checkpoint(t, state, string(second.UID)+".from")); replayed != saved || checkpoint(t, state, string(first.UID)) < step {
		t.Errorf("the training goes on from step %s; it had saved step %s, and made %d before", replayed, saved, step)
	}
	told(t, ctx, first)
	service.set("", "")
	waitTaint(t, ctx, first.Spec.NodeName, false)
	must(t, env.kube.AppsV1().StatefulSets(demo).Delete(ctx, "trainer", metav1.DeleteOptions{}))
	nothingAllocated(t, ctx)
}

// serveMetadata starts the service where the plugins find it.
func serveMetadata(t *testing.T, ctx context.Context) *metadata {
	t.Helper()
	service := &metadata{others: map[string]bool{}}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(env.places[0].APIServerHost(), "0"))
	must(t, err)
	server := &http.Server{Handler: service, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }() // ends with the server
	t.Cleanup(func() { _ = server.Close() })
	before, err := podsOf(ctx, "plugin")
	must(t, err)
	env.helm(t, ctx, env.valuesFor(release.Settings{}), "upgrade", "cleave", release.Chart(env.release.Source), "--wait", "--timeout", "300s",
		"--set", "notices.sources[0]=aws", "--set", "notices.evictBefore="+evictBefore.String(),
		"--set", "plugin.extraArgs[0]=--metadata-url=http://"+listener.Addr().String())
	waitPods(t, ctx, "plugin", before)
	return service
}

// trains runs a program that counts its steps, saves them when it is told to end, and goes on from what was saved. It is a StatefulSet: a
// Deployment has the next pod begin while the one before still saves.
func trains(t *testing.T, ctx context.Context, state string) {
	t.Helper()
	tier := workload.Tiers[0]
	d := app("trainer", tier, 1)
	container := &d.Spec.Template.Spec.Containers[0]
	container.Command = []string{"sh", "-c", `
		n=0; if [ -f /state/checkpoint ]; then n=$(cat /state/checkpoint); fi
		echo $n > /state/$POD.from
		trap 'echo $n > /state/checkpoint; echo $n > /state/$POD; exit 0' TERM
		while :; do n=$((n + 1)); echo $n > /state/step; sleep 1; done`}
	container.Env = []corev1.EnvVar{{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}}}
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "state", MountPath: "/state"})
	d.Spec.Template.Spec.Volumes = append(d.Spec.Template.Spec.Volumes, corev1.Volume{ // which all nodes share
		Name: "state", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: state}},
	})
	d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(30))
	must(t, workload.Create(ctx, env.kube, demo, []runtime.Object{tier.Template(tier.Type)}))
	_, err := env.kube.AppsV1().StatefulSets(demo).Create(ctx, &appsv1.StatefulSet{ObjectMeta: d.ObjectMeta, Spec: appsv1.StatefulSetSpec{
		Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template,
	}}, metav1.CreateOptions{})
	must(t, err)
}

// trainer is the pod that trains and is ready; nil for none.
func trainer(ctx context.Context) (*corev1.Pod, error) {
	list, err := env.kube.CoreV1().Pods(demo).List(ctx, metav1.ListOptions{LabelSelector: appLabel + "=trainer"})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil && hasCondition(&p, corev1.PodReady, "") })
	if i < 0 {
		return nil, nil //nolint:nilnil // none yet
	}
	return &list.Items[i], nil
}

// steps is how many steps the training has made; 0 before the first.
func steps(t *testing.T, state string) int {
	t.Helper()
	if _, err := os.Stat(filepath.Join(state, "step")); err != nil {
		return 0
	}
	return checkpoint(t, state, "step")
}

// checkpoint reads a number of steps.
func checkpoint(t *testing.T, state, file string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(state, file))
	must(t, err)
	n, _ := strconv.Atoi(strings.TrimSpace(string(data))) // 0 while it is being written
	return n
}

// waitTaint waits until all devices of a node have the taint of a notice, or none of them has.
func waitTaint(t *testing.T, ctx context.Context, node string, want bool) {
	t.Helper()
	p := env.places[slices.IndexFunc(env.places, func(p place) bool { return p.Name() == node })]
	must(t, workload.Until(ctx, fmt.Sprintf("devices of %s with the taint of a notice: %t", node, want),
		func(ctx context.Context) (bool, string, error) {
			slices, complete, err := p.slices(ctx)
			if err != nil || !complete {
				return false, "the pool is incomplete", err
			}
			with, without := 0, 0
			for i := range slices {
				for _, d := range slices[i].Spec.Devices {
					if hasNotice(&d) {
						with++
					} else {
						without++
					}
				}
			}
			return (with > 0) == want && (without > 0) != want, fmt.Sprintf("%d with, %d without", with, without), nil
		}))
}

func hasNotice(d *resourceapi.Device) bool {
	return slices.ContainsFunc(d.Taints, func(taint resourceapi.DeviceTaint) bool { return taint.Key == nodeslices.TaintNotice })
}

// told checks that the pod's user was told, and how much time was left.
func told(t *testing.T, ctx context.Context, pod *corev1.Pod) {
	t.Helper()
	events, err := env.kube.CoreV1().Events(demo).List(ctx, metav1.ListOptions{FieldSelector: "reason=NodeNotice,involvedObject.name=" + pod.Name})
	must(t, err)
	if len(events.Items) == 0 || !strings.Contains(events.Items[0].Message, "spot interruption, terminate") {
		t.Errorf("Events of pod %s are %+v, want one of the notice", pod.Name, events.Items)
	}
}
