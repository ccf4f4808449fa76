// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const manifests = "testdata/manifests"

// imports runs cleave import on a file of the test data, writes the policies into a directory and makes the DeviceClasses in
// place of the cluster's for the same resources, for as long as the test runs.
func (s *space) imports(ctx context.Context, format, file, dir string) {
	s.Helper()
	to := s.TempDir()
	out, err := exec.CommandContext(ctx, filepath.Join(programsDir, "cleave"), "import", format, filepath.Join(manifests, file), "--output-dir", to).CombinedOutput()
	if err != nil {
		s.Fatalf("cleave import %s %s: %v: %s", format, file, err, out)
	}
	policies, err := filepath.Glob(filepath.Join(to, "policies", "*.yaml"))
	s.must(err)
	for _, p := range policies {
		data, err := os.ReadFile(p)
		s.must(err)
		s.must(os.WriteFile(filepath.Join(dir, filepath.Base(p)), data, 0o600))
	}
	classes, err := workload.Load(filepath.Join(to, "deviceclasses.yaml"))
	s.must(err)
	for _, object := range classes {
		class, ok := object.(*resourceapi.DeviceClass)
		if !ok || class.Spec.ExtendedResourceName == nil {
			s.Fatalf("cleave import wrote %T without an extended resource", object)
		}
		_, err := env.kube.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
		s.must(err)
		s.Cleanup(func() {
			s.must(env.kube.ResourceV1().DeviceClasses().Delete(context.Background(), class.Name, metav1.DeleteOptions{}))
		})
	}
}

// noOtherClasses takes the extended resources from the classes that the cluster has, for as long as the test runs: of two
// classes for one resource Kubernetes takes the later one.
func (s *space) noOtherClasses(ctx context.Context) {
	s.Helper()
	api := env.kube.ResourceV1().DeviceClasses()
	list, err := api.List(ctx, metav1.ListOptions{})
	s.must(err)
	set := func(ctx context.Context, class string, resource *string) {
		now, err := api.Get(ctx, class, metav1.GetOptions{})
		s.must(err)
		now.Spec.ExtendedResourceName = resource
		_, err = api.Update(ctx, now, metav1.UpdateOptions{})
		s.must(err)
	}
	for _, c := range list.Items {
		if resource := c.Spec.ExtendedResourceName; resource != nil {
			set(ctx, c.Name, nil)
			s.Cleanup(func() { set(context.Background(), c.Name, resource) })
		}
	}
}

// Pods that were written for NVIDIA's device plugin run unchanged once its files and those of the MIG manager are imported.
func TestImport_DevicePluginPods(t *testing.T) {
	ctx, s := newSpace(t)
	s.noOtherClasses(ctx)
	dir := s.plugin.usePolicies(ctx, "half-balanced", map[string]string{"default": "[]"})
	s.imports(ctx, "mig-parted", "mig-parted.yaml", dir)
	s.imports(ctx, "device-plugin", "device-plugin.yaml", dir)
	name := env.cluster.NodeName()
	gets := func(resource string, want func(d *resourceapi.Device) bool) {
		t.Helper()
		objects, err := workload.Load(filepath.Join(manifests, "pod-"+strings.ReplaceAll(resource, ".", "-")+".yaml"))
		s.must(err)
		s.create(ctx, objects...)
		pod := s.pods.running(ctx, podOf(objects).Name)
		devices := s.pods.devices(ctx, pod)
		published := s.published.devices(ctx, name)
		if len(devices) != 1 || !want(find(published, devices[0])) {
			t.Errorf("the pod that asks for nvidia.com/%s has %v", resource, devices)
		}
		s.pods.checkSees(ctx, pod, devices)
	}
	is := func(kind, profile string) func(d *resourceapi.Device) bool {
		return func(d *resourceapi.Device) bool {
			return d != nil && *d.Attributes["type"].StringValue == kind && (profile == "" || *d.Attributes["profile"].StringValue == profile)
		}
	}

	// As the MIG manager would have it: the partitions are there before anybody asks.
	s.published.waitOffer(ctx, name, "gpu=4 mig=16")
	before := s.hardware.waitPartitionCount(ctx, 16)
	gets("gpu", is("gpu", ""))
	gets("mig-1g.10gb", is("mig", "1g.10gb"))
	gets("mig-2g.20gb", is("mig", "2g.20gb"))
	gets("mig-3g.40gb", is("mig", "3g.40gb"))
	if after := s.hardware.partitions(ctx); !slices.Equal(before, after) {
		t.Errorf("partitions %v were there before, %v are with pods on them: want the same", before, after)
	}
	for _, pod := range []string{"wants-gpu", "wants-mig-1g-10gb", "wants-mig-2g-20gb", "wants-mig-3g-40gb"} {
		s.pods.delete(ctx, pod)
	}
	if after := s.hardware.partitions(ctx); !slices.Equal(before, after) {
		t.Errorf("partitions %v were there before, %v are when all pods have ended: want the same", before, after)
	}

	// And as the device plugin would have it, on a node without a label.
	s.plugin.labelNode(ctx, v1alpha1.PolicyLabel, nil)
	s.published.waitOffer(ctx, name, "timeslice=8")
	gets("gpu.shared", is("timeslice", ""))
	s.pods.delete(ctx, "wants-gpu-shared")
	s.hardware.waitPartitions(ctx)
}
