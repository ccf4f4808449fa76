// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
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

// stdout is where commands write their output.
var stdout io.Writer = os.Stdout

const smiUsage = `nvidia-smi of a simulated node. It knows:
  nvidia-smi                                            a table of the GPUs
  nvidia-smi --version                                  versions
  nvidia-smi -L                                         a list of the GPUs and partitions
  nvidia-smi -q [-x] [-i ID]                            what is known of the GPUs, as text or XML
  nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits] [-i ID]
  nvidia-smi --query-compute-apps=FIELD,... --format=csv[,noheader][,nounits]
  nvidia-smi [-i ID] -c MODE                            set the compute mode: DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED, or a number
  nvidia-smi [-i ID] -pm 0|1                            switch the persistence mode
  nvidia-smi [-i ID] -mig 0|1                           switch the MIG mode
  nvidia-smi [-i ID] -r                                 reset GPUs
  nvidia-smi mig [-i ID] -lgip|-lgipp|-lgi|-lci         list profiles, placements, GPU instances, compute instances
  nvidia-smi mig [-i ID] -cgi PROFILE[:START],... [-C]  create GPU instances, with -C compute instances that fill them
  nvidia-smi mig [-i ID] -dci|-dgi [-gi ID,...] [-ci ID,...]
  nvidia-smi topo -m                                    how the GPUs are joined
  nvidia-smi compute-policy [-i ID] --set-timeslice N   set the time slice: 0 default, 1 short, 2 medium, 3 long
  nvidia-smi compute-policy [-i ID] -l                  list the time slices
ID is an index, a UUID or a PCI address.`

// runSMI simulates nvidia-smi, as far as it is known here. Its exit codes are NVML's return codes (nvidia-smi's manual, "RETURN
// VALUE").
func runSMI(args []string) error {
	return smiError(smiRun(args))
}

func smiRun(args []string) error {
	root := smiRoot()
	s := &smi{}
	var err error
	s.node, s.visible, err = openHere(root)
	if err != nil {
		return codeError{fmt.Errorf("NVIDIA-SMI has failed because it couldn't communicate with the (simulated) NVIDIA driver: %w", err),
			sim.CodeDriverNotLoaded}
	}
	err = session(s.node, func() error {
		if len(args) > 0 {
			switch args[0] {
			case "compute-policy":
				return s.policy(args[1:])
			case "mig":
				return s.mig(args[1:])
			case "topo":
				return s.topo(args[1:])
			}
		}
		return s.query(args)
	})
	if err == nil && len(s.resets) > 0 {
		return s.reset() // nothing of its own is open any more
	}
	return err
}

// smiError gives an error the exit code of the real program.
func smiError(err error) error {
	if err == nil || codeOf(err) != exitFailed {
		return err
	}
	if e, ok := errors.AsType[*sim.Error](err); ok {
		return codeError{err, min(e.Code, smiOtherError)}
	}
	return err
}

// smiOtherError is the exit code of nvidia-smi for "other error or internal driver error".
const smiOtherError = 255

// smi is a run of nvidia-smi.
type smi struct {
	node *sim.Node
	// visible are the partitions that a container has; the node's state does not show them there.
	visible []sim.VisiblePartition
	// resets are the GPUs to reset once the session has ended.
	resets []int
}

// smiRoot finds the node by the place of the program, <root>/usr/bin or <root>/bin. In a container nothing else of the node
// is there.
func smiRoot() string {
	if root := os.Getenv("NVML_SIM_ROOT"); root != "" {
		return root
	}
	self, err := os.Executable()
	if err != nil {
		return "/" // no /proc: not a place where anything but / can be meant
	}
	for dir := filepath.Dir(self); dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "var/lib/nvml-sim")); err == nil {
			return dir
		}
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

// smiQuery are the flags of nvidia-smi without a subcommand.
type smiQuery struct {
	id, mode, mig, persistence, fields, apps, format string
	list, reset, details, asXML, version             bool
}

func parseSMIQuery(args []string) (*smiQuery, error) {
	q := &smiQuery{}
	f := smiFlags(&q.id)
	for _, flag := range []struct {
		to    *bool
		names []string
	}{
		{&q.list, []string{"L", "list-gpus"}}, {&q.reset, []string{"r", "gpu-reset"}}, {&q.details, []string{"q", "query"}},
		{&q.asXML, []string{"x", "xml-format"}}, {&q.version, []string{"version"}},
	} {
		for _, name := range flag.names {
			f.BoolVar(flag.to, name, false, "")
		}
	}
	for _, flag := range []struct {
		to    *string
		names []string
	}{
		{&q.mode, []string{"c", "compute-mode"}}, {&q.mig, []string{"mig", "multi-instance-gpu"}},
		{&q.persistence, []string{"pm", "persistence-mode"}}, {&q.fields, []string{"query-gpu"}},
		{&q.apps, []string{"query-compute-apps"}}, {&q.format, []string{"format"}},
	} {
		for _, name := range flag.names {
			f.StringVar(flag.to, name, "", "")
		}
	}
	return q, smiParse(f, args)
}

func (s *smi) query(args []string) error {
	q, err := parseSMIQuery(args)
	if err != nil {
		return err
	}
	devices, err := s.devices(q.id)
	if err != nil {
		return err
	}
	switch {
	case q.version:
		return s.version()
	case q.reset:
		for _, d := range devices {
			s.resets = append(s.resets, d.Number())
		}
		return nil
	case q.mig != "":
		return smiMIGMode(devices, q.mig)
	case q.persistence != "":
		return smiPersistence(devices, q.persistence)
	case q.fields != "":
		return s.queryGPU(devices, q.fields, q.format)
	case q.apps != "":
		return s.queryApps(devices, q.apps, q.format)
	case q.details:
		return s.details(devices, q.asXML)
	case q.mode != "":
		return smiComputeMode(devices, q.mode)
	case q.list:
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
		if n.Device(index) == nil {
			return nil, codeError{errors.New("No devices were found"), sim.CodeNotFound} //nolint:staticcheck // as the program words it
		}
		return n.Device(index), nil // lost or not: that is seen when it is used
	}
	for i := 0; strings.HasPrefix(id, "GPU-") && n.Device(i) != nil; i++ { // it is not known how the program looks for it
		if uuid, err := n.Device(i).UUID(); err == nil && uuid == id {
			return n.Device(i), nil
		}
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
		if err := d.Modes().SetComputeMode(m); err != nil {
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
			if err := d.Modes().SetTimeSlice(number); err != nil {
				return usageError{err}
			}
			fmt.Fprintf(stdout, "Successfully set timeslice to %s for %s.\n", timeSlices[number], d)
		}
		return nil
	}
	for _, d := range devices {
		number, err := d.Modes().TimeSlice()
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s: timeslice %s\n", d, timeSlices[number])
	}
	return nil
}
