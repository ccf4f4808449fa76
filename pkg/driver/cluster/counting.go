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

	"github.com/cleave-dra/cleave/pkg/domain/counting"
)

const (
	// releaseTimeout bounds the query of the release, and all queries on behalf of people.
	releaseTimeout = 5 * time.Second
	// dryRunTimeout bounds the dry run that shows which fields the API server keeps. It involves admission webhooks, each of which
	// may take 30 s (ValidatingWebhook.timeoutSeconds of admissionregistration.k8s.io/v1): if their failures are ignored, slices
	// are written then.
	dryRunTimeout = 35 * time.Second
	// unansweredAtMost bounds the wait for the dry run once the API server has reported its release: nothing is prepared or
	// published meanwhile.
	unansweredAtMost = 30 * time.Second
	// askAgain is the time to the next query after one without an answer, at least; at most it is twice that.
	askAgain = 10 * time.Second
)

// Counting detects what the cluster counts, and follows changes: API servers are upgraded, and their feature gates are changed. The
// scheduler's release cannot be queried; the API server's is used instead.
type Counting struct {
	client        kubernetes.Interface
	serverVersion func(context.Context) (*apiversion.Info, error)
	driver, node  string
	// wake triggers an immediate query.
	wake    chan struct{}
	counted atomic.Pointer[counting.Counted]
	// answered is the release whose dry run was last answered; nil before the first answer.
	answered *version.Version
}

// NewCounting queries on behalf of a driver on a node.
func NewCounting(client kubernetes.Interface, driver, node string) *Counting {
	c := &Counting{
		client: client, serverVersion: client.Discovery().ServerVersionWithContext, driver: driver, node: node, wake: make(chan struct{}, 1),
	}
	c.counted.Store(&counting.Counted{})
	return c
}

// AskCounted queries once, on behalf of people. Without permission to create slices, the answer is based on the release alone.
func AskCounted(ctx context.Context, client kubernetes.Interface, driver string) (counting.Counted, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	c := NewCounting(client, driver, "cleave")
	_, err := c.ask(ctx)
	return c.Counted(), err
}

// Counted is the last answer.
func (c *Counting) Counted() counting.Counted { return *c.counted.Load() }

// Doubt triggers an immediate query of the API server: a slice came back without a field, or the API server was away and may have
// started anew. It does not wait.
func (c *Counting) Doubt() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Wait queries until the API server has answered, or ctx ends. If it reports only its release, it is assumed to count like its
// release, until Follow has an answer.
func (c *Counting) Wait(ctx context.Context, retry time.Duration) error {
	logger := klog.FromContext(ctx)
	tick := time.NewTicker(retry)
	defer tick.Stop()
	since := time.Time{} // since when it has not answered the dry run
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
			logger.Error(err, "The API server does not answer the query of its counting; assuming that of its release until it does")
			now := counts(unanswered.release, keptBy(unanswered.release))
			c.counted.Store(&now)
			c.Doubt()
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

// Follow queries at intervals, shorter ones while there is no answer, and calls changed when the answer changes, until ctx ends.
func (c *Counting) Follow(ctx context.Context, every time.Duration, changed func()) {
	next := every
	for {
		timer := time.NewTimer(wait.Jitter(next, 0.2)) // a thousand nodes may have started at once
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-c.wake:
			timer.Stop()
		case <-timer.C:
		}
		next = every
		switch news, err := c.ask(ctx); {
		case err != nil:
			next = min(every, wait.Jitter(askAgain, 1)) // a thousand nodes lost the same API server
			klog.FromContext(ctx).V(2).Info("Could not query the API server's counting; the last answer holds", "reason", err.Error())
		case news:
			changed()
		}
	}
}

// ask queries once, and reports whether the answer has changed.
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
	return fmt.Sprint(c.counted.Swap(&now).Missing()) != fmt.Sprint(now.Missing()), nil
}

// counts derives what a cluster counts from its release and the fields that its API server keeps of a device.
func counts(release *version.Version, kept *resourceapi.Device) counting.Counted {
	shares := kept.AllowMultipleAllocations != nil && kept.Capacity[probe].RequestPolicy != nil
	return counting.Of(release, len(kept.ConsumesCounters) > 0, shares)
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

// probe names the objects of the dry run.
const probe = "counting"

// probeDevice is a device with all kinds of counted fields.
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

// keptBy is the part of probeDevice that a release keeps by default.
func keptBy(release *version.Version) *resourceapi.Device {
	if counting.ByDefault(release) {
		return probeDevice()
	}
	return &resourceapi.Device{}
}

// keeps asks the API server, by a dry run, which part of probeDevice it would store. With a feature gate off, it drops the fields
// (kubernetes pkg/registry/resource/resourceslice/strategy.go, dropDisabledFields). Before 1.35 counters were in the slice of the
// devices: such an API server rejects this slice, and would reject those of GPUs. If the dry run itself is rejected, as by a
// webhook without support for it, the gates are assumed to be the release's defaults, unless they were seen: while an API server starts,
// its webhooks fail, and the assumption could have a GPU allocated twice. Of a release with other defaults nothing was seen.
func (c *Counting) keeps(ctx context.Context, release *version.Version) (kept *resourceapi.Device, err error) {
	ctx, cancel := context.WithTimeout(ctx, dryRunTimeout)
	defer cancel()
	would, err := dryRun(ctx, c.client, c.driver, c.node, *probeDevice())
	switch {
	case refusesFields(err):
		klog.FromContext(ctx).V(2).Info("The API server refuses counters", "reason", err.Error())
		c.answered = release
		return &resourceapi.Device{}, nil
	case isRefusal(err) && (c.answered == nil || counting.ByDefault(c.answered) != counting.ByDefault(release)):
		klog.FromContext(ctx).Info("The API server rejects the query of its counting; assuming that of its release", "reason", err.Error())
		return keptBy(release), nil
	case isUnanswered(err):
		return nil, &unansweredError{release, fmt.Errorf("query the API server's counting: %w", err)}
	case err != nil:
		return nil, fmt.Errorf("query the API server's counting: %w", err)
	case len(would.Spec.Devices) != 1:
		return nil, fmt.Errorf("query the API server's counting: it answers with %d devices, not 1", len(would.Spec.Devices))
	}
	c.answered = release
	return &would.Spec.Devices[0], nil
}

// dryRun asks the API server what it would store of a node's slice with one device.
func dryRun(ctx context.Context, client kubernetes.Interface, driver, node string, device resourceapi.Device) (
	*resourceapi.ResourceSlice, error,
) {
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-" + device.Name + "-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Devices: []resourceapi.Device{device},
			Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}
	return client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// unansweredError is the error of an API server that reports its release but does not answer the dry run.
type unansweredError struct {
	release *version.Version
	error
}

func (e *unansweredError) Unwrap() error { return e.error }

// isUnanswered reports whether an API server, or a component in front of or behind it, has not answered in time.
func isUnanswered(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &status) && status.Status().Code > http.StatusInternalServerError
}

// refusesFields reports whether an API server has rejected the fields of counters. Policies also reject slices as invalid, but name
// no field (ValidatingAdmissionPolicy, reason Invalid by default).
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

// isRefusal reports whether an API server has permanently rejected a request. An internal error comes from a failing webhook.
func isRefusal(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code <= http.StatusInternalServerError
}
