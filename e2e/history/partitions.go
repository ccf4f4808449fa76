// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// partition is one that was created while the history was recorded.
type partition struct {
	gpu string
	Partition
	created   Event
	destroyed *Event
}

func (p *partition) name() string { return fmt.Sprintf("%s-mig-%d-%d", p.gpu, p.Profile, p.Start) }

func (p *partition) end() time.Duration {
	if p.destroyed == nil {
		return never
	}
	return p.destroyed.At
}

// placeOf is the partition that a device is, shared or not; not ok for devices that are none.
func placeOf(device string) (gpu string, profile, start int, ok bool) {
	gpu, rest, ok := strings.Cut(device, "-mig-")
	if !ok {
		return wholeOf(device), 0, 0, false
	}
	parts := strings.Split(rest, "-")
	if len(parts) < 2 {
		return "", 0, 0, false
	}
	profile, err1 := strconv.Atoi(parts[0])
	start, err2 := strconv.Atoi(parts[1])
	return gpu, profile, start, err1 == nil && err2 == nil
}

// wholeOf is the GPU of a device that is the whole of it, shared or not.
func wholeOf(device string) string {
	device = strings.TrimSuffix(device, "-mps")
	return strings.TrimSuffix(device, "-timeslice")
}

func gpuOf(device string) string {
	if gpu, _, _, ok := placeOf(device); ok {
		return gpu
	}
	return wholeOf(device)
}

func (p *partition) isOf(device string) bool {
	gpu, profile, start, ok := placeOf(device)
	return ok && p.gpu == gpu && p.Profile == profile && p.Start == start
}

// readPartitions finds when partitions were there. Serials are never used twice, but a program that is killed as it creates
// one leaves an event of what it did not get to do: the next partition then has its serial.
func (c *checker) readPartitions(events []Event) {
	there := map[string]*partition{}
	for _, e := range events {
		f, ok := e.Fact.(Hardware)
		c.hardware = c.hardware || ok
		if ok && (f.Change == MIGMode || f.Change == ComputeMode) {
			c.modes = append(c.modes, e)
		}
		if ok && f.Change == ServedStarted && f.Pod != "" {
			c.served = append(c.served, e)
		}
		if !ok || f.Partition == nil {
			continue
		}
		key := fmt.Sprint(f.GPU, f.Partition.Serial)
		switch f.Change {
		case PartitionCreated:
			if was := there[key]; was != nil && was.destroyed == nil {
				c.partitions = slices.DeleteFunc(c.partitions, func(p *partition) bool { return p == was })
			}
			there[key] = &partition{gpu: f.GPU, Partition: *f.Partition, created: e}
			c.partitions = append(c.partitions, there[key])
		case PartitionDestroyed:
			if p := there[key]; p != nil {
				p.destroyed = &e
			}
		}
	}
}

// by reports whether the plugin did something.
func (c *checker) by(e Event) bool { return e.Fact.(Hardware).By == c.limits.Program }

// checkUnmanaged checks that the plugin destroyed only what it created.
func (c *checker) checkUnmanaged() []Violation {
	var all []Violation
	for _, p := range c.partitions {
		if p.destroyed == nil || !c.by(*p.destroyed) || c.by(p.created) {
			continue
		}
		all = append(all, Violation{
			Rule: RuleUnmanaged, Events: []Event{p.created, *p.destroyed},
			Text: fmt.Sprintf("At %s %s destroyed partition %s (serial %d). It was created at %s by %s, so it is not Cleave's to destroy.",
				p.destroyed.At, c.limits.Program, p.name(), p.Serial, p.created.At, p.created.Fact.(Hardware).By),
		})
	}
	return all
}
