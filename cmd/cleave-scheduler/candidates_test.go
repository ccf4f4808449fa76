// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kube-scheduler/framework"
	scheduler "k8s.io/kubernetes/pkg/scheduler/framework"
)

// TestPostFilter_Ended: where GPUPacking found no room, PreFilter of DynamicResources did not run, and others may still evict pods.
func TestPostFilter_Ended(t *testing.T) {
	p := &candidatePlugin{} // without DynamicResources, which is not asked
	if _, status := p.PostFilter(t.Context(), scheduler.NewCycleState(), &corev1.Pod{}, nil); status.Code() != framework.Unschedulable {
		t.Errorf("got %v, want Unschedulable", status)
	}
}

func TestDynamicResourcesArgs(t *testing.T) {
	for name, tt := range map[string]struct {
		arguments       runtime.Object
		filter, binding time.Duration
		says            string
	}{
		"none":          {filter: 10 * time.Second, binding: 10 * time.Minute},
		"empty":         {arguments: &runtime.Unknown{}, filter: 10 * time.Second, binding: 10 * time.Minute},
		"as YAML":       {arguments: &runtime.Unknown{Raw: []byte("filterTimeout: 3s\n")}, filter: 3 * time.Second, binding: 10 * time.Minute},
		"as JSON":       {arguments: &runtime.Unknown{Raw: []byte(`{"filterTimeout":"0s","bindingTimeout":"5s"}`)}, binding: 5 * time.Second},
		"a typo":        {arguments: &runtime.Unknown{Raw: []byte(`{"filterTimeouts":"3s"}`)}, says: `unknown field "filterTimeouts"`},
		"not YAML":      {arguments: &runtime.Unknown{Raw: []byte("{")}, says: "yaml"},
		"another's":     {arguments: &configv1.NodeAffinityArgs{}, says: "NodeAffinityArgs"},
		"not durations": {arguments: &runtime.Unknown{Raw: []byte(`{"filterTimeout":3}`)}, says: "filterTimeout"},
	} {
		t.Run(name, func(t *testing.T) {
			args, err := dynamicResourcesArgs(tt.arguments)
			if tt.says != "" {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Fatalf("got %+v and the error %v, want one that says %q", args, err, tt.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if args.FilterTimeout.Duration != tt.filter || args.BindingTimeout.Duration != tt.binding {
				t.Errorf("got the timeouts %v and %v, want %v and %v", args.FilterTimeout, args.BindingTimeout, tt.filter, tt.binding)
			}
		})
	}
}
