// SPDX-License-Identifier: Apache-2.0

package sizing

import "time"

// Params are how the advice is found.
type Params struct {
	// Since is how long ago the figures begin, Step how far they are apart.
	Since, Step time.Duration
	// Margin is what a device is to have beyond the most that was seen, as a part of that.
	Margin float64
	// Seen is for how long a workload must have been seen.
	Seen time.Duration
}

// Advice is what workloads asked for, what they used, and what would do. Its JSON is an interface: fields and values may be added, never
// renamed.
type Advice struct {
	Driver string `json:"driver"`
	Source Source `json:"source"`
	// Since and Step are those of the figures of Prometheus, in hours; Margin is that of the advice.
	Since  float64 `json:"sinceHours,omitempty"`
	Step   float64 `json:"stepHours,omitempty"`
	Margin float64 `json:"margin"`
	// GPUs are those of all nodes, WholeNow those of which nothing is allocated, and WholeThen if all advice were followed.
	GPUs      int        `json:"gpus"`
	WholeNow  int        `json:"wholeGPUsFree"`
	WholeThen int        `json:"wholeGPUsFreeThen"`
	Workloads []Workload `json:"workloads"`
	// Problems are about what could not be read.
	Problems []string `json:"problems,omitempty"`
}

// Workload is the claims of one owner for devices of one kind.
type Workload struct {
	Namespace string `json:"namespace"`
	// Workload is the owner, such as Deployment/web, or the claim that no pod uses.
	Workload string `json:"workload"`
	Claims   int    `json:"claims"`
	Asked    Device `json:"asked"`
	// Hours is for how long figures were seen, of all its claims together counted once; of the longest seen one, by plugins.
	Hours float64 `json:"hoursSeen"`
	// Memory is in bytes and by device, Activity from 0 to 1 and of the device; none where there are no figures.
	Memory   *Figure `json:"memoryBytes,omitempty"`
	Activity *Figure `json:"smActive,omitempty"`
	// Suffices is the smallest device that would do; none where the verdict is not Smaller.
	Suffices *Device `json:"suffices,omitempty"`
	Verdict  Verdict `json:"verdict"`
	Message  string  `json:"message"`
}

// Device is a kind of devices of the cluster.
type Device struct {
	Product string `json:"product"`
	// Shape is gpu, the profile of a partition, or a tier of shares.
	Shape string `json:"shape"`
	// Memory is in bytes; Multiprocessors is 0 where it is not known.
	Memory          int64 `json:"memoryBytes"`
	Multiprocessors int64 `json:"multiprocessors,omitempty"`
	shared          bool
}

// smaller reports whether a device is of fewer placement units: partitions have an eighth, a quarter, a half or all of a GPU's memory.
// The units themselves are not published for whole GPUs, nor as counters where all devices of a GPU can be allocated at once.
func (d *Device) smaller(than *Device) bool { return d.Memory < than.Memory/4*3 }

// Figure is how something was distributed: over steps, of which memory has the most and activity the mean. Plugins know the most alone.
type Figure struct {
	P50 *float64 `json:"p50,omitempty"`
	P95 *float64 `json:"p95,omitempty"`
	Max float64  `json:"max"`
}

// Source is who has seen what workloads used.
type Source string

// The sources.
const (
	// FromPrometheus: figures over time.
	FromPrometheus Source = "Prometheus"
	// FromPlugins: the most since the plugins' first looks at claims.
	FromPlugins Source = "Plugins"
)

// Verdict is whether a smaller device would do.
type Verdict string

// The verdicts.
const (
	// Smaller: another device suffices.
	Smaller Verdict = "Smaller"
	// Fits: no smaller one does.
	Fits Verdict = "Fits"
	// Exceeds: what was used is within the margin of what there is.
	Exceeds Verdict = "Exceeds"
	// TooLittle: it was not seen for long enough.
	TooLittle Verdict = "TooLittleSeen"
	// NoFigures: of some claim there are none.
	NoFigures Verdict = "NoFigures"
	// Share: of shares there is no advice.
	Share Verdict = "Share"
	// Several: of claims for several devices there is none, either.
	Several Verdict = "SeveralDevices"
)
