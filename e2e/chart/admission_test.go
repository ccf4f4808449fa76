// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcebeta "k8s.io/api/resource/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/e2e/workload"
)

// otherNode has no kubelet.
const otherNode = "other-node"

// as is a client with the token of the plugin's ServiceAccount, bound to a pod, or to none.
func as(t *testing.T, ctx context.Context, pod *corev1.Pod) kubernetes.Interface {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	answer, err := env.kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "cleave-plugin", request, metav1.CreateOptions{})
	must(t, err)
	admin, err := env.cluster.RESTConfig()
	must(t, err)
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = answer.Status.Token
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

func sliceOf(node, driver, pool string) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec: resourceapi.ResourceSliceSpec{
			NodeName: &node, Driver: driver, Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0000-01-00-0"}},
		},
	}
}

// wantRefused fails unless the API server refused something by a policy, in words that say what is wrong.
func wantRefused(t *testing.T, what string, err error, policy, says string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: it is let through", what)
	} else if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), policy) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: got %v, want %s to refuse it with %q", what, err, policy, says)
	}
}

// otherPod creates a node without a kubelet and a pod of the plugin's ServiceAccount on it.
func otherPod(t *testing.T, ctx context.Context) *corev1.Pod {
	t.Helper()
	_, err := env.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: otherNode}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		ctx := context.Background()
		now := int64(0)
		_ = env.kube.CoreV1().Pods(namespace).Delete(ctx, otherNode, metav1.DeleteOptions{GracePeriodSeconds: &now})
		_ = env.kube.CoreV1().Nodes().Delete(ctx, otherNode, metav1.DeleteOptions{})
	})
	pod, err := env.kube.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: otherNode},
		Spec: corev1.PodSpec{
			NodeName: otherNode, ServiceAccountName: "cleave-plugin", Containers: []corev1.Container{{Name: "main", Image: "none"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	return pod
}

func nodeRestriction(t *testing.T, ctx context.Context) {
	const policy = "cleave-resourceslices"
	home := env.cluster.NodeName()
	here, there, nowhere := as(t, ctx, podOf(t, ctx, "plugin")), as(t, ctx, otherPod(t, ctx)), as(t, ctx, nil)
	create := func(client kubernetes.Interface, slice *resourceapi.ResourceSlice) error {
		_, err := client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for what, err := range map[string]error{
		"own node": create(here, sliceOf(home, workload.Driver, home)), "own node of another plugin": create(there, sliceOf(otherNode, workload.Driver, otherNode)),
		"own node, the driver's other name": create(here, sliceOf(home, "gpu.nvidia.com", home)),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantRefused(t, "create for another node", create(here, sliceOf(otherNode, workload.Driver, otherNode)), policy, "this ResourceSlice is of node \"other-node\"")
	wantRefused(t, "create from another node", create(there, sliceOf(home, workload.Driver, home)), policy, "plugin of node \"other-node\" may write those of its own")
	wantRefused(t, "create with a token of no node", create(nowhere, sliceOf(home, workload.Driver, home)), policy, "the token of a pod on a node only")
	wantRefused(t, "create for another driver", create(here, sliceOf(home, "other.example.com", home)), policy, "is of driver other.example.com")
	wantRefused(t, "create in another pool", create(here, sliceOf(home, workload.Driver, otherNode)), policy, "is of pool other-node")
	everywhere := sliceOf(home, workload.Driver, home)
	all := true
	everywhere.Spec.NodeName, everywhere.Spec.AllNodes = nil, &all
	wantRefused(t, "create for all nodes", create(here, everywhere), policy, "this ResourceSlice is of node \"\"")

	// Slices that are there, made by an administrator, to whom the policy does not matter.
	other, err := env.kube.ResourceV1().ResourceSlices().Create(ctx, sliceOf(otherNode, workload.Driver, otherNode), metav1.CreateOptions{})
	must(t, err)
	defer func() {
		must(t, env.kube.ResourceV1().ResourceSlices().Delete(context.Background(), other.Name, metav1.DeleteOptions{}))
	}()
	changed := other.DeepCopy()
	changed.Spec.Devices = nil
	_, err = here.ResourceV1().ResourceSlices().Update(ctx, changed, metav1.UpdateOptions{})
	wantRefused(t, "update of another node", err, policy, "this ResourceSlice is of node \"other-node\"")
	wantRefused(t, "delete of another node", here.ResourceV1().ResourceSlices().Delete(ctx, other.Name, metav1.DeleteOptions{}), policy, "this ResourceSlice is of node \"other-node\"")
	if err := there.ResourceV1().ResourceSlices().Delete(ctx, other.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("delete of its own node: %v", err)
	}
	older := &resourcebeta.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Spec: resourcebeta.ResourceSliceSpec{
		NodeName: otherNode, Driver: workload.Driver, Pool: resourcebeta.ResourcePool{Name: otherNode, Generation: 1, ResourceSliceCount: 1},
	}}
	_, err = here.ResourceV1beta1().ResourceSlices().Create(ctx, older, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	wantRefused(t, "create for another node by an older API", err, policy, "this ResourceSlice is of node \"other-node\"")
	statusRestriction(t, ctx, here, there)
}

// statusRestriction gives the plugin's ServiceAccount every right to the status of claims that there is.
func statusRestriction(t *testing.T, ctx context.Context, here, there kubernetes.Interface) {
	const policy, name = "cleave-claim-status", "every-claim-status"
	meta := metav1.ObjectMeta{Name: name}
	_, err := env.kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims/status", "resourceclaims/binding"}, Verbs: []string{"update", "patch"}},
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims/driver"}, Verbs: []string{"arbitrary-node:update", "associated-node:update"}},
	}}, metav1.CreateOptions{})
	must(t, err)
	_, err = env.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "cleave-plugin", Namespace: namespace}},
	}, metav1.CreateOptions{})
	must(t, err)
	defer func() {
		ctx := context.Background()
		must(t, env.kube.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}))
		must(t, env.kube.RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{}))
	}()
	pod, err := env.kube.CoreV1().Pods(demo).Get(ctx, "one-gpu", metav1.GetOptions{})
	must(t, err)
	claim, err := env.kube.ResourceV1().ResourceClaims(demo).Get(ctx, *pod.Status.ResourceClaimStatuses[0].ResourceClaimName, metav1.GetOptions{})
	must(t, err)
	result := claim.Status.Allocation.Devices.Results[0]
	write := func(client kubernetes.Interface, change func(*resourceapi.ResourceClaimStatus)) error {
		next := claim.DeepCopy()
		next.ResourceVersion = "" // whatever the plugin has written meanwhile
		next.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: result.Driver, Pool: result.Pool, Device: result.Device}}
		if change != nil {
			change(&next.Status)
		}
		_, err := client.ResourceV1().ResourceClaims(demo).UpdateStatus(ctx, next, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// The new rights take a moment to be known.
	must(t, workload.Until(ctx, "the plugin's right to write the status of its device", func(context.Context) (bool, string, error) {
		err := write(here, nil)
		return err == nil, fmt.Sprint(err), nil
	}))
	wantRefused(t, "status from another node", write(there, nil), policy, "the plugin of node \"other-node\" may write the status of its own devices only")
	wantRefused(t, "reservation", write(here, func(s *resourceapi.ResourceClaimStatus) { s.ReservedFor[0].UID = "other" }), policy, "may not change what a claim is allocated and who uses it")
}

func secretsAreSafe(t *testing.T, ctx context.Context) {
	_, err := env.kube.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "password"}}, metav1.CreateOptions{})
	must(t, err)
	plugin := as(t, ctx, podOf(t, ctx, "plugin"))
	if _, err := plugin.ResourceV1().ResourceClaims(demo).List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatalf("the token is not the plugin's: %v", err)
	}
	for what, err := range map[string]error{
		"read a Secret": errOf(plugin.CoreV1().Secrets(namespace).Get(ctx, "password", metav1.GetOptions{})),
		"list Secrets":  errOf(plugin.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})),
		"list pods":     errOf(plugin.CoreV1().Pods("").List(ctx, metav1.ListOptions{})),
		"label its node": errOf(plugin.CoreV1().Nodes().UpdateStatus(ctx,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: env.cluster.NodeName()}}, metav1.UpdateOptions{})),
		"read another DaemonSet": errOf(plugin.AppsV1().DaemonSets(namespace).Get(ctx, "cleave-mps", metav1.GetOptions{})),
		"delete a claim":         plugin.ResourceV1().ResourceClaims(demo).Delete(ctx, "any", metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want it forbidden", what, err)
		}
	}
	must(t, env.kube.CoreV1().Secrets(namespace).Delete(ctx, "password", metav1.DeleteOptions{}))
	supervisor := podOf(t, ctx, "mps")
	for _, v := range supervisor.Spec.Volumes {
		if v.Projected != nil {
			t.Errorf("the supervisor's pod has the volume %s, which may hold a token", v.Name)
		}
	}
}

// parameters are handed to the API server and to the plugin's own decoder, which have to agree.
var parameters = []string{
	`{"timeSlice":{"interval":"Long"}}`,
	`{"timeSlice":{}}`,
	`{"timeSlice":{"interval":""}}`,
	`{"timeSlice":{"interval":"long"}}`,
	`{"timeSlice":{"interval":3}}`,
	`{"timeSlice":{"seconds":3}}`,
	`{"timeSlice":null}`,
	`{"timeSlice":null,"mps":{}}`,
	`{"timeSlice":{"interval":null}}`,
	`{}`,
	`{"mps":{}}`,
	`{"mps":{},"timeSlice":{}}`,
	`{"mps":{"activeThreadPercentage":1}}`,
	`{"mps":{"activeThreadPercentage":100,"pinnedDeviceMemoryLimit":"36Gi","priority":"BelowNormal"}}`,
	`{"mps":{"activeThreadPercentage":null,"priority":null,"pinnedDeviceMemoryLimit":null}}`,
	`{"mps":{"activeThreadPercentage":0}}`,
	`{"mps":{"activeThreadPercentage":-1}}`,
	`{"mps":{"activeThreadPercentage":101}}`,
	`{"mps":{"activeThreadPercentage":33.5}}`,
	`{"mps":{"activeThreadPercentage":"50"}}`,
	`{"mps":{"pinnedDeviceMemoryLimit":"1Mi"}}`,
	`{"mps":{"pinnedDeviceMemoryLimit":1048576}}`,
	`{"mps":{"pinnedDeviceMemoryLimit":"1023Ki"}}`,
	`{"mps":{"pinnedDeviceMemoryLimit":"-4Gi"}}`,
	`{"mps":{"pinnedDeviceMemoryLimit":0}}`,
	`{"mps":{"pinnedDeviceMemoryLimit":"much"}}`,
	`{"mps":{"pinnedDeviceMemoryLimit":"1.5Gi"}}`,
	`{"mps":{"priority":"High"}}`,
	`{"mps":{"priority":""}}`,
	`{"mps":{"cores":50}}`,
	`{"mps":[]}`,
	`{"mps":"all"}`,
	`{"MPS":{}}`,
	`{"mps":{},"more":true}`,
	`{"kind":"GpuConfig","mps":{}}`,
	`{"kind":"","mps":{}}`,
	`{"kind":7,"mps":{}}`,
	`{"apiVersion":"gpu.cleave.dev/v1","mps":{}}`,
	`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`,
}

// withType fills in what parameters do not say.
func withType(t *testing.T, text string) []byte {
	t.Helper()
	fields := map[string]json.RawMessage{"apiVersion": json.RawMessage(`"gpu.cleave.dev/v1alpha1"`), "kind": json.RawMessage(`"ShareConfig"`)}
	must(t, json.Unmarshal([]byte(text), &fields))
	data, err := json.Marshal(fields)
	must(t, err)
	return data
}

// opaque is configuration for a driver.
func opaque(driver string, raw []byte) resourceapi.DeviceConfiguration {
	return workload.Parameters(driver, raw)
}

func ask(class string, change func(*resourceapi.ExactDeviceRequest)) resourceapi.ResourceClaimSpec {
	spec := workload.ClaimSpec(class, 0)
	spec.Devices.Requests[0].Exactly.AllocationMode = "" // the API's defaults
	if change != nil {
		change(spec.Devices.Requests[0].Exactly)
	}
	return spec
}

// submit tries to create a claim, a template and, for its configuration, a class; they have to get the same answer.
func submit(t *testing.T, ctx context.Context, spec resourceapi.ResourceClaimSpec) error {
	t.Helper()
	meta, opts := metav1.ObjectMeta{GenerateName: "test-"}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	_, claim := env.kube.ResourceV1().ResourceClaims(demo).Create(ctx, &resourceapi.ResourceClaim{ObjectMeta: meta, Spec: spec}, opts)
	_, template := env.kube.ResourceV1().ResourceClaimTemplates(demo).Create(ctx,
		&resourceapi.ResourceClaimTemplate{ObjectMeta: meta, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}, opts)
	if (claim == nil) != (template == nil) {
		t.Errorf("a claim gets %v, its template %v", claim, template)
	}
	if len(spec.Devices.Config) > 0 {
		class := &resourceapi.DeviceClass{ObjectMeta: meta}
		for _, c := range spec.Devices.Config {
			class.Spec.Config = append(class.Spec.Config, resourceapi.DeviceClassConfiguration{DeviceConfiguration: c.DeviceConfiguration})
		}
		if _, err := env.kube.ResourceV1().DeviceClasses().Create(ctx, class, opts); (claim == nil) != (err == nil) {
			t.Errorf("a claim gets %v, a class with its parameters %v", claim, err)
		}
	}
	return claim
}

func claimAdmission(t *testing.T, ctx context.Context) {
	const policy = "cleave-claims"
	for _, text := range parameters {
		raw := withType(t, text)
		spec := ask("mine.example.com", nil) // parameters of either tier may fit it
		spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: opaque(workload.Driver, raw)}}
		_, want := v1alpha1.DecodeParameters(raw)
		got := submit(t, ctx, spec)
		if (want == nil) != (got == nil) {
			t.Errorf("%s: the API server says %v, the plugin %v", raw, got, want)
		}
		if got != nil && !strings.Contains(got.Error(), policy) {
			t.Errorf("%s: refused by another: %v", raw, got)
		}
		// Others' parameters are none of ours.
		spec.Devices.Config[0].DeviceConfiguration = opaque("other.example.com", raw)
		if err := submit(t, ctx, spec); err != nil {
			t.Errorf("parameters of another driver %s: %v", raw, err)
		}
	}
	older := &resourcebeta.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Spec: resourcebeta.ResourceClaimSpec{Devices: resourcebeta.DeviceClaim{
		Requests: []resourcebeta.DeviceRequest{{Name: "gpu", DeviceClassName: "mps.cleave.dev", Count: 2}},
	}}}
	_, err := env.kube.ResourceV1beta1().ResourceClaims(demo).Create(ctx, older, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	wantRefused(t, "two shares by an older API", err, policy, "can have one device only")
	capacity := func(amount string) func(*resourceapi.ExactDeviceRequest) {
		return func(r *resourceapi.ExactDeviceRequest) {
			r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(amount)}}
		}
	}
	two := func(r *resourceapi.ExactDeviceRequest) { r.Count = 2 }
	all := func(r *resourceapi.ExactDeviceRequest) { r.AllocationMode = resourceapi.DeviceAllocationModeAll }
	choice := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "part", DeviceClassName: "mig.cleave.dev"}, {Name: "share", DeviceClassName: "mps.cleave.dev", Count: 2},
	}}}}}
	for what, tt := range map[string]struct {
		spec resourceapi.ResourceClaimSpec
		says string // empty: let through
	}{
		"memory":                      {ask("mps.cleave.dev", capacity("20Gi")), ""},
		"negative memory":             {ask("mps.cleave.dev", capacity("-20Gi")), "a capacity of zero or less"},
		"no memory":                   {ask("timeslice.cleave.dev", capacity("0")), "a capacity of zero or less"},
		"no memory of another driver": {ask("other.example.com", capacity("0")), ""},
		"two shares by MPS":           {ask("mps.cleave.dev", two), "can have one device only"},
		"all shares by MPS":           {ask("mps.cleave.dev", all), "can have one device only"},
		"two shares in time":          {ask("timeslice.cleave.dev", two), ""},
		"two GPUs":                    {ask("gpu.cleave.dev", two), ""},
		"two shares as a choice":      {choice, "can have one device only"},
	} {
		err := submit(t, ctx, tt.spec)
		if tt.says == "" && err != nil {
			t.Errorf("%s: %v", what, err)
		} else if tt.says != "" {
			wantRefused(t, what, err, policy, tt.says)
		}
	}
}
