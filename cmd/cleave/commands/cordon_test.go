// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// cordonCluster is the cluster whose API server names what has a generated name.
func cordonCluster(t *testing.T, more ...runtime.Object) *fake.Clientset {
	client := cluster(t, more...)
	client.PrependReactor("create", "devicetaintrules", func(action clienttesting.Action) (bool, runtime.Object, error) {
		r := action.(clienttesting.CreateAction).GetObject().(*resourceapi.DeviceTaintRule)
		r.Name = r.GenerateName + rand.String(5)
		return false, nil, nil
	})
	return client
}

// ruled are the devices with rules of cordon, and how many rules there are.
func ruled(t *testing.T, client *fake.Clientset) (devices []string, rules int) {
	t.Helper()
	list, err := client.ResourceV1().DeviceTaintRules().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list.Items {
		if r.Spec.Taint.Key == "gpu.cleave.dev/cordoned" {
			devices = append(devices, *r.Spec.DeviceSelector.Pool+" "+*r.Spec.DeviceSelector.Device)
		}
	}
	slices.Sort(devices)
	return devices, len(list.Items)
}

func TestCordon(t *testing.T) {
	node, gone := "node-1", "gpu-0000-4a-00-0-mig-19-6"
	driver := "gpu.cleave.dev"
	foreign := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rma"}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Pool: &node}, Taint: resourceapi.DeviceTaint{Key: "example.com/rma"}}}
	stale := &resourceapi.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "stale"}, Spec: resourceapi.DeviceTaintRuleSpec{
		DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: &driver, Pool: &node, Device: &gone},
		Taint:          resourceapi.DeviceTaint{Key: "gpu.cleave.dev/cordoned", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	client := cordonCluster(t, foreign, stale)
	f := &cordonFlags{driverName: driver}
	run := func(do cordoning, gpus ...string) string {
		t.Helper()
		var out bytes.Buffer
		if err := f.run(t.Context(), client, node, gpus, do, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	var got []string
	got = append(got, run(cordon, "GPU0", "0", "gpu0"), run(cordon, "0000:4A:00.0"))
	devices, _ := ruled(t, client)
	want := []string{"node-1 gpu-0000-4a-00-0", "node-1 gpu-0000-4a-00-0-mig-19-6", "node-1 gpu-0000-4a-00-0-mps", "node-1 gpu-0000-4a-00-0-timeslice"}
	if diff := cmp.Diff(want, devices); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
	view, err := viewNode(t.Context(), client, node, driver)
	if err != nil {
		t.Fatal(err)
	}
	for i := range view.GPUs {
		if g := &view.GPUs[i]; (g.Name == "GPU0") != slices.ContainsFunc(g.Shapes, func(s inspect.Shape) bool {
			return slices.ContainsFunc(s.Taints, func(t inspect.Taint) bool { return strings.Contains(t.Meaning, "cleave uncordon") })
		}) {
			t.Errorf("%s: %+v", g.Name, g.Shapes)
		}
	}
	got = append(got, run(uncordon, view.GPUs[0].UUID), run(uncordon, view.GPUs[0].Device))
	if devices, rules := ruled(t, client); len(devices) > 0 || rules != 1 {
		t.Errorf("devices %q and %d rules stay, want the foreign one alone", devices, rules)
	}
	wantText := []string{
		"GPU0 of node node-1 (gpu-0000-4a-00-0) cordoned: 3 devices; it stays allocated to ml/train\n",
		"GPU0 of node node-1 (gpu-0000-4a-00-0) was cordoned already; it stays allocated to ml/train\n",
		"GPU0 of node node-1 (gpu-0000-4a-00-0) uncordoned: 4 devices\n",
		"GPU0 of node node-1 (gpu-0000-4a-00-0) was not cordoned\n",
	}
	if diff := cmp.Diff(wantText, got); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

func TestCordon_Errors(t *testing.T) {
	older := cordonCluster(t)
	older.PrependReactor("list", "devicetaintrules", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "devicetaintrules"}, "")
	})
	refusing := cordonCluster(t)
	refusing.PrependReactor("create", "devicetaintrules", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("quota")
	})
	for name, tt := range map[string]struct {
		client     *fake.Clientset
		node, gpu  string
		wantInText string
	}{
		"no such GPU":      {cordonCluster(t), "node-1", "GPU9", `node node-1 has no GPU "GPU9": it has GPU0, GPU1, GPU2, GPU3`},
		"no such node":     {cordonCluster(t), "node-9", "GPU0", "the cluster has no node of this name"},
		"an older release": {older, "node-1", "GPU0", "from 1.37 on"},
		"refused":          {refusing, "node-1", "GPU0", "0 of whose 3 devices are closed: quota"},
	} {
		var out bytes.Buffer
		err := (&cordonFlags{driverName: "gpu.cleave.dev"}).run(t.Context(), tt.client, tt.node, []string{tt.gpu}, cordon, &out)
		if err == nil || !strings.Contains(err.Error(), tt.wantInText) || out.Len() > 0 {
			t.Errorf("%s: got %v and %q, want %q", name, err, out.String(), tt.wantInText)
		}
	}
}
