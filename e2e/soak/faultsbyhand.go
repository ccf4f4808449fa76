// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// Profile of the partitions that are created by hand: its name and ID.
const (
	handProfile   = "1g.10gb"
	handProfileID = 19
)

// handMade is a partition that was created by hand: the GPU's index, the ID of the GPU instance, its place and its UUID.
type handMade struct {
	gpu, instance, start int
	uuid                 string
}

func (p handMade) String() string { return fmt.Sprintf("partition %s of GPU %d", p.uuid, p.gpu) }

// partitionByHand is an administrator who creates a partition with nvidia-smi on a GPU that Cleave partitions, and destroys it
// later. Cleave has to leave it alone meanwhile: for claims that were allocated its place, when others of the GPU are given back,
// and when the plugin, which is killed once, starts and finds a partition that no record names.
func (f nodeFaults) partitionByHand(ctx context.Context, fault Fault) (from time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	name := fmt.Sprintf("neighbour-%05d", fault.Index)
	if err := f.bed.run(ctx, f.pods, Shape{Name: "neighbour", Claims: []Ask{AskSmall}}.manifest(name, ""), podTimeout); err != nil {
		return from, err // its partition puts a GPU into MIG mode
	}
	made, err := f.createByHand(ctx)
	if err != nil {
		return from, errors.Join(err, f.bed.endPod(ctx, f.pods, name, false))
	}
	err = f.waitOccupied(ctx, made, true)
	if err == nil {
		err = f.bed.endPod(ctx, f.pods, name, false)
	}
	if err == nil {
		err = f.last(ctx, fault)
	}
	if err == nil {
		err = f.waitPrograms(ctx)
	}
	if err == nil {
		sleep(ctx, fault.For/2) // for what the plugin does at its start
	}
	err = errors.Join(err, f.destroyByHand(context.WithoutCancel(ctx), made))
	from = time.Now()
	if err == nil {
		err = f.waitOccupied(ctx, made, false)
	}
	return from, err
}

// createByHand creates a partition on the first GPU that is in MIG mode and has room.
func (f nodeFaults) createByHand(ctx context.Context) (made handMade, err error) {
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	printed := ""
	err = workload.Until(ctx, "a GPU in MIG mode with room for one more partition", func(ctx context.Context) (bool, string, error) {
		var refused []string
		for made.gpu = range modelGPUs {
			out, err := f.bed.Node.Sim(ctx, "mig", "create", "--gpu", strconv.Itoa(made.gpu), "--profile", handProfile)
			if err == nil {
				printed = out
				return true, "", nil
			}
			refused = append(refused, err.Error())
		}
		return false, strings.Join(refused, "; "), nil
	})
	if err != nil {
		return made, err
	}
	compute := 0
	if _, err := fmt.Sscanf(printed, "GPU instance %d, compute instance %d: %s", &made.instance, &compute, &made.uuid); err != nil {
		return made, fmt.Errorf("read what nvml-sim mig create prints, %q: %w", printed, err)
	}
	start, err := f.startOf(ctx, made)
	made.start = start
	return made, err
}

// startOf is the place where a partition is. It is an error that the partition is not there.
func (f nodeFaults) startOf(ctx context.Context, made handMade) (int, error) {
	list, err := f.bed.Node.Sim(ctx, "mig", "list")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(list) {
		fields := strings.Fields(line) // GPU GI CI PROFILE PLACEMENT UUID
		if len(fields) != 6 || fields[5] != made.uuid {
			continue
		}
		start, _, _ := strings.Cut(fields[4], ":")
		return strconv.Atoi(start)
	}
	return 0, fmt.Errorf("find %s, which was created by hand: it is not there any more", made)
}

// destroyByHand destroys a partition that has to be there still.
func (f nodeFaults) destroyByHand(ctx context.Context, made handMade) error {
	if _, err := f.startOf(ctx, made); err != nil {
		return err
	}
	_, err := f.bed.Node.Sim(ctx, "mig", "destroy", "--gpu", strconv.Itoa(made.gpu), "--gi", strconv.Itoa(made.instance))
	return err
}

// waitOccupied waits until the device in whose place a partition was created by hand cannot be allocated, or can be again.
func (f nodeFaults) waitOccupied(ctx context.Context, made handMade, want bool) error {
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	device := fmt.Sprintf("%s-mig-%d-%d", f.gpus[made.gpu], handProfileID, made.start)
	what := fmt.Sprintf("device %s to have taint %s: %t", device, nodeslices.TaintOccupied, want)
	return workload.Until(ctx, what, func(ctx context.Context) (bool, string, error) {
		pool, err := f.bed.pool(ctx)
		if err != nil {
			return false, err.Error(), nil //nolint:nilerr // the API server may be away
		}
		for _, s := range pool {
			for _, d := range s.Spec.Devices {
				if d.Name == device {
					occupied := slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == nodeslices.TaintOccupied })
					return occupied == want, fmt.Sprint(d.Taints), nil
				}
			}
		}
		return false, "it is not published", nil
	})
}
