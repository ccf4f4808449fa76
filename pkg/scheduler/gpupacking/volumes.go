// SPDX-License-Identifier: Apache-2.0

package gpupacking

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// volumes are where those of a pod can be used: for each, a node must match one of the selectors. Local volumes are on one node.
type volumes [][]*nodeaffinity.NodeSelector

// noProvisioner is the provisioner of classes whose volumes exist before their claims, as local ones do
// (https://kubernetes.io/docs/concepts/storage/storage-classes/#local).
const noProvisioner = "kubernetes.io/no-provisioner"

// volumeListers are what volumes are read from. They are asked for before the informers start.
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
		v, name := &pod.Spec.Volumes[i], ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = pod.Name + "-" + v.Name
		default:
			continue
		}
		if selectors := l.selectorsOf(pod.Namespace, name); selectors != nil {
			found = append(found, selectors)
		}
	}
	return found
}

// selectorsOf are those of the volume that a claim has, or of those that it may get; nil where it may be used anywhere.
func (l *volumeListers) selectorsOf(namespace, name string) []*nodeaffinity.NodeSelector {
	claim, err := l.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil
	}
	if claim.Spec.VolumeName != "" {
		volume, err := l.volumes.Get(claim.Spec.VolumeName)
		if err != nil {
			return nil
		}
		if s := selectorOf(volume); s != nil {
			return []*nodeaffinity.NodeSelector{s}
		}
		return nil
	}
	if claim.Spec.StorageClassName == nil {
		return nil
	}
	class, err := l.classes.Get(*claim.Spec.StorageClassName)
	if err != nil || class.Provisioner != noProvisioner {
		return nil
	}
	all, err := l.volumes.List(labels.Everything())
	if err != nil {
		return nil
	}
	selectors := []*nodeaffinity.NodeSelector{}
	for _, volume := range all {
		if !mayBind(volume, claim) {
			continue
		}
		s := selectorOf(volume)
		if s == nil {
			return nil
		}
		selectors = append(selectors, s)
	}
	return selectors
}

// mayBind reports whether a volume is free for a claim, as far as its class, size and access modes say.
func mayBind(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	if volume.Spec.StorageClassName != *claim.Spec.StorageClassName {
		return false
	}
	if r := volume.Spec.ClaimRef; r != nil && (r.Namespace != claim.Namespace || r.Name != claim.Name || r.UID != "" && r.UID != claim.UID) {
		return false
	}
	has, wants := volume.Spec.Capacity[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage]
	return has.Cmp(wants) >= 0 && !slices.ContainsFunc(claim.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return !slices.Contains(volume.Spec.AccessModes, m)
	})
}

// selectorOf is nil for a volume of all nodes.
func selectorOf(volume *corev1.PersistentVolume) *nodeaffinity.NodeSelector {
	if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return nil
	}
	s, err := nodeaffinity.NewNodeSelector(volume.Spec.NodeAffinity.Required)
	if err != nil {
		return nil
	}
	return s
}

// reach reports whether all volumes can be used on a node.
func (v volumes) reach(node *corev1.Node) bool {
	return !slices.ContainsFunc(v, func(selectors []*nodeaffinity.NodeSelector) bool {
		return !slices.ContainsFunc(selectors, func(s *nodeaffinity.NodeSelector) bool { return s.Match(node) })
	})
}
