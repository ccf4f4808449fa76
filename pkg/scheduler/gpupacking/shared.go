// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/kube-scheduler/framework"
)

// Shared is what the plugins of a scheduler share: one view of the cluster, so that each profile knows what the others reserve, and which
// pods may be evicted.
type Shared struct {
	mutex sync.Mutex
	of    informers.SharedInformerFactory
	last  *cluster
	rules map[string]*Rules // by the name of a profile
	// refused are the nodes on which preemption evicts nobody for a pod, since devices were last held for it.
	refused remembered[sets.Set[string]]
	// denied are those on which the API server does not let a pod be evicted for it.
	denied remembered[sets.Set[string]]
}

// clusterOf makes one cluster for all profiles.
func (s *Shared) clusterOf(ctx context.Context, handle framework.Handle) (*cluster, error) {
	all := handle.SharedInformerFactory()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.last != nil && s.of == all {
		return s.last, nil
	}
	made, err := newCluster(ctx, all, handle.ClientSet().Discovery())
	if err != nil {
		return nil, err
	}
	s.of, s.last = all, made
	w := newCollisionWatch(made, handle)
	made.changed = w.look
	go made.readAhead(ctx)
	go w.run(ctx)
	return made, nil
}

// current is the cluster, nil where no profile has GPUPacking.
func (s *Shared) current() *cluster {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.last
}

// Preempts notes that a profile has a plugin that evicts pods for devices, by rules.
func (s *Shared) Preempts(profile string, rules *Rules) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.rules == nil {
		s.rules = map[string]*Rules{}
	}
	s.rules[profile] = rules
}

// Evicts reports whether a profile has a plugin that evicts pods for devices.
func (s *Shared) Evicts(profile string) bool { return s.rulesOf(profile) != nil }

// rulesOf are those of a profile, nil where nobody is evicted for devices.
func (s *Shared) rulesOf(profile string) *Rules {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.rules[profile]
}

// rulesFor are those by which others are evicted for a pod of a profile; nil where nobody is.
func (s *Shared) rulesFor(profile string, pod *corev1.Pod) *Rules {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return nil
	}
	return s.rulesOf(profile)
}

// HasDevices reports whether drivers publish devices for a node.
func (s *Shared) HasDevices(node string) bool {
	c := s.current()
	if c == nil {
		return false
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return len(c.views[node]) > 0
}
