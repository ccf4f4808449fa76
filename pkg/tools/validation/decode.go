// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/tools/admission"
	"github.com/cleave-dra/cleave/pkg/tools/podfile"
)

// Decoded are the objects of a file that are about devices.
type Decoded struct {
	Claims    []*resourceapi.ResourceClaim
	Templates []*resourceapi.ResourceClaimTemplate
	Classes   []*resourceapi.DeviceClass
	Pods      []Pod
	// PassedOver are the other objects, such as "Namespace team".
	PassedOver []string
	rules      admission.Rules
}

// Pod is a pod of a file, or one that an object of it would create.
type Pod struct {
	podfile.Pod
	// Kind of the object.
	Kind string
	// Several is set where the object has other pods that ask for devices.
	Several bool
}

// Decode reads a file strictly. What the API server refuses of claims, templates, classes and the devices of pods is an error, by itself or
// by Cleave's rules: the allocator is made for objects that it has admitted.
func Decode(data []byte, rules admission.Rules) (*Decoded, error) {
	documents, err := v1alpha1.Documents(data)
	if err != nil {
		return nil, err
	}
	d := &Decoded{rules: rules}
	for _, document := range documents {
		h := &header{}
		err := errors.Join(document.Err, json.UnmarshalCaseSensitivePreserveInts(document.JSON, h))
		if err == nil {
			err = d.add(h, document.JSON)
		}
		if err != nil {
			return nil, fmt.Errorf("document at line %d: %w", document.Line, err)
		}
	}
	return d, nil
}

// add takes up an object, or the items of a List.
func (d *Decoded) add(h *header, raw []byte) error {
	switch {
	case h.APIVersion == "" || h.Kind == "":
		return errors.New("it has no apiVersion or no kind: it is no Kubernetes object")
	case h.isList():
		for _, item := range h.Items {
			of := &header{}
			if err := json.UnmarshalCaseSensitivePreserveInts(item, of); err != nil {
				return fmt.Errorf("%s: %w", h.name(), err)
			}
			if of.isList() {
				return fmt.Errorf("%s: a List has another one", h.name())
			}
			if err := d.add(of, item); err != nil {
				return err
			}
		}
		return nil
	case isClaimOrClass(h):
		object, err := decodeStrictly(h.Kind, raw)
		if err == nil {
			err = wrap(h.name(), append(checkAPI(object), d.rules.Check(object)...))
		}
		d.sort(object)
		return err
	case isNearly(h) != "":
		return fmt.Errorf("%s: %s", h.name(), isNearly(h))
	}
	pods, err := podsOf(h, raw)
	if err != nil {
		return err
	}
	for i := range pods {
		if err := errors.Join(pods[i].Unknown, pods[i].Check().ToAggregate()); err != nil {
			return fmt.Errorf("%s: %w", h.name(), err)
		}
	}
	if len(pods) == 0 {
		d.PassedOver = append(d.PassedOver, h.name())
	}
	d.Pods = append(d.Pods, pods...)
	return nil
}

func (d *Decoded) sort(object runtime.Object) {
	switch object := object.(type) {
	case *resourceapi.ResourceClaim:
		d.Claims = append(d.Claims, object)
	case *resourceapi.ResourceClaimTemplate:
		d.Templates = append(d.Templates, object)
	case *resourceapi.DeviceClass:
		d.Classes = append(d.Classes, object)
	}
}

// podsOf are the pods of an object that ask for devices.
func podsOf(h *header, raw []byte) ([]Pod, error) {
	found, err := podfile.In(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", h.name(), err)
	}
	var pods []Pod
	for _, p := range found {
		if podfile.Asks(&p.Spec) {
			pods = append(pods, Pod{Pod: p, Kind: h.Kind})
		}
	}
	for i := range pods {
		pods[i].Several = len(pods) > 1
	}
	return pods, nil
}

// wrap makes one error of those of an object.
func wrap(name string, errs field.ErrorList) error {
	if err := errs.ToAggregate(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
