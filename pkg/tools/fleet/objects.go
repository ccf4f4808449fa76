// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/tools/inspect"
)

// packedSlice is a ResourceSlice in compressed protobuf. Decoded, the slices of a node with eight H100 take 2 MB, packed 40 kB;
// a thousand nodes would need 2 GB.
type packedSlice struct {
	metav1.ObjectMeta
	driver, node, pool string
	data               []byte
}

// pack is the transformation of ResourceSlices. It may see its own results (cache.TransformFunc).
func pack(object any) (any, error) {
	slice, ok := object.(*resourceapi.ResourceSlice)
	if !ok {
		return object, nil
	}
	p := &packedSlice{
		ObjectMeta: metav1.ObjectMeta{Name: slice.Name, UID: slice.UID, ResourceVersion: slice.ResourceVersion, Generation: slice.Generation},
		driver:     slice.Spec.Driver, pool: slice.Spec.Pool.Name,
	}
	if slice.Spec.NodeName != nil {
		p.node = *slice.Spec.NodeName
	}
	bare := *slice
	bare.ManagedFields = nil
	raw, err := bare.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode ResourceSlice %s: %w", slice.Name, err)
	}
	if p.data, err = compress(raw); err != nil {
		return nil, fmt.Errorf("compress ResourceSlice %s: %w", slice.Name, err)
	}
	return p, nil
}

// compressors are reused, as each has tables of a megabyte.
var compressors sync.Pool

func compress(raw []byte) ([]byte, error) {
	var out bytes.Buffer
	w, ok := compressors.Get().(*flate.Writer)
	if ok {
		w.Reset(&out)
	} else {
		var err error
		if w, err = flate.NewWriter(&out, flate.BestSpeed); err != nil {
			return nil, err
		}
	}
	defer compressors.Put(w)
	_, err := w.Write(raw)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return bytes.Clone(out.Bytes()), nil
}

// maxSlice bounds a decoded slice; the API server admits less than two.
const maxSlice = 16 << 20

// unpack decodes a slice.
func (p *packedSlice) unpack() (*resourceapi.ResourceSlice, error) {
	raw, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(p.data)), maxSlice))
	if err != nil {
		return nil, fmt.Errorf("decompress ResourceSlice %s: %w", p.Name, err)
	}
	slice := &resourceapi.ResourceSlice{}
	if err := slice.Unmarshal(raw); err != nil {
		return nil, fmt.Errorf("decode ResourceSlice %s: %w", p.Name, err)
	}
	return slice, nil
}

// machine has the fields of a Node that pictures need.
type machine struct {
	metav1.ObjectMeta
	state, policy string
	cordoned      bool
	taints        []corev1.Taint
	// extended are the extended resources that device plugins advertise.
	extended corev1.ResourceList
}

func (m *machine) same(as any) bool {
	other, ok := as.(*machine)
	return ok && m.state == other.state && m.cordoned == other.cordoned && slices.Equal(m.hard(), other.hard()) &&
		maps.Equal(m.Labels, other.Labels) && equality.Semantic.DeepEqual(m.extended, other.extended)
}

// hard are the taints that keep away pods which do not tolerate them.
func (m *machine) hard() []string {
	var all []string
	for i := range m.taints {
		if t := &m.taints[i]; t.Effect != corev1.TaintEffectPreferNoSchedule {
			all = append(all, t.ToString())
		}
	}
	return all
}

// shrinkNode is the transformation of Nodes.
func shrinkNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	m := &machine{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels},
		state:      inspect.NodeState(node), policy: node.Labels[v1alpha1.PolicyLabel],
		cordoned: node.Spec.Unschedulable, taints: node.Spec.Taints, extended: extendedResources(node.Status.Allocatable),
	}
	return m, nil
}

// extendedResources are those of a list whose names have a domain, and of which there is some.
func extendedResources(all corev1.ResourceList) corev1.ResourceList {
	some := corev1.ResourceList{}
	for name, amount := range all {
		if strings.Contains(string(name), "/") && !amount.IsZero() {
			some[name] = amount
		}
	}
	return some
}

// shrinkClaim is the transformation of ResourceClaims.
func shrinkClaim(object any) (any, error) {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok {
		return object, nil
	}
	claim.ManagedFields = nil
	delete(claim.Annotations, corev1.LastAppliedConfigAnnotation)
	return claim, nil
}
