// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/cleave-dra/cleave/pkg/sim"
)

type faultFlags struct {
	root       string
	gpu        int
	xid        uint64
	gi, ci     int
	recovery   int
	lost       bool
	ecc        bool
	remap      bool
	gone       bool
	clear      bool
	slow       time.Duration
	hang       bool
	fail       string
	uuid       string
	quirk      string
	nth, times int
	once       bool
	condition  conditionFlags
}

func newFault() *cobra.Command {
	var f faultFlags
	c := &cobra.Command{
		Use: "fault --root DIR [--gpu N] --xid N | --ecc | --remap-failed | --unavailable | --lost | --recovery N | --absent " +
			"| --links-down | --fabric STATE | --fabric-manager off | --virtualization MODE | --confidential-computing MODE " +
			"| --slow DURATION CALL | --hang CALL | --fail CALL CODE | --clear",
		Short: "Inject faults, or clear them",
		Long: `Inject faults, or clear them.

  --xid N              the GPU reports that XID to those who wait for events; with --gi N it is that GPU instance's
  --ecc                the GPU reports a double-bit ECC error
  --remap-failed       a row of memory cannot be remapped: XID 64, and field 145 until --clear
  --unavailable        the GPU reports that it is unavailable
  --lost               the GPU falls off the bus: its calls return GPU_IS_LOST
  --absent             the GPU is not in the node: NVML started from now on does not list it
  --links-down         the NVLinks of the GPU are not trained
  --fabric STATE       the GPU's registration with its NVLink fabric is not-started, in-progress or completed; with --times N
                       for so many calls; model ends it
  --fabric-manager off  Fabric Manager does not run: GPUs before Hopper cannot be used; on ends it
  --virtualization MODE  the GPU is in a guest or host of virtual machines: pass-through, vgpu, host-vgpu; none ends it
  --confidential-computing MODE  all GPUs are in confidential computing mode and accept work or not: ready, not-ready, with
                       protected-pcie- before it in that mode; off ends it
  --recovery N         the GPU asks for recovery action N (field 230): 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P,
                       4 drain and reset, 5 recover the IMEX domain, 6 bus reset, 7 system reboot
  --slow DURATION CALL the NVML call takes that long
  --hang CALL          the NVML call does not return until --clear
  --fail CALL CODE     the NVML call returns that error, such as IN_USE or 19
  --quirk NAME         the driver differs from others: first-instance-in-use (clients are looked for when the first GPU
                       instance is created, not when the mode changes), mode-wipes-instances (leaving MIG mode destroys
                       idle instances), reset-together (GPUs that NVLinks join are
                       reset by one command), lists-in-mig-mode (partitions are listed in MIG mode only); with --clear,
                       it does no more
  --clear              ends everything but events, of the GPU or, without --gpu, of all
  --fail nvmlDeviceGetFieldValues NOT_SUPPORTED makes a driver that knows no recovery action

CALL is an NVML function, "nvmlDeviceGetUUID" or "DeviceGetUUID", or "*" for all. Without --gpu it fails on every GPU.
It may also be what a program of MPS does: mpsControlStart (the daemon starts; when slow, it does not answer yet),
mpsControlCommand (it does a command of an administrator) or mpsServerStart (a server starts); or gpuReset, the reset of a
GPU, also for its MIG mode.
--nth N lets N-1 calls of a process through first, --times N ends the fault after so many, --once after one.`,
		Example: `  nvml-sim fault --root /tmp/h100 --gpu 3 --xid 79
  nvml-sim fault --root /tmp/h100 --slow 2s nvmlDeviceCreateGpuInstanceWithPlacement
  nvml-sim fault --root /tmp/h100 --gpu 0 --fail nvmlDeviceSetMigMode IN_USE --once`,
		RunE: func(c *cobra.Command, args []string) error {
			return fault(c, &f, args)
		},
	}
	rootFlag(c, &f.root)
	c.Flags().IntVar(&f.gpu, "gpu", -1, "`index` of the GPU")
	c.Flags().Uint64Var(&f.xid, "xid", 0, "`number` of an XID to report")
	c.Flags().IntVar(&f.gi, "gi", -1, "GPU instance `ID` the report is about")
	c.Flags().IntVar(&f.ci, "ci", -1, "compute instance `ID` the report is about")
	c.Flags().BoolVar(&f.ecc, "ecc", false, "report a double-bit ECC error")
	c.Flags().BoolVar(&f.remap, "remap-failed", false, "make a row of memory fail to be remapped")
	c.Flags().BoolVar(&f.gone, "unavailable", false, "report that the GPU is unavailable")
	c.Flags().BoolVar(&f.lost, "lost", false, "make the GPU fall off the bus")
	c.Flags().StringVar(&f.uuid, "uuid", "", "put a GPU of this `UUID` in the place of the GPU")
	c.Flags().StringVar(&f.quirk, "quirk", "", "`name` of a way in which the driver differs")
	c.Flags().IntVar(&f.recovery, "recovery", 0, "recovery `action` the GPU asks for")
	c.Flags().DurationVar(&f.slow, "slow", 0, "make the call take this `long`")
	c.Flags().BoolVar(&f.hang, "hang", false, "make the call hang")
	c.Flags().StringVar(&f.fail, "fail", "", "make this `call` fail")
	c.Flags().IntVar(&f.nth, "nth", 1, "begin with the `N`th call of a process")
	c.Flags().IntVar(&f.times, "times", 0, "end after `N` calls")
	c.Flags().BoolVar(&f.once, "once", false, "end after one call")
	c.Flags().BoolVar(&f.clear, "clear", false, "end faults")
	f.condition.add(c)
	return c
}

func fault(c *cobra.Command, f *faultFlags, args []string) error {
	n, err := open(f.root)
	if err != nil {
		return err
	}
	if given, err := f.condition.setNode(n); given {
		return err
	}
	slow, failing := c.Flags().Changed("slow"), c.Flags().Changed("fail")
	switch {
	case slow && failing || f.hang && (slow || failing):
		return usagef("--slow, --hang and --fail: one at a time")
	case (slow || failing || f.hang) && len(args) != 1:
		return usagef("want one argument: the call after --slow DURATION or --hang, or the error after --fail CALL")
	case !slow && !failing && !f.hang && len(args) > 0:
		return noArgs(c, args)
	case f.hang:
		return inject(c, n, f, sim.Fault{GPU: f.gpu, Call: args[0], Hang: true})
	case slow:
		return inject(c, n, f, sim.Fault{GPU: f.gpu, Call: args[0], Delay: f.slow})
	case failing:
		code, err := sim.ParseCode(args[0])
		if err != nil {
			return usageError{err}
		}
		return inject(c, n, f, sim.Fault{GPU: f.gpu, Call: f.fail, Code: code})
	case f.quirk != "":
		return n.Driver().SetQuirk(sim.Quirk(f.quirk), !f.clear)
	case f.clear:
		return n.Faults().Clear(f.gpu)
	}
	return troubleGPU(c, n, f)
}

// inject adds a fault to calls.
func inject(c *cobra.Command, n *sim.Node, f *faultFlags, fault sim.Fault) error {
	if f.nth < 1 || f.times < 0 {
		return usagef("--nth begins at 1, --times is not negative")
	}
	fault.Skip, fault.Times = f.nth-1, f.times
	if f.once {
		fault.Times = 1
	}
	if _, err := sim.ResolveCall(fault.Call); err != nil {
		return usageError{err}
	}
	id, err := n.Faults().Inject(fault)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "fault #%d\n", id)
	return err
}

// troubleGPU applies faults of a whole GPU.
func troubleGPU(c *cobra.Command, n *sim.Node, f *faultFlags) error {
	xid, recovery := c.Flags().Changed("xid"), c.Flags().Changed("recovery")
	if !xid && !recovery && !f.ecc && !f.remap && !f.gone && !f.lost && f.uuid == "" && !f.condition.any() {
		return usagef("nothing to do: want --xid, --ecc, --remap-failed, --unavailable, --lost, --recovery, --absent, --links-down, --fabric, "+
			"--fabric-manager, --virtualization, --confidential-computing, --slow, --hang, --fail or --clear (see %q)", c.CommandPath()+" --help")
	}
	if f.gpu < 0 {
		return usagef("no --gpu: say which GPU")
	}
	if f.once {
		f.times = 1
	}
	if err := f.condition.set(n, f.gpu, f.times); err != nil {
		return err
	}
	if recovery {
		if err := n.Hardware().SetRecoveryAction(f.gpu, f.recovery); err != nil {
			return err
		}
	}
	if f.remap {
		if err := n.Hardware().FailRemap(f.gpu); err != nil {
			return err
		}
	}
	for _, report := range []struct {
		wanted bool
		what   uint64
		data   uint64
	}{{xid, sim.EventXID, f.xid}, {f.ecc, sim.EventDoubleBitECC, 0}, {f.gone, sim.EventGPUUnavailable, 0}} {
		if !report.wanted {
			continue
		}
		e := sim.Event{Type: report.what, Data: report.data, GPUInstance: instance(f.gi), ComputeInstance: instance(f.ci)}
		if err := n.Hardware().Raise(f.gpu, e); err != nil {
			return err
		}
	}
	if f.uuid != "" {
		return n.Hardware().Replace(f.gpu, f.uuid)
	}
	if f.lost {
		return n.Hardware().Lose(f.gpu)
	}
	return nil
}

// instance is an instance ID as events have it; -1 is none.
func instance(id int) uint32 {
	if id < 0 || id > math.MaxUint16 {
		return math.MaxUint32
	}
	return uint32(id)
}
