// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/sim"
)

// errInUse is the cause of refusals that other processes are.
var errInUse = gpu.ErrInUse

// smiMIGFlags are the flags of nvidia-smi mig.
type smiMIGFlags struct {
	profiles, placements, instances, computes bool
	create                                    string
	fill, destroy, destroyComputes            bool
	gis, cis                                  string
}

// mig is nvidia-smi mig. Tables and messages as in the MIG user guide.
func (s *smi) mig(args []string) error {
	var id string
	var f smiMIGFlags
	flags := smiFlags(&id)
	for name, to := range map[string]*bool{"lgip": &f.profiles, "list-gpu-instance-profiles": &f.profiles, "lgipp": &f.placements,
		"list-gpu-instance-possible-placements": &f.placements, "lgi": &f.instances, "list-gpu-instances": &f.instances,
		"lci": &f.computes, "list-compute-instances": &f.computes, "C": &f.fill, "default-compute-instance": &f.fill,
		"dgi": &f.destroy, "destroy-gpu-instance": &f.destroy, "dci": &f.destroyComputes, "destroy-compute-instance": &f.destroyComputes} {
		flags.BoolVar(to, name, false, "")
	}
	for name, to := range map[string]*string{"cgi": &f.create, "create-gpu-instance": &f.create, "gi": &f.gis, "gpu-instance-id": &f.gis,
		"ci": &f.cis, "compute-instance-id": &f.cis} {
		flags.StringVar(to, name, "", "")
	}
	if err := smiParse(flags, args); err != nil {
		return err
	}
	devices, err := s.devices(id)
	if err != nil {
		return err
	}
	switch {
	case f.placements:
		return migPlacements(devices)
	case f.profiles:
		return migProfiles(devices)
	}
	devices = slices.DeleteFunc(devices, func(d *sim.Device) bool { on, _, err := d.MIG().MIGMode(); return err != nil || !on })
	if len(devices) == 0 {
		fmt.Fprintln(stdout, "No MIG-enabled devices found.")
		return codeError{errors.New("no MIG-enabled devices"), sim.CodeNotFound}
	}
	switch {
	case f.instances:
		return s.migInstances(devices)
	case f.computes:
		return s.migComputes(devices)
	case f.create != "":
		return migCreate(devices, f.create, f.fill)
	case f.destroyComputes:
		return s.migDestroyComputes(devices, &f)
	case f.destroy:
		return s.migDestroy(devices, &f)
	default:
		return usagef("no command\n%s", smiUsage)
	}
}

func migPlacements(devices []*sim.Device) error {
	for _, d := range devices {
		if d.Board().MIG == nil {
			continue
		}
		for _, p := range d.Board().MIG.Profiles {
			starts := make([]string, 0, len(p.Starts))
			for _, start := range p.Starts {
				starts = append(starts, strconv.Itoa(start))
			}
			word := "Placements:"
			if len(starts) == 1 {
				word = "Placement :"
			}
			fmt.Fprintf(stdout, "GPU %2d Profile ID %2d %s {%s}:%d\n", d.Number(), p.ID, word, strings.Join(starts, ","), p.Size)
		}
	}
	return nil
}

const (
	migRule     = "+-----------------------------------------------------------------------------+"
	migProfHead = migRule + `
| GPU instance profiles:                                                      |
| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                              Free/Total   GiB              CE    JPEG  OFA  |
|=============================================================================|`
)

func migProfiles(devices []*sim.Device) error {
	fmt.Fprintln(stdout, migProfHead)
	for _, d := range devices {
		if d.Board().MIG == nil {
			continue
		}
		for _, p := range d.Board().MIG.Profiles {
			free, err := d.MIG().GPUInstanceRemainingCapacity(p.ID)
			if err != nil {
				free = 0 // out of MIG mode none is free
			}
			fmt.Fprintf(stdout, "| %3d  %-16s %3d     %d/%d        %-10.2f %-5s %3d   %3d   %3d   |\n", d.Number(), "MIG "+p.Name, p.ID,
				free, p.MaxInstances, float64(p.MemoryMiB)/1024, "No", p.Multiprocessors, p.Decoders, p.Encoders)
			fmt.Fprintf(stdout, "| %58s %3d   %3d   %3d   |\n", "", p.CopyEngines, p.JPEGEngines, p.OFAEngines)
			fmt.Fprintln(stdout, migRule)
		}
	}
	return nil
}

// migStatus lists the GPU instances of GPUs, by GPU and ID.
func (s *smi) migStatus(devices []*sim.Device) ([]migRow, error) {
	st, err := s.node.Status()
	if err != nil {
		return nil, err
	}
	var rows []migRow
	for _, d := range devices {
		for _, i := range st.GPUs[d.Number()].Instances {
			rows = append(rows, migRow{d, i})
		}
	}
	return rows, nil
}

// migRow is a GPU instance and its GPU.
type migRow struct {
	device *sim.Device
	sim.InstanceStatus
}

// none says that there is nothing of a kind.
func none(what string) error {
	fmt.Fprintf(stdout, "No %s found: Not Found\n", what)
	return codeError{fmt.Errorf("no %s", what), sim.CodeNotFound}
}

func (s *smi) migInstances(devices []*sim.Device) error {
	rows, err := s.migStatus(devices)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return none("GPU instances")
	}
	const line = "+----------------------------------------------------+"
	fmt.Fprintln(stdout, line+`
| GPU instances:                                     |
| GPU   Name          Profile  Instance   Placement  |
|                       ID       ID       Start:Size |
|====================================================|`)
	for _, r := range rows {
		fmt.Fprintf(stdout, "| %3d  %-15s %3d      %3d     %6d:%-5d |\n", r.device.Number(), "MIG "+r.Profile, r.ProfileID, r.ID, r.Start, r.Size)
		fmt.Fprintln(stdout, line)
	}
	return nil
}

func (s *smi) migComputes(devices []*sim.Device) error {
	rows, err := s.migStatus(devices)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(rows, func(r migRow) bool { return len(r.Compute) > 0 }) {
		return none("compute instances")
	}
	const line = "+--------------------------------------------------------------------+"
	fmt.Fprintln(stdout, line+`
| Compute instances:                                                 |
| GPU     GPU       Name             Profile   Instance   Placement  |
|       Instance                       ID        ID       Start:Size |
|         ID                                                         |
|====================================================================|`)
	for _, r := range rows {
		for _, c := range r.Compute {
			fmt.Fprintf(stdout, "| %3d    %3d       %-15s %6d      %4d      %5d:%-5d |\n", r.device.Number(), r.ID, "MIG "+c.Profile,
				c.ProfileID, c.ID, c.Start, c.Size)
			fmt.Fprintln(stdout, line)
		}
	}
	return nil
}

// migCreate creates instances of profiles, each an ID, a name, or one of them with a start.
func migCreate(devices []*sim.Device, list string, fill bool) error {
	for _, d := range devices {
		for _, want := range strings.Split(list, ",") {
			name, at, placed := strings.Cut(want, ":")
			start := -1
			p, err := findProfile(d, name)
			if err == nil && placed {
				start, err = strconv.Atoi(at)
			}
			if err != nil {
				return usagef("unknown profile %q: %w", want, err)
			}
			gi, err := makeInstance(d, p, start)
			if err != nil {
				fmt.Fprintf(stdout, "Unable to create a GPU instance on GPU %2d using profile %d: %s\n", d.Number(), p.ID, smiText(err))
				fmt.Fprintf(stdout, "Failed to create GPU instances: %s\n", smiText(err))
				return err
			}
			fmt.Fprintf(stdout, "Successfully created GPU instance ID %2d on GPU %2d using profile MIG %s (ID %2d)\n",
				gi.ID(), d.Number(), p.Name, p.ID)
			if !fill {
				continue
			}
			ci, err := gi.CreateComputeInstance(p.Filling().ID)
			if err != nil {
				fmt.Fprintf(stdout, "Failed to create compute instances: %s\n", smiText(err))
				return err
			}
			fmt.Fprintf(stdout, "Successfully created compute instance ID %2d on GPU %2d GPU instance ID %2d using profile MIG %s (ID %2d)\n",
				ci.ID(), d.Number(), gi.ID(), p.Name, p.Filling().ID)
		}
	}
	return nil
}

// picked reports whether a list of IDs has one; an empty list has all.
func picked(list string, id int) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), strconv.Itoa(id))
}

func (s *smi) migDestroyComputes(devices []*sim.Device, f *smiMIGFlags) error {
	rows, err := s.migStatus(devices)
	if err != nil {
		return err
	}
	found := false
	for _, r := range rows {
		for _, c := range r.Compute {
			if !picked(f.gis, r.ID) || !picked(f.cis, c.ID) {
				continue
			}
			found = true
			gi, err := r.device.MIG().GPUInstanceByID(r.ID)
			if err != nil {
				return err
			}
			ci, err := gi.ComputeInstanceByID(c.ID)
			if err == nil {
				err = ci.Destroy()
			}
			if err != nil {
				fmt.Fprintf(stdout, "Unable to destroy compute instance ID %2d from GPU %2d GPU instance ID %2d: %s\n", c.ID,
					r.device.Number(), r.ID, smiText(err))
				fmt.Fprintf(stdout, "Failed to destroy compute instances: %s\n", smiText(err))
				return err
			}
			fmt.Fprintf(stdout, "Successfully destroyed compute instance ID %2d from GPU %2d GPU instance ID %2d\n", c.ID, r.device.Number(), r.ID)
		}
	}
	if !found {
		return none("compute instances")
	}
	return nil
}

func (s *smi) migDestroy(devices []*sim.Device, f *smiMIGFlags) error {
	rows, err := s.migStatus(devices)
	if err != nil {
		return err
	}
	found := false
	for _, r := range rows {
		if !picked(f.gis, r.ID) {
			continue
		}
		found = true
		gi, err := r.device.MIG().GPUInstanceByID(r.ID)
		if err == nil {
			err = gi.Destroy()
		}
		if err != nil {
			fmt.Fprintf(stdout, "Unable to destroy GPU instance ID %2d from GPU %2d: %s\n", r.ID, r.device.Number(), smiText(err))
			fmt.Fprintf(stdout, "Failed to destroy GPU instances: %s\n", smiText(err))
			return err
		}
		fmt.Fprintf(stdout, "Successfully destroyed GPU instance ID %2d from GPU %2d\n", r.ID, r.device.Number())
	}
	if !found {
		return none("GPU instances")
	}
	return nil
}
