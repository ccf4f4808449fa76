// SPDX-License-Identifier: Apache-2.0

package counting

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

var (
	// byDefault is the first release with counters and shares by default (kube_features.go of Kubernetes: DRAPartitionableDevices and
	// DRAConsumableCapacity are beta, and on).
	byDefault = version.MustParseGeneric("1.36.0")
	// beside is the first release whose allocator counts the consumption of shares of a GPU: before, it forgot the counters of a device
	// with multiple allocations as soon as one claim had it, and could also allocate the GPU whole or as partitions (kubernetes#139034,
	// backported to 1.36.2).
	beside = version.MustParseGeneric("1.36.2")
)

// Since is the first release that counts all tiers by default.
func Since() *version.Version { return beside }

// ByDefault reports whether a release has counters and shares unless their feature gates are off.
func ByDefault(release *version.Version) bool { return release.AtLeast(byDefault) }

// Counted describes what a cluster fails to count; nil if it counts.
type Counted struct {
	// Counters is why it does not keep counters, through which the devices of a GPU exclude each other.
	Counters error
	// Shares is why it cannot have devices that several claims share, SharesBeside why it does not count these together with other
	// devices of the GPU.
	Shares, SharesBeside error
}

// Of derives what a cluster counts from its release, and from whether its API server keeps counters, and what shares need.
func Of(release *version.Version, counters, shares bool) (c Counted) {
	if !counters {
		c.Counters = fmt.Errorf("GPUs are offered in one tier each, as the API server (Kubernetes %s) drops counters and a GPU could be "+
			"allocated twice: turn on the feature gate DRAPartitionableDevices of API server and scheduler", release)
	}
	if !release.AtLeast(beside) {
		c.SharesBeside = fmt.Errorf("GPUs are shared only where their policy has no other tier, as the scheduler of Kubernetes %s could "+
			"allocate a GPU as shares and whole at once: use %s or later", release, beside)
	}
	if !shares {
		c.Shares = fmt.Errorf("GPUs are not shared, as the API server (Kubernetes %s) drops what shares need: turn on the feature gate "+
			"DRAConsumableCapacity of API server and scheduler", release)
	}
	return c
}

// Reasons are those that there are.
func (c Counted) Reasons() []error {
	return slices.DeleteFunc([]error{c.Counters, c.Shares, c.SharesBeside}, func(err error) bool { return err == nil })
}

// Missing joins the reasons.
func (c Counted) Missing() error { return errors.Join(c.Reasons()...) }

// Sentence is a reason by itself.
func Sentence(reason error) string {
	text := reason.Error()
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// Ignored says, of "the scheduler of", which devices that of a release ignores by default; empty where it counts all.
func Ignored(release *version.Version) string {
	if ByDefault(release) {
		return ""
	}
	return fmt.Sprintf("Kubernetes %s ignores partitions, shares, and GPUs that are offered as these, unless the feature gates "+
		"DRAPartitionableDevices and DRAConsumableCapacity are on there as in the API server", release)
}
