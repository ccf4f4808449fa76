// SPDX-License-Identifier: Apache-2.0

package history

import (
	"testing"
	"time"
)

func TestCheck_Answers(t *testing.T) {
	other := prepare(3, 4, "a", whole)
	r := other[1].Fact.(Return)
	r.Devices = []Prepared{{Device: whole, CDI: []string{"cdi/other=x"}}}
	other[1].Fact = r
	runCases(t, []checkCase{
		{name: "the same twice", events: join(allocated(1, "a", whole), prepare(1, 2, "a", whole), prepare(3, 4, "a", whole))},
		{name: "another", events: join(allocated(1, "a", whole), prepare(1, 2, "a", whole), other), want: []string{
			"answer: At 4s claim a was prepared again and got [{gpu-0 [cdi/other=x]}]. " +
				"At 2s it had got [{gpu-0 [cdi/a=gpu-0]}], and it was not unprepared since.",
		}},
		{name: "another after it was unprepared", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), unprepare(2.5, 2.6, "a"), other)},
		{name: "the API server says later", events: join(prepare(1, 2, "a", whole), allocated(3, "a", whole))},
		{name: "not what was allocated", events: join(allocated(1, "a", whole), prepare(1, 2, "a", left), created(1.5, "cleave-node", 9, 0, 1)),
			want: []string{"answer: At 2s claim a was prepared with gpu-0-mig-9-0. It was allocated gpu-0."}},
	})
}

func TestCheck_Devices(t *testing.T) {
	one := join(allocated(1, "a", left), prepare(1, 2, "a", left), created(1.5, "cleave-node", 9, 0, 1), container(3, "a", ContainerStarted))
	runCases(t, []checkCase{
		{name: "to the end", events: join(one, container(5, "a", ContainerEnded), unprepare(6, 7, "a"), destroyed(6.5, "cleave-node", 9, 0, 1))},
		{name: "destroyed before", events: join(one, destroyed(4, "cleave-node", 9, 0, 1), container(5, "a", ContainerEnded), unprepare(6, 7, "a")),
			want: []string{
				"device: At 4s cleave-node destroyed partition gpu-0-mig-9-0, which claim a has. It was prepared at 2s, and nobody had released it.",
			}},
		{name: "destroyed before the container starts", events: join(
			allocated(1, "a", left), prepare(1, 2, "a", left), created(1.5, "cleave-node", 9, 0, 1), destroyed(2.5, "cleave-node", 9, 0, 1),
			container(3, "a", ContainerStarted)),
			want: []string{
				"device: At 2.5s cleave-node destroyed partition gpu-0-mig-9-0, which claim a has. It was prepared at 2s, and nobody had released it.",
			}},
		{name: "destroyed to be prepared again", events: join(
			allocated(1, "a", left), prepare(1, 2, "a", left), created(1.5, "cleave-node", 9, 0, 1), lost(prepare(3, 0, "a")),
			destroyed(4, "cleave-node", 9, 0, 1), created(5, "cleave-node", 9, 0, 2), prepare(5, 6, "a", left))},
		{name: "destroyed to be prepared again, while its container runs", events: join(
			one, prepare(4, 6, "a", left), destroyed(4.5, "cleave-node", 9, 0, 1), created(5, "cleave-node", 9, 0, 2), container(7, "a", ContainerEnded)),
			want: []string{
				"device: At 4.5s cleave-node destroyed partition gpu-0-mig-9-0, which claim a has. Container main of pod pod-a ran with it from 3s to 7s.",
			}},
		{name: "destroyed after the claim was deleted by force", events: join(
			one, deleted(4, "a"), destroyed(4.5, "cleave-node", 9, 0, 1), container(5, "a", ContainerEnded)),
			want: []string{
				"device: At 4.5s cleave-node destroyed partition gpu-0-mig-9-0, which claim a has. Container main of pod pod-a ran with it from 3s to 5s.",
			}},
		{name: "destroyed after it, but the end was not seen", events: join(
			one, deleted(4, "a"), destroyed(4.5, "cleave-node", 9, 0, 1), container(5, "a", ContainerEnded), at(5, Gap{SourceRuntime, 4_300_000_000}))},
		{name: "destroyed by another", events: join(one, destroyed(4, "nvml-sim", 9, 0, 1), container(5, "a", ContainerEnded))},
		{name: "never created", events: join(
			hardware(1, MIGMode, "cleave-node", nil), allocated(1, "a", left), prepare(1, 2, "a", left)),
			want: []string{"device: At 2s claim a was prepared with gpu-0-mig-9-0, which did not exist. It was never created."}},
		{name: "gone since a reboot, and prepared again", events: join(
			one, hardware(4, Booted, "nvml-sim", nil), destroyed(4, "nvml-sim", 9, 0, 1), container(4, "a", ContainerEnded), prepare(5, 6, "a", left)),
			want: []string{"device: At 6s claim a was prepared with gpu-0-mig-9-0, which did not exist. It was destroyed at 4s by nvml-sim."}},
		{name: "created again after a reboot", events: join(
			one, hardware(4, Booted, "nvml-sim", nil), destroyed(4, "nvml-sim", 9, 0, 1), container(4, "a", ContainerEnded),
			created(5.5, "cleave-node", 9, 0, 2), prepare(5, 6, "a", left))},
		{name: "not prepared", events: join(allocated(1, "a", whole), refused(1, 2, "a"), container(3, "a", ContainerStarted)), want: []string{
			"device: At 3s container main of pod pod-a started while claim a was not prepared. It runs without what it was allocated.",
		}},
		{name: "MPS under a container", events: join(
			sharing(1, "a", 50), prepare(1, 2, "a", shared), mode(1.5, "EXCLUSIVE_PROCESS"), container(3, "a", ContainerStarted),
			mode(4, "DEFAULT"), container(5, "a", ContainerEnded)),
			want: []string{
				"device: At 4s cleave-node took the compute mode of MPS from gpu-0, which claim a has. Container main of pod pod-a ran with it from 3s to 5s.",
			}},
		{name: "MIG mode under a whole GPU", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), container(3, "a", ContainerStarted),
			at(4, Hardware{Change: MIGMode, GPU: whole, Value: "true", By: "cleave-node"}), container(5, "a", ContainerEnded)),
			want: []string{
				"device: At 4s cleave-node changed the MIG mode of gpu-0, which claim a has. Container main of pod pod-a ran with it from 3s to 5s.",
			}},
	})
}

func TestCheck_Unmanaged(t *testing.T) {
	runCases(t, []checkCase{
		{name: "its own", events: join(created(1, "cleave-node", 9, 0, 1), destroyed(2, "cleave-node", 9, 0, 1))},
		{name: "another's", events: join(created(1, "nvidia-smi", 9, 0, 1), destroyed(2, "cleave-node", 9, 0, 1)), want: []string{
			"unmanaged: At 2s cleave-node destroyed partition gpu-0-mig-9-0 (serial 1). It was created at 1s by nvidia-smi, so it is not Cleave's to destroy.",
		}},
		{name: "another's in the place of its own", events: join(
			created(1, "cleave-node", 9, 0, 1), destroyed(2, "nvml-sim", 9, 0, 1), created(2, "nvml-sim", 9, 0, 2), destroyed(3, "cleave-node", 9, 0, 2)),
			want: []string{
				"unmanaged: At 3s cleave-node destroyed partition gpu-0-mig-9-0 (serial 2). It was created at 2s by nvml-sim, so it is not Cleave's to destroy.",
			}},
		{name: "one that was announced and never created", events: join(
			created(1, "nvidia-smi", 9, 0, 1), created(2, "cleave-node", 9, 0, 1), destroyed(3, "cleave-node", 9, 0, 1))},
	})
}

func TestCheck_Releases(t *testing.T) {
	one := join(allocated(1, "a", left), prepare(1, 2, "a", left), created(1.5, "cleave-node", 9, 0, 1), unprepare(3, 4, "a"), deleted(5, "a"))
	late := at(60, Gap{SourceAPI, 60_000_000_000}) // the history goes on until then
	still := func(until, ended string) []string {
		return []string{"release: Partition gpu-0-mig-9-0 (serial 1), which was there from 1.5s on and for claim a, was still there at " + until +
			". The claim ended at " + ended + ", and what it had must be free within 10s."}
	}
	limits := Limits{Release: 10 * time.Second}
	kept := limits
	kept.Kept = []string{left}
	runCases(t, []checkCase{
		{name: "at once", limits: limits, events: join(one, destroyed(3.5, "cleave-node", 9, 0, 1), late)},
		{name: "in time", limits: limits, events: join(one, destroyed(13, "cleave-node", 9, 0, 1), late)},
		{name: "too late", limits: limits, events: join(one, destroyed(30, "cleave-node", 9, 0, 1), late), want: still("30s", "4s")},
		{name: "never", limits: limits, events: join(one, late), want: still("1m0s", "4s")},
		{name: "of a layout", limits: kept, events: join(one, late)},
		{name: "the history ends before", limits: limits, events: one},
		{name: "after a fault", limits: limits, events: join(one, late, destroyed(29, "cleave-node", 9, 0, 1),
			at(5, Fault{Name: "kill", State: FaultBegan}), at(20, Fault{Name: "kill", State: FaultRecovered}))},
		{name: "after a fault, and too late", limits: limits, events: join(one, late, destroyed(29.5, "cleave-node", 9, 0, 1),
			at(5, Fault{Name: "kill", State: FaultBegan}), at(20, Fault{Name: "kill", State: FaultRecovered})), want: still("29.5s", "4s")},
		{name: "faults at the same time count once", limits: limits, events: join(one, late, destroyed(32.5, "cleave-node", 9, 0, 1),
			at(5, Fault{Name: "kill", State: FaultBegan}), at(10, Fault{Name: "stop", State: FaultBegan}),
			at(20, Fault{Name: "kill", State: FaultRecovered}), at(23, Fault{Name: "stop", State: FaultRecovered})), want: still("32.5s", "4s")},
		{name: "a fault much later is no excuse", limits: limits, events: join(one, late, destroyed(39, "cleave-node", 9, 0, 1),
			at(20, Fault{Name: "kill", State: FaultBegan}), at(30, Fault{Name: "kill", State: FaultRecovered})), want: still("39s", "4s")},
		{name: "while the GPU is lost", limits: limits, events: join(one, late, destroyed(34, "cleave-node", 9, 0, 1),
			hardware(3.5, GPULost, "nvml-sim", nil), hardware(30, GPUBack, "nvml-sim", nil))},
		{name: "taken over by another claim", limits: limits, events: join(one, late,
			allocated(5, "b", left), prepare(6, 7, "b", left), unprepare(40, 41, "b"), destroyed(42, "cleave-node", 9, 0, 1))},
		{name: "a claim that is refused its place has not taken it over", limits: limits, events: join(one, late,
			allocated(5, "b", left), refused(6, 7, "b"), refused(16, 17, "b"), destroyed(42, "cleave-node", 9, 0, 1)), want: still("42s", "4s")},
		{name: "of a claim that was never prepared", limits: limits, events: join(late,
			allocated(1, "a", left), lost(prepare(1, 0, "a")), created(1.5, "cleave-node", 9, 0, 1), refused(2, 3, "a"), unprepare(4, 5, "a")),
			want: still("1m0s", "5s")},
		{name: "of a claim that is gone from the API server", limits: limits, events: join(late,
			allocated(1, "a", left), lost(prepare(1, 0, "a")), created(1.5, "cleave-node", 9, 0, 1), deleted(5, "a")),
			want: still("1m0s", "5s")},
		{name: "a compute mode", limits: limits, events: join(late,
			sharing(1, "a", 50), prepare(1, 2, "a", shared), mode(1.5, "EXCLUSIVE_PROCESS"), sharing(2, "b", 50), prepare(2, 3, "b", shared),
			unprepare(3, 4, "a"), unprepare(20, 21, "b"), mode(22, "DEFAULT"))},
		{name: "a compute mode that stays", limits: limits, events: join(late,
			sharing(1, "a", 50), prepare(1, 2, "a", shared), mode(1.5, "EXCLUSIVE_PROCESS"), unprepare(3, 4, "a"), mode(22, "DEFAULT")),
			want: []string{"release: Compute mode EXCLUSIVE_PROCESS of gpu-0, which was there from 1.5s on and for claim a, was still there at 22s. " +
				"The claim ended at 4s, and what it had must be free within 10s."}},
		{name: "created without a claim", limits: limits, events: join(late,
			created(0.5, "cleave-node", 9, 0, 1), allocated(1, "a", left), prepare(1, 2, "a", left), unprepare(3, 4, "a"))},
	})
}

func TestCheck_Clients(t *testing.T) {
	const sharedLeft, slicedGPU = left + "-mps", whole + "-timeslice"
	leftPartition := &Partition{Profile: 9, Start: 0, Serial: 1}
	share := join(sharing(1, "a", 50), prepare(1, 2, "a", shared))
	refused := func(second string, of string, uid string) []string {
		return []string{"client: At " + second + " the MPS server of " + of + " began to serve process 12 (cuda) of pod pod-" + uid +
			". No claim of that pod had a share of it."}
	}
	partition := join(allocated(1, "a", sharedLeft), prepare(1, 2, "a", sharedLeft), created(1.5, "cleave-node", 9, 0, 1))
	runCases(t, []checkCase{
		{name: "of a share", events: join(share, served(3, "a", nil))},
		{name: "again, with another server", events: join(share, served(3, "a", nil), served(4, "a", nil))},
		{name: "while the share is given back", events: join(share, served(6.5, "a", nil), unprepare(6, 7, "a"))},
		{name: "of another pod", events: join(share, served(3, "b", nil)), want: refused("3s", whole, "b")},
		{name: "before the share was prepared", events: join(served(1.5, "a", nil), share), want: refused("1.5s", whole, "a")},
		{name: "before it, but the kubelet was not watched", events: join(served(1.5, "a", nil), share, at(2, Gap{SourceKubelet, 1_000_000_000}))},
		{name: "after it was given back", events: join(share, unprepare(6, 7, "a"), served(8, "a", nil)), want: refused("8s", whole, "a")},
		{name: "after it was given back, in a container that still ran", events: join(
			share, container(3, "a", ContainerStarted), unprepare(6, 7, "a"), served(8, "a", nil), container(9, "a", ContainerEnded))},
		{name: "with a share in time", events: join(
			allocated(1, "a", slicedGPU), prepare(1, 2, "a", slicedGPU), served(3, "a", nil)), want: refused("3s", whole, "a")},
		{name: "with the whole GPU", events: join(
			allocated(1, "a", whole), prepare(1, 2, "a", whole), served(3, "a", nil)), want: refused("3s", whole, "a")},
		{name: "of a claim from before the recording", events: join(sharing(1, "a", 50), served(3, "a", nil))},
		{name: "of a pod whose claim nobody can have seen", events: join(share, served(3, "b", nil), at(4, Gap{SourceAPI, 2_000_000_000}))},
		{name: "that only looks on", events: join(
			at(1, Claim{UID: "a", State: ClaimAllocated, Pods: []string{"pod-a"}, Devices: []Allocated{{Device: shared, Admin: true}}}),
			prepare(1, 2, "a", shared), served(3, "a", nil)), want: refused("3s", whole, "a")},
		{name: "of a shared partition", events: join(partition, served(3, "a", leftPartition))},
		{name: "of the GPU, with a share of a partition", events: join(partition, served(3, "a", nil)), want: refused("3s", whole, "a")},
		{name: "of another partition", events: join(partition, served(3, "a", &Partition{Profile: 9, Start: 4, Serial: 2})),
			want: refused("3s", right, "a")},
		{name: "of a process in no pod", events: join(at(3, Hardware{Change: ServedStarted, GPU: whole, PID: 12, Program: "cuda"}))},
	})
}
