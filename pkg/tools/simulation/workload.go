// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/packing"
)

// Workload lists the requests of pods over a time.
type Workload struct {
	// Duration of the simulation.
	Duration metav1.Duration `json:"duration"`
	// Pods by kind.
	Pods []Pods `json:"pods"`
}

// Pods of one kind, which arrive at random times.
type Pods struct {
	// Name of the kind in the results.
	Name string `json:"name"`
	// DeviceClassName and Count are the request of each pod. Count is 1 by default.
	DeviceClassName string `json:"deviceClassName"`
	Count           int64  `json:"count,omitempty"`
	// Running is how many run at a time, on average, if none is rejected.
	Running int `json:"running"`
	// Lifetime of a pod, on average. Lifetimes are exponentially distributed.
	Lifetime metav1.Duration `json:"lifetime"`
	// Placement is the strategy of these pods where cleave-scheduler places them; empty for the one that is simulated.
	Placement packing.Strategy `json:"placement,omitempty"`
	// Priority of the pods. If any kind has one, pods without a place wait for one, the most important first; others have 0.
	Priority *int32 `json:"priority,omitempty"`
}

// Limits of a workload.
const (
	maxBytes    = 1 << 20
	maxKinds    = 100
	maxRunning  = 100_000
	maxCount    = 64
	maxArrivals = 1_000_000
)

// Decode reads a workload strictly: unknown fields and values out of range are errors.
func Decode(data []byte) (*Workload, error) {
	if len(data) > maxBytes {
		return nil, fmt.Errorf("decode the workload: it has %d bytes, and may have %d", len(data), maxBytes)
	}
	switch documents, err := v1alpha1.Documents(data); {
	case err != nil:
		return nil, fmt.Errorf("decode the workload: %w", err)
	case len(documents) > 1:
		return nil, fmt.Errorf("decode the workload: there are several documents, the second at line %d: simulate one", documents[1].Line)
	}
	w := &Workload{}
	if err := yaml.UnmarshalStrict(data, w, yaml.DisallowUnknownFields); err != nil {
		return nil, fmt.Errorf("decode the workload: %w", err)
	}
	for i := range w.Pods {
		if w.Pods[i].Count == 0 {
			w.Pods[i].Count = 1
		}
	}
	if err := w.validate().ToAggregate(); err != nil {
		return nil, fmt.Errorf("check the workload: %w", err)
	}
	return w, nil
}

func (w *Workload) validate() field.ErrorList {
	var errs field.ErrorList
	if w.Duration.Duration <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("duration"), w.Duration.Duration.String(), "must be positive, as in 168h"))
	}
	pods := field.NewPath("pods")
	if len(w.Pods) == 0 {
		errs = append(errs, field.Required(pods, "there is nothing to place"))
	}
	if len(w.Pods) > maxKinds {
		return append(errs, field.TooMany(pods, len(w.Pods), maxKinds))
	}
	seen := map[string]bool{}
	arrivals := 0.0
	for i := range w.Pods {
		p, at := &w.Pods[i], pods.Index(i)
		errs = append(errs, p.validate(at)...)
		if seen[p.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		seen[p.Name] = true
		arrivals += p.arrivals(w.Duration.Duration)
	}
	if len(errs) == 0 && arrivals > maxArrivals {
		errs = append(errs, field.Invalid(field.NewPath("duration"), w.Duration.Duration.String(),
			fmt.Sprintf("%.0f pods would arrive, and %d may: shorten it, or lengthen lifetimes", arrivals, maxArrivals)))
	}
	return errs
}

func (p *Pods) validate(at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, problem := range validation.IsDNS1123Label(p.Name) {
		errs = append(errs, field.Invalid(at.Child("name"), p.Name, problem))
	}
	if p.DeviceClassName == "" {
		errs = append(errs, field.Required(at.Child("deviceClassName"), "as in mig-1g.10gb.cleave.dev"))
	}
	if p.Count < 1 || p.Count > maxCount {
		errs = append(errs, field.Invalid(at.Child("count"), p.Count, fmt.Sprintf("must be 1 to %d", maxCount)))
	}
	if p.Running < 1 || p.Running > maxRunning {
		errs = append(errs, field.Invalid(at.Child("running"), p.Running, fmt.Sprintf("must be 1 to %d", maxRunning)))
	}
	if p.Lifetime.Duration <= 0 {
		errs = append(errs, field.Invalid(at.Child("lifetime"), p.Lifetime.Duration.String(), "must be positive, as in 6h"))
	}
	if p.Placement != "" {
		if _, err := packing.ParseStrategy(string(p.Placement)); err != nil {
			errs = append(errs, field.NotSupported(at.Child("placement"), p.Placement, packing.Strategies()))
		}
	}
	return errs
}

// arrivals is how many pods arrive in a time, on average, those at its beginning included.
func (p *Pods) arrivals(in time.Duration) float64 {
	if p.Lifetime.Duration <= 0 {
		return 0
	}
	return float64(p.Running) * (1 + math.Max(0, in.Hours()/p.Lifetime.Hours()))
}
