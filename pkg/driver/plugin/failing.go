// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// Error reasons, the values of the label reason.
const (
	reasonDriver   = "driver-unavailable" // the NVIDIA driver does not answer, or was released
	reasonInvalid  = "invalid-claim"      // the allocation or its parameters do not match the node's offer
	reasonTaken    = "allocated"          // the devices are allocated to another claim
	reasonBusy     = "in-use"             // a process uses the partition or the GPU
	reasonGPU      = "gpu-unusable"       // the GPU is lost, unreadable, replaced, or lacks a partition's resources
	reasonMPS      = "mps-unavailable"    // the MPS supervisor does not answer
	reasonTimeout  = "timeout"            // the call timed out
	reasonDisk     = "disk"               // a file could not be read or written
	reasonOtherErr = "other"
)

// reasons lists all reasons.
func reasons() []string {
	return []string{reasonDriver, reasonInvalid, reasonTaken, reasonBusy, reasonGPU, reasonMPS, reasonTimeout, reasonDisk, reasonOtherErr}
}

// reasonOf returns the reason under which an error is counted.
func reasonOf(err error) string {
	is := func(some ...error) bool {
		for _, e := range some {
			if errors.Is(err, e) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.Is(err, claims.ErrNoDriver):
		return reasonDriver
	case errors.Is(err, claims.ErrInvalid):
		return reasonInvalid
	case errors.Is(err, claims.ErrAllocated):
		return reasonTaken
	case errors.As(err, new(*claims.InUseError)), is(gpu.ErrInUse, gpu.ErrPartitioned):
		return reasonBusy
	case is(mps.ErrUnavailable, errMPSOff):
		return reasonMPS
	case is(gpu.ErrLost, gpu.ErrAbsent, gpu.ErrUnreadable, gpu.ErrHangs, gpu.ErrReplaced, gpu.ErrMinorChanged, gpu.ErrFabricPending,
		gpu.ErrInsufficientResources, gpu.ErrResetRequired, gpu.ErrLeftBehind, gpu.ErrNotFound):
		return reasonGPU
	case is(context.DeadlineExceeded, context.Canceled):
		return reasonTimeout
	case errors.As(err, new(*fs.PathError)), errors.As(err, new(syscall.Errno)):
		return reasonDisk
	default:
		return reasonOtherErr
	}
}

// forgetAfter is the time after which a claim that is no longer tried stops counting as failing: its pod was deleted. The kubelet
// retries within a minute and a half (k8s.io/kubernetes/pkg/kubelet/pod_workers.go, completeWork).
const forgetAfter = 10 * time.Minute

// failing tracks the claims whose last attempt failed, and since when.
type failing struct {
	now func() time.Time

	mu     sync.Mutex
	claims map[attempted]failure
}

// attempted is an operation on a claim.
type attempted struct {
	operation string
	claim     types.UID
}

// failure holds the times of a claim's first failure since its last success, and of its last failure.
type failure struct{ first, last time.Time }

func newFailing(now func() time.Time) *failing {
	return &failing{now: now, claims: map[attempted]failure{}}
}

// note notes the outcome of an attempt. Prepare no longer counts for a claim that was unprepared or released.
func (f *failing) note(operation string, claim types.UID, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := attempted{operation, claim}
	if err == nil {
		delete(f.claims, a)
		delete(f.claims, attempted{prepareOperation, claim})
		return
	}
	now := f.now()
	f.forget(now)
	since := f.claims[a]
	if since.first.IsZero() {
		since.first = now
	}
	since.last = now
	f.claims[a] = since
}

// forget drops claims that are no longer tried; the caller holds mu.
func (f *failing) forget(now time.Time) {
	maps.DeleteFunc(f.claims, func(_ attempted, since failure) bool { return now.Sub(since.last) > forgetAfter })
}

var (
	failingDesc = prometheus.NewDesc("cleave_claims_failing",
		"Claims whose last attempt to be prepared or unprepared, or after that released, failed.", []string{"operation"}, nil)
	failingSecondsDesc = prometheus.NewDesc("cleave_claims_failing_seconds",
		"Time since the first failed attempt of the claim that has failed for longest; 0 if none fails.", []string{"operation"}, nil)
)

// Describe implements prometheus.Collector.
func (f *failing) Describe(to chan<- *prometheus.Desc) {
	to <- failingDesc
	to <- failingSecondsDesc
}

// Collect implements prometheus.Collector.
func (f *failing) Collect(to chan<- prometheus.Metric) {
	number, longest := map[string]int{}, map[string]time.Duration{}
	f.mu.Lock()
	now := f.now()
	f.forget(now)
	for a, since := range f.claims {
		number[a.operation]++
		longest[a.operation] = max(longest[a.operation], now.Sub(since.first))
	}
	f.mu.Unlock()
	for _, operation := range []string{prepareOperation, releaseOperation, unprepareOperation} {
		to <- prometheus.MustNewConstMetric(failingDesc, prometheus.GaugeValue, float64(number[operation]), operation)
		to <- prometheus.MustNewConstMetric(failingSecondsDesc, prometheus.GaugeValue, longest[operation].Seconds(), operation)
	}
}
