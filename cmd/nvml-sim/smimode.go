// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cleave-dra/cleave/pkg/sim"
)

// smiSwitch reads 0 or 1, or the words for them.
func smiSwitch(value string) (bool, error) {
	switch strings.ToUpper(value) {
	case "1", "ENABLED":
		return true, nil
	case "0", "DISABLED":
		return false, nil
	default:
		return false, usagef("unknown mode %q\n%s", value, smiUsage)
	}
}

// smiBusID is the PCI address as nvidia-smi writes it.
func smiBusID(d *sim.Device) string {
	id, err := d.PCIBusID()
	if err != nil {
		return d.String()
	}
	return id
}

// smiText is an error as nvidia-smi words it.
func smiText(err error) string {
	if e, ok := errors.AsType[*sim.Error](err); ok {
		return sim.CodeText(e.Code)
	}
	return err.Error()
}

// smiMIGMode is nvidia-smi -mig. Messages as in the MIG user guide and in NVIDIA/gpu-operator#118, where a mode that is
// only pending is a warning and no error.
func smiMIGMode(devices []*sim.Device, value string) error {
	on, err := smiSwitch(value)
	if err != nil {
		return err
	}
	word := map[bool]string{true: "enable", false: "disable"}[on]
	for _, d := range devices {
		activation, err := d.MIG().SetMIGMode(on)
		if err != nil {
			fmt.Fprintf(stdout, "Unable to %s MIG Mode for GPU %s: %s\nTreating as warning and moving on.\n", word, smiBusID(d), smiText(err))
			continue
		}
		if activation == nil {
			fmt.Fprintf(stdout, "%s MIG Mode for GPU %s\n", strings.ToUpper(word[:1])+word[1:]+"d", smiBusID(d))
			continue
		}
		fmt.Fprintf(stdout, "Warning: MIG mode is in pending %s state for GPU %s:%s\n", word, smiBusID(d), smiText(activation))
		if errors.Is(activation, errInUse) {
			fmt.Fprintf(stdout, "%s is currently being used by one or more other processes (e.g. CUDA application or a monitoring application "+
				"such as another instance of nvidia-smi). Please first kill all processes using the device and retry the command or reboot "+
				"the system to make MIG mode effective.\n", smiBusID(d))
		} else {
			fmt.Fprintln(stdout, "Reboot the system to make MIG mode effective.")
		}
	}
	fmt.Fprintln(stdout, "All done.")
	return nil
}

// smiPersistence is nvidia-smi -pm.
func smiPersistence(devices []*sim.Device, value string) error {
	on, err := smiSwitch(value)
	if err != nil {
		return err
	}
	word := map[bool]string{true: "Enabled", false: "Disabled"}[on]
	for _, d := range devices {
		was, err := d.Modes().PersistenceMode()
		if err != nil {
			return err
		}
		if was == on {
			fmt.Fprintf(stdout, "Persistence mode is already %s for GPU %s.\n", word, smiBusID(d))
			continue
		}
		if err := d.Modes().SetPersistenceMode(on); err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s persistence mode for GPU %s.\n", word, smiBusID(d))
	}
	fmt.Fprintln(stdout, "All done.")
	return nil
}

// reset is nvidia-smi -r, after the program's own session. Messages and exit code as in NVIDIA/NVSentinel#1690.
func (s *smi) reset() error {
	if s.node.Root() == "" { // a container knows nothing of who else has its GPUs
		return codeError{errors.New("Insufficient Permissions"), sim.CodeNoPermission} //nolint:staticcheck // as the program words it
	}
	var refused []string
	inUse := 0
	st, err := s.node.Status()
	if err != nil {
		return err
	}
	for _, i := range s.resets {
		id := "0000" + strings.ToUpper(st.GPUs[i].PCI)
		err := s.node.Hardware().Reset(i, s.resets...)
		if missing := s.node.Hardware().ResetWith(i, s.resets...); len(missing) > 0 {
			var peers []string
			for _, peer := range missing {
				peers = append(peers, "0000"+strings.ToUpper(st.GPUs[peer].PCI))
			}
			refused = append(refused, fmt.Sprintf("  GPU %s: these GPUs must be reset by the same command: %s", id, strings.Join(peers, ", ")))
			continue
		}
		if err == nil {
			fmt.Fprintf(stdout, "GPU %s was successfully reset.\n", id)
			continue
		}
		if errors.Is(err, errInUse) {
			inUse++
		}
		refused = append(refused, fmt.Sprintf("  GPU %s: %s", id, smiText(err)))
	}
	if len(refused) == 0 {
		fmt.Fprintln(stdout, "All done.")
		return nil
	}
	fmt.Fprintf(stdout, "The following GPUs could not be reset:\n%s\n\n", strings.Join(refused, "\n"))
	if inUse > 0 {
		are := "device is"
		if inUse > 1 {
			are = "devices are"
		}
		fmt.Fprintf(stdout, "%d %s currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics "+
			"application such as an X server, or a monitoring application such as another instance of nvidia-smi). Please first kill all "+
			"processes using this device and all compute applications running in the system.\n", inUse, are)
	}
	return codeError{errors.New("GPUs could not be reset"), smiOtherError}
}

// version is nvidia-smi --version.
func (s *smi) version() error {
	driver, cuda, err := s.versions()
	if err != nil {
		return err
	}
	branch, _, _ := strings.Cut(driver, ".")
	fmt.Fprintf(stdout, "NVIDIA-SMI version  : %s\nNVML version        : %s.%s\nDRIVER version      : %s\nCUDA Version        : %s\n",
		driver, branch, strings.TrimPrefix(driver, branch+"."), driver, cuda)
	return nil
}

func (s *smi) versions() (driver, cuda string, err error) {
	if driver, err = s.node.SystemDriverVersion(); err != nil {
		return "", "", err
	}
	number, err := s.node.SystemCUDADriverVersion()
	return driver, fmt.Sprintf("%d.%d", number/1000, number%1000/10), err
}
