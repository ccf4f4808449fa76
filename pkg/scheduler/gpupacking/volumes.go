// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/component-helpers/storage/volume"
)

// volumes are where those of a pod can be used, for each.
type volumes []places

// places are the nodes that match one of some selectors. Local volumes are mostly of one node, by its host name.
type places struct {
	hosts     map[string]bool
	selectors []*nodeaffinity.NodeSelector
}

// noProvisioner is the provisioner of classes whose volumes exist before their claims, as local ones do
// (https://kubernetes.io/docs/concepts/storage/storage-classes/#local).
const noProvisioner = "kubernetes.io/no-provisioner"

// volumeListers are what volumes are read from. They are made before the informers start.
type volumeListers struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

func newVolumeListers(all informers.SharedInformerFactory) volumeListers {
	core := all.Core().V1()
	return volumeListers{
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: all.Storage().V1().StorageClasses().Lister(),
	}
}

// of are those that a pod has, or that are there for its claims. What is not known yet limits nothing: VolumeBinding has the last
// word.
func (l *volumeListers) of(pod *corev1.Pod) (found volumes) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = pod.Name + "-" + v.Name
		default:
			continue
		}
		if p, limited := l.placesOf(pod.Namespace, name); limited {
			found = append(found, p)
		}
	}
	return found
}

// placesOf are those of the volume that a claim has, or of those that it may get; not limited where it may be used anywhere.
func (l *volumeListers) placesOf(namespace, name string) (found places, limited bool) {
	claim, err := l.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return places{}, false
	}
	if claim.Spec.VolumeName != "" {
		bound, err := l.volumes.Get(claim.Spec.VolumeName)
		return found, err == nil && found.add(bound)
	}
	className := volume.GetPersistentVolumeClaimClass(claim)
	class, err := l.classes.Get(className)
	if err != nil || class.Provisioner != noProvisioner {
		return places{}, false
	}
	all, err := l.volumes.List(labels.Everything())
	if err != nil {
		return places{}, false
	}
	selector, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
	if err != nil || claim.Spec.Selector == nil {
		selector = labels.Everything()
	}
	for _, v := range all {
		if volume.GetPersistentVolumeClass(v) == className && selector.Matches(labels.Set(v.Labels)) && mayBind(v, claim) && !found.add(v) {
			return places{}, false
		}
	}
	return found, true
}

// mayBind reports whether a volume is free for a claim, as far as its size, modes and phase say.
func mayBind(v *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	r := v.Spec.ClaimRef
	if r == nil && v.Status.Phase != corev1.VolumeAvailable && v.Status.Phase != "" {
		return false
	}
	if r != nil && (r.Namespace != claim.Namespace || r.Name != claim.Name || r.UID != "" && r.UID != claim.UID) {
		return false
	}
	mode := func(m *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
		if m == nil {
			return corev1.PersistentVolumeFilesystem
		}
		return *m
	}
	has, wants := v.Spec.Capacity[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	lacks := func(m corev1.PersistentVolumeAccessMode) bool { return !slices.Contains(v.Spec.AccessModes, m) }
	return mode(v.Spec.VolumeMode) == mode(claim.Spec.VolumeMode) && has.Cmp(wants) >= 0 && !slices.ContainsFunc(claim.Spec.AccessModes, lacks)
}

// add adds those of a volume. It reports whether there is a limit.
func (p *places) add(v *corev1.PersistentVolume) bool {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return false
	}
	terms := v.Spec.NodeAffinity.Required.NodeSelectorTerms
	if len(terms) == 1 && len(terms[0].MatchFields) == 0 && len(terms[0].MatchExpressions) == 1 {
		if e := terms[0].MatchExpressions[0]; e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn {
			if p.hosts == nil {
				p.hosts = map[string]bool{}
			}
			for _, host := range e.Values {
				p.hosts[host] = true
			}
			return true
		}
	}
	s, err := nodeaffinity.NewNodeSelector(v.Spec.NodeAffinity.Required)
	if err != nil {
		return false
	}
	p.selectors = append(p.selectors, s)
	return true
}

// reach reports whether all volumes can be used on a node.
func (v volumes) reach(node *corev1.Node) bool {
	return !slices.ContainsFunc(v, func(p places) bool {
		return !p.hosts[node.Labels[corev1.LabelHostname]] &&
			!slices.ContainsFunc(p.selectors, func(s *nodeaffinity.NodeSelector) bool { return s.Match(node) })
	})
}
