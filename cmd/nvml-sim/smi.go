package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// stdout is where commands write what they were asked for.
var stdout io.Writer = os.Stdout

const smiUsage = `nvidia-smi of a simulated node. It knows:
  nvidia-smi                                            a table of the GPUs
  nvidia-smi -L                                         a list of the GPUs and partitions
  nvidia-smi [-i ID] -c MODE                            set the compute mode: DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED, or a number
  nvidia-smi compute-policy [-i ID] --set-timeslice N   set the time slice: 0 default, 1 short, 2 medium, 3 long
  nvidia-smi compute-policy [-i ID] -l                  list the time slices
ID is an index, a UUID or a PCI address.`

// runSMI does what nvidia-smi does, as far as it is known here.
func runSMI(args []string) error {
	root := smiRoot()
	s := &smi{}
	var err error
	s.node, s.visible, err = openHere(root)
	if err != nil {
		return fmt.Errorf("NVIDIA-SMI has failed because it couldn't communicate with the (simulated) NVIDIA driver: %w", err)
	}
	return session(s.node, func() error {
		if len(args) > 0 && args[0] == "compute-policy" {
			return s.policy(args[1:])
		}
		return s.query(args)
	})
}

// smi is a run of nvidia-smi.
type smi struct {
	node *sim.Node
	// visible are the partitions that a container has; the node's state does not show them there.
	visible []sim.VisiblePartition
}

// smiRoot finds the node by the place of the program, <root>/usr/bin.
func smiRoot() string {
	if root := os.Getenv("NVML_SIM_ROOT"); root != "" {
		return root
	}
	self, err := os.Executable()
	if err != nil {
		return "/" // no /proc: not a place where anything but / can be meant
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(self)))
}

// smiFlags makes the flags that all forms have.
func smiFlags(id *string) *flag.FlagSet {
	f := flag.NewFlagSet("nvidia-smi", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(id, "i", "", "")
	f.StringVar(id, "id", "", "")
	return f
}

// smiParse reads the flags; help is no error.
func smiParse(f *flag.FlagSet, args []string) error {
	err := f.Parse(args)
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if err != nil {
		return usagef("%w\n%s", err, smiUsage)
	}
	return nil
}

func (s *smi) query(args []string) error {
	var id, mode string
	var list bool
	f := smiFlags(&id)
	f.BoolVar(&list, "L", false, "")
	f.BoolVar(&list, "list-gpus", false, "")
	f.StringVar(&mode, "c", "", "")
	f.StringVar(&mode, "compute-mode", "", "")
	if err := smiParse(f, args); err != nil {
		return err
	}
	devices, err := s.devices(id)
	if err != nil {
		return err
	}
	switch {
	case mode != "":
		return smiComputeMode(devices, mode)
	case list:
		return s.list(devices)
	default:
		return s.table(devices)
	}
}

// devices finds the GPUs that an ID means: all if there is none.
func (s *smi) devices(id string) ([]*sim.Device, error) {
	count, err := s.node.DeviceCount()
	if err != nil {
		return nil, err
	}
	if id == "" {
		var all []*sim.Device
		for i := range count {
			all = append(all, s.node.Device(i))
		}
		return all, nil
	}
	var devices []*sim.Device
	for _, one := range strings.Split(id, ",") {
		d, err := smiDevice(s.node, one)
		if err != nil {
			return nil, err
		}
		devices = append(devices, d)
	}
	return devices, nil
}

func smiDevice(n *sim.Node, id string) (*sim.Device, error) {
	if index, err := strconv.Atoi(id); err == nil {
		return n.DeviceByIndex(index)
	}
	if strings.HasPrefix(id, "GPU-") {
		d, _, err := n.DeviceByUUID(id)
		return d, err
	}
	return n.DeviceByPCIBusID(id)
}

// timeSlices are the names of time slices, by number.
var timeSlices = []string{"DEFAULT", "SHORT", "MEDIUM", "LONG"}

func smiComputeMode(devices []*sim.Device, mode string) error {
	m, err := parseComputeMode(mode)
	if err != nil {
		return err
	}
	for _, d := range devices {
		if err := d.SetComputeMode(m); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "Set compute mode to %s for %s.\n", sim.ComputeModeName(m), d)
	}
	return nil
}

// parseComputeMode reads the name or the number of a compute mode.
func parseComputeMode(mode string) (int, error) {
	for m := range sim.ModeExclusiveProcess + 1 {
		if mode == strconv.Itoa(m) || strings.EqualFold(mode, sim.ComputeModeName(m)) {
			return m, nil
		}
	}
	return 0, usagef("unknown compute mode %q\n%s", mode, smiUsage)
}

func (s *smi) policy(args []string) error {
	var id, slice string
	var list bool
	f := smiFlags(&id)
	f.StringVar(&slice, "set-timeslice", "", "")
	f.BoolVar(&list, "l", false, "")
	f.BoolVar(&list, "list", false, "")
	if err := smiParse(f, args); err != nil {
		return err
	}
	devices, err := s.devices(id)
	if err != nil {
		return err
	}
	if slice != "" {
		number, err := strconv.Atoi(slice)
		if err != nil {
			number = slices.Index(timeSlices, strings.ToUpper(slice))
		}
		for _, d := range devices {
			if err := d.SetTimeSlice(number); err != nil {
				return usageError{err}
			}
			fmt.Fprintf(stdout, "Successfully set timeslice to %s for %s.\n", timeSlices[number], d)
		}
		return nil
	}
	for _, d := range devices {
		number, err := d.TimeSlice()
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s: timeslice %s\n", d, timeSlices[number])
	}
	return nil
}
