// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// sharesSince is the first release of Kubernetes whose allocator counts what shares of a GPU consume: before, it forgot the counters
// of a device that several claims may have as soon as one had it, and allocated the GPU whole or as partitions besides
// (kubernetes#139034, backported to 1.36.2).
var sharesSince = version.MustParseGeneric("1.36.2")

// countsSince is the first release that keeps counters and shares by default (kube_features.go: DRAPartitionableDevices and
// DRAConsumableCapacity are beta, and on).
var countsSince = version.MustParseGeneric("1.36.0")

const (
	// releaseTimeout bounds the question for the release, and all that is asked on behalf of people.
	releaseTimeout = 5 * time.Second
	// dryRunTimeout bounds the question what the API server keeps. Admission webhooks have a say in it, each of which may take 30 s
	// (ValidatingWebhook.timeoutSeconds of admissionregistration.k8s.io/v1): where their failures are ignored, slices are written then.
	dryRunTimeout = 35 * time.Second
	// unansweredAtMost is for how long an API server that tells its release is waited for to answer that question: nothing is
	// prepared or published meanwhile.
	unansweredAtMost = 30 * time.Second
)

// Counted is what a cluster counts; nil where it does.
type Counted struct {
	// Counters is why it keeps no counters, by which the devices of a GPU exclude each other.
	Counters error
	// Shares is why it cannot have devices that several claims share, SharesBeside why it does not count them together with what
	// else a GPU offers.
	Shares, SharesBeside error
}

// Missing is what the cluster does not count.
func (c Counted) Missing() error { return errors.Join(c.Counters, c.Shares, c.SharesBeside) }

// same reports whether two answers are.
func (c Counted) same(o Counted) bool { return text(c.Missing()) == text(o.Missing()) }

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Counting finds out what the cluster counts, and follows it: API servers are upgraded, and their feature gates are changed. The
// release of the scheduler cannot be asked; the API server's stands for it.
type Counting struct {
	client        kubernetes.Interface
	serverVersion func(context.Context) (*apiversion.Info, error)
	driver, node  string
	// wake has the API server asked at once: a slice came back without a field.
	wake    chan struct{}
	counted atomic.Pointer[Counted]
}

// NewCounting asks on behalf of a driver on a node.
func NewCounting(client kubernetes.Interface, driver, node string) *Counting {
	c := &Counting{
		client: client, serverVersion: client.Discovery().ServerVersionWithContext, driver: driver, node: node, wake: make(chan struct{}, 1),
	}
	c.counted.Store(&Counted{})
	return c
}

// AskCounted asks once, on behalf of people. Who may not create slices learns what the release says alone.
func AskCounted(ctx context.Context, client kubernetes.Interface, driver string) (Counted, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	c := NewCounting(client, driver, "cleave")
	_, err := c.ask(ctx)
	return c.Counted(), err
}

// Counted is the last answer.
func (c *Counting) Counted() Counted { return *c.counted.Load() }

// Doubt has the API server asked at once. It does not wait.
func (c *Counting) Doubt() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Wait asks until the API server has answered, or ctx ends. An API server that tells its release and nothing else is taken to count
// what its release does, until Follow has an answer.
func (c *Counting) Wait(ctx context.Context, retry time.Duration) error {
	logger := klog.FromContext(ctx)
	tick := time.NewTicker(retry)
	defer tick.Stop()
	since := time.Time{} // when it began to leave the question unanswered
	for reported := false; ; reported = true {
		began := time.Now()
		_, err := c.ask(ctx)
		if err == nil {
			return nil
		}
		unanswered := (*unansweredError)(nil)
		if errors.As(err, &unanswered) && since.IsZero() {
			since = began
		} else if unanswered == nil {
			since = time.Time{}
		}
		if unanswered != nil && ctx.Err() == nil && time.Since(since) >= unansweredAtMost {
			logger.Error(err, "The API server does not answer what it counts; that of its release is taken until it does")
			now := counts(unanswered.release, keptBy(unanswered.release))
			c.counted.Store(&now)
			return nil
		}
		if !reported {
			logger.Error(err, "Waiting for the API server", "retryEvery", retry)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server: %w (last attempt: %w)", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Follow asks every so often, and calls changed when the answer is another, until ctx ends.
func (c *Counting) Follow(ctx context.Context, every time.Duration, changed func()) {
	for {
		timer := time.NewTimer(wait.Jitter(every, 0.2)) // a thousand nodes started at once
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.wake:
			timer.Stop()
		case <-timer.C:
		}
		switch news, err := c.ask(ctx); {
		case err != nil:
			klog.FromContext(ctx).V(2).Info("Could not ask the API server what it counts; the last answer holds", "reason", err.Error())
		case news:
			changed()
		}
	}
}

// ask asks once, and reports whether the answer is another than before.
func (c *Counting) ask(ctx context.Context) (news bool, err error) {
	release, err := c.release(ctx)
	if err != nil {
		return false, err
	}
	kept, err := c.keeps(ctx, release)
	if err != nil {
		return false, err
	}
	now := counts(release, kept)
	return !c.counted.Swap(&now).same(now), nil
}

// counts is what a cluster counts, by its release and by what its API server keeps of a device.
func counts(release *version.Version, kept *resourceapi.Device) (now Counted) {
	if len(kept.ConsumesCounters) == 0 {
		now.Counters = fmt.Errorf("GPUs are offered in one tier each, as the API server (Kubernetes %s) drops counters and a GPU could be "+
			"allocated twice: turn on the feature gate DRAPartitionableDevices of API server and scheduler", release)
	}
	if !release.AtLeast(sharesSince) {
		now.SharesBeside = fmt.Errorf("GPUs are shared only where their policy has no other tier, as the scheduler of Kubernetes %s could "+
			"allocate a GPU as shares and whole at once: use %s or later", release, sharesSince)
	}
	if kept.AllowMultipleAllocations == nil || kept.Capacity[probe].RequestPolicy == nil {
		now.Shares = fmt.Errorf("GPUs are not shared, as the API server (Kubernetes %s) drops what shares need: turn on the feature gate "+
			"DRAConsumableCapacity of API server and scheduler", release)
	}
	return now
}

// release asks the API server which release it is.
func (c *Counting) release(ctx context.Context) (*version.Version, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	info, err := c.serverVersion(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the API server for its release: %w", err)
	}
	release, err := version.ParseGeneric(info.GitVersion) // vendors append to it: v1.35.2-eks-1
	if err != nil {
		return nil, fmt.Errorf("read the release of the API server: %w", err)
	}
	return release, nil
}

// probe names what the API server is asked about.
const probe = "counting"

// probeDevice is a device that is counted in all ways.
func probeDevice() *resourceapi.Device {
	shared, one := true, resource.MustParse("1")
	return &resourceapi.Device{
		Name: probe, AllowMultipleAllocations: &shared,
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			probe: {Value: one, RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &one, ValidValues: []resource.Quantity{one}}},
		},
		ConsumesCounters: []resourceapi.DeviceCounterConsumption{{
			CounterSet: probe, Counters: map[string]resourceapi.Counter{probe: {Value: one}},
		}},
	}
}

// keptBy is what a release keeps of probeDevice by default.
func keptBy(release *version.Version) *resourceapi.Device {
	if release.AtLeast(countsSince) {
		return probeDevice()
	}
	return &resourceapi.Device{}
}

// keeps has the API server show what it would store of probeDevice; nothing is stored. With a feature
// gate off, it drops the fields (kubernetes pkg/registry/resource/resourceslice/strategy.go, dropDisabledFields). Before 1.35
// counters were in the slice of the devices: such an API server refuses this one, and would refuse those of GPUs. Where the question
// itself is refused, as by a webhook that knows no dry runs, the gates are taken to be those of the release.
func (c *Counting) keeps(ctx context.Context, release *version.Version) (kept *resourceapi.Device, err error) {
	ctx, cancel := context.WithTimeout(ctx, dryRunTimeout)
	defer cancel()
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: c.node + "-" + probe + "-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: c.driver, NodeName: &c.node, Devices: []resourceapi.Device{*probeDevice()},
			Pool: resourceapi.ResourcePool{Name: c.node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	would, err := c.client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case refusesFields(err):
		klog.FromContext(ctx).V(2).Info("The API server refuses counters", "reason", err.Error())
		return &resourceapi.Device{}, nil
	case isRefusal(err):
		klog.FromContext(ctx).Info("The API server does not answer what it counts; that of its release is taken", "reason", err.Error())
		return keptBy(release), nil
	case isUnanswered(err):
		return nil, &unansweredError{release, fmt.Errorf("ask the API server what it counts: %w", err)}
	case err != nil:
		return nil, fmt.Errorf("ask the API server what it counts: %w", err)
	case len(would.Spec.Devices) != 1:
		return nil, fmt.Errorf("ask the API server what it counts: it answers with %d devices, not 1", len(would.Spec.Devices))
	}
	return &would.Spec.Devices[0], nil
}

// unansweredError is that of an API server that tells its release and does not answer what it keeps.
type unansweredError struct {
	release *version.Version
	error
}

func (e *unansweredError) Unwrap() error { return e.error }

// isUnanswered reports whether an API server, or what is before or behind it, has not answered in time.
func isUnanswered(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &status) && status.Status().Code > http.StatusInternalServerError
}

// refusesFields reports whether an API server has found the fields of counters invalid. Policies refuse slices as invalid, too, and name
// no field (ValidatingAdmissionPolicy, reason Invalid by default): that of Cleave's chart does while the driver's name changes.
func refusesFields(err error) bool {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return strings.Contains(c.Field, "onsumesCounters") || strings.Contains(c.Field, "allowMultipleAllocations") ||
			strings.Contains(c.Field, "requestPolicy")
	})
}

// isRefusal reports whether an API server has answered that it does not do what it is asked, which it would again. An internal error is
// that of a webhook which fails.
func isRefusal(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code <= http.StatusInternalServerError
}
