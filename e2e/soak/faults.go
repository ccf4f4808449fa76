// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cleave-dra/cleave/e2e/cluster"
	"github.com/cleave-dra/cleave/e2e/history"
	"github.com/cleave-dra/cleave/e2e/workload"
)

const (
	// lateness of the API server while it is slow, in each direction.
	lateness = 2500 * time.Millisecond
	// healTimeout bounds what ends a fault.
	healTimeout = 3 * time.Minute
)

// faults injects the faults of a plan, one after the other, many with a crash in their midst, and waits for recovery after each.
type faults struct {
	bed      *bed
	plan     Plan
	report   *tally
	pods     *podList
	recorder *history.Recorder
	// want are the devices that the node publishes while nothing is wrong, and gpus those that are a whole GPU, by index.
	want []string
	gpus map[int]string
	// killed are the processes that were killed last: none of them counts as recovered.
	killed []int
	// second is the crash in the midst of the fault, once it was injected.
	second *Fault
	// upgraded: the release has a revision that can be rolled back.
	upgraded bool
	probes   int
	ending   sync.WaitGroup
}

// run injects faults until more ends. It returns false if the node did not recover from one.
func (f *faults) run(ctx, more context.Context, only []Kind) bool {
	defer f.ending.Wait()
	for i := 0; more.Err() == nil; i++ {
		fault := f.plan.Fault(i)
		if len(only) > 0 && !slices.Contains(only, fault.Kind) {
			continue
		}
		if !sleep(more, fault.After) {
			break
		}
		if err := f.one(ctx, fault); err != nil && ctx.Err() == nil {
			f.report.violation("recovery", "fault %d, %s: %v", fault.Index, fault.Kind, err)
			return false
		}
	}
	return true
}

// one injects a fault, ends it, and waits for recovery.
func (f *faults) one(ctx context.Context, fault Fault) error {
	f.killed, f.second = nil, nil
	f.report.pardonPods(fault.Kind.ends(), true)
	defer f.report.pardonPods(fault.Kind.ends(), false)
	f.note(fault, history.FaultBegan)
	from, err := f.inject(ctx, fault)
	if err == nil {
		err = f.meanwhile(ctx, fault)
	}
	f.note(fault, history.FaultEnded)
	if f.second != nil {
		defer f.report.pardonPods(f.second.Kind.ends(), false)
	}
	if err != nil {
		return err
	}
	lost, err := f.recover(ctx, fault.Kind.probedBy())
	if err != nil {
		return err
	}
	f.note(fault, history.FaultRecovered)
	if f.second != nil {
		f.note(*f.second, history.FaultRecovered)
	}
	f.report.recovered(fault, time.Since(from)-lost)
	return nil
}

// inject injects a fault and ends it. It returns since when the node could recover.
func (f *faults) inject(ctx context.Context, fault Fault) (time.Time, error) {
	if inject, ok := f.injectors()[fault.Kind]; ok {
		return inject(ctx, fault)
	}
	return time.Time{}, fmt.Errorf("there is no fault %q", fault.Kind)
}

// meanwhile injects the crash in the midst of a fault, unless it was injected before.
func (f *faults) meanwhile(ctx context.Context, fault Fault) error {
	if fault.Meanwhile == "" || f.second != nil {
		return nil
	}
	f.second = &Fault{Index: fault.Index, Kind: fault.Meanwhile}
	f.report.pardonPods(f.second.Kind.ends(), true)
	f.note(*f.second, history.FaultBegan)
	if _, err := f.inject(ctx, *f.second); err != nil {
		return fmt.Errorf("%s meanwhile: %w", fault.Meanwhile, err)
	}
	return nil
}

type injector func(context.Context, Fault) (time.Time, error)

func (f *faults) injectors() map[Kind]injector {
	n, r, o := nodeFaults{f}, releaseFaults{f}, objectFaults{f}
	return map[Kind]injector{
		PluginKilled:        f.killing(pluginProgram),
		PluginStopped:       f.stopping(pluginProgram),
		SupervisorKilled:    f.killing(supervisorProgram),
		SupervisorStopped:   f.stopping(supervisorProgram),
		MPSDaemonKilled:     f.killDaemon,
		KubeletKilled:       f.restarting(cluster.Kubelet),
		KubeletStopped:      f.pausing(cluster.Kubelet),
		ContainerdKilled:    f.restarting(cluster.Containerd),
		ContainerdStopped:   f.pausing(cluster.Containerd),
		SchedulerKilled:     f.restarting(cluster.Scheduler),
		SchedulerStopped:    f.pausing(cluster.Scheduler),
		OurSchedulerKilled:  f.killScheduler,
		OurSchedulerStopped: f.stopScheduler,
		APIServerKilled:     f.restarting(cluster.APIServer),
		APIServerStopped:    f.pausing(cluster.APIServer),
		APIServerSlow:       f.slowAPIServer,
		APIServerPartition:  f.partitionAPIServer,
		DriverReloaded:      n.reloadDriver,
		NodeRebooted:        n.reboot,
		GPULost:             n.loseGPU,
		GPUNeedsReset:       n.reportXID,
		PartitionByHand:     n.partitionByHand,
		DiskFull:            f.fillDisk,
		ClockJumped:         f.jumpClock,
		PolicySwitched:      r.switchPolicy,
		PolicyAtPrepare:     r.switchPolicyAtPrepare,
		RecordsCorrupted:    f.corruptRecords,
		NodeRecreated:       o.recreateNode,
		ClaimsHeld:          o.holdClaims,
		GatesOff:            o.turnGatesOff,
		ContainerHangs:      n.hang,
		ReleaseUpgraded:     r.upgrade,
		ReleaseRolledBack:   r.rollBack,
	}
}

// kill ends a program's processes, as a crash does, of which there is one, or will be.
func (f *faults) kill(ctx context.Context, p program) error {
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	return workload.Until(ctx, "a process of "+p.String()+", to kill it", func(context.Context) (bool, string, error) {
		pids, err := f.bed.signal(p, syscall.SIGKILL)
		f.killed = append(f.killed, pids...)
		return len(pids) > 0, "none runs", err
	})
}

// signal sends a signal to all processes of a program. One that ends meanwhile is as good.
func (b *bed) signal(p program, sig syscall.Signal) (pids []int, err error) {
	list, err := b.running(p)
	for _, q := range list {
		pids = append(pids, q.PID)
		if e := syscall.Kill(q.PID, sig); e != nil && !errors.Is(e, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("send %s to process %d: %w", sig, q.PID, e))
		}
	}
	return pids, err
}

// last waits for as long as a fault lasts, with the crash in its midst.
func (f *faults) last(ctx context.Context, fault Fault) error {
	sleep(ctx, fault.For/2)
	if err := f.meanwhile(ctx, fault); err != nil {
		return err
	}
	sleep(ctx, fault.For-fault.For/2)
	return ctx.Err()
}

func (f *faults) killing(p program) injector {
	return func(ctx context.Context, _ Fault) (time.Time, error) { return time.Now(), f.kill(ctx, p) }
}

func (f *faults) stopping(p program) injector {
	return func(ctx context.Context, fault Fault) (time.Time, error) {
		_, err := f.bed.signal(p, syscall.SIGSTOP)
		err = errors.Join(err, f.last(ctx, fault))
		_, again := f.bed.signal(p, syscall.SIGCONT)
		return time.Now(), errors.Join(err, again)
	}
}

func (f *faults) restarting(c cluster.Component) injector {
	return func(ctx context.Context, _ Fault) (time.Time, error) {
		from := time.Now()
		return from, f.bed.cluster.Component(c).Restart(ctx, syscall.SIGKILL)
	}
}

func (f *faults) pausing(c cluster.Component) injector {
	return func(ctx context.Context, fault Fault) (time.Time, error) {
		control := f.bed.cluster.Component(c)
		err := errors.Join(control.Signal(syscall.SIGSTOP), f.last(ctx, fault), control.Signal(syscall.SIGCONT))
		return time.Now(), err
	}
}

// killDaemon ends the MPS daemons, of which there is one at least: that of a pod that is there for it.
func (f *faults) killDaemon(ctx context.Context, fault Fault) (time.Time, error) {
	name := fmt.Sprintf("victim-%05d", fault.Index)
	if err := f.bed.run(ctx, f.pods, Shape{Name: "victim", Claims: []Ask{AskMPS}}.manifest(name, ""), podTimeout); err != nil {
		return time.Time{}, err
	}
	from := time.Now()
	if err := f.kill(ctx, daemonProgram); err != nil {
		return from, err
	}
	return from, f.bed.endPod(ctx, f.pods, name, false)
}

func (f *faults) slowAPIServer(ctx context.Context, fault Fault) (time.Time, error) {
	f.bed.api.Delay(lateness)
	defer f.bed.api.Delay(0)
	err := f.last(ctx, fault)
	return time.Now(), err
}

func (f *faults) partitionAPIServer(ctx context.Context, fault Fault) (time.Time, error) {
	f.bed.api.Cut()
	defer f.bed.api.Mend()
	err := f.last(ctx, fault)
	return time.Now(), err
}
