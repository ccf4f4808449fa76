// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// watch makes an event set that watches all GPUs of a node.
func watch(t *testing.T, n *Node) *EventSet {
	t.Helper()
	set, err := n.EventSetCreate()
	must(t, err)
	for i := range n.spec.GPUs {
		d := n.Device(i)
		types, err := d.SupportedEventTypes()
		must(t, err)
		must(t, d.RegisterEvents(types, set))
	}
	return set
}

func TestEvents_OtherProcess(t *testing.T) {
	root := createNode(t, "hgx-h100")
	n, other := openNode(t, root), openNode(t, root)
	must(t, other.Hardware().RaiseXID(3, 13))
	set := watch(t, n) // later than the event
	must(t, other.Hardware().RaiseXID(3, 79))
	must(t, other.Hardware().Raise(4, Event{Type: EventXID, Data: 31, GPUInstance: 7, ComputeInstance: 0}))
	want := []Event{
		{Device: n.Device(3), Type: EventXID, Data: 79, GPUInstance: noInstance, ComputeInstance: noInstance},
		{Device: n.Device(4), Type: EventXID, Data: 31, GPUInstance: 7},
	}
	for _, w := range want {
		got, err := set.Wait(10 * time.Second)
		if diff := cmp.Diff(w, got, cmpopts.EquateComparable(&Device{})); diff != "" || err != nil {
			t.Errorf("event, %v (-want +got):\n%s", err, diff)
		}
	}
	if _, err := set.Wait(0); !isCode(err, CodeTimeout) {
		t.Errorf("Wait with nothing to come = %v", err)
	}
	if err := set.Free(); err != nil {
		t.Error(err)
	}
}

func TestEvents_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := testNode(t, "hgx-h100")
		set := watch(t, n)
		begin := time.Now()
		if _, err := set.Wait(5 * time.Second); !isCode(err, CodeTimeout) || time.Since(begin) != 5*time.Second {
			t.Errorf("Wait = %v after %v", err, time.Since(begin))
		}
		go func() {
			<-time.After(time.Second)
			if err := n.Hardware().RaiseXID(0, 48); err != nil {
				t.Error(err)
			}
		}()
		begin = time.Now()
		e, err := set.Wait(time.Minute)
		if e.Data != 48 || err != nil || time.Since(begin) > time.Second+eventPoll {
			t.Errorf("Wait = %+v, %v after %v", e, err, time.Since(begin))
		}
	})
}

func TestEvents_LossReportedOnce(t *testing.T) {
	n := testNode(t, "hgx-h100")
	set := watch(t, n)
	for range 2 {
		must(t, n.Hardware().Lose(6))
		if _, err := set.Wait(0); !errors.Is(err, gpu.ErrLost) {
			t.Errorf("Wait after a loss = %v", err)
		}
		if _, err := set.Wait(0); !isCode(err, CodeTimeout) {
			t.Errorf("Wait after that = %v", err)
		}
		must(t, n.Faults().Clear(6))
		if _, err := set.Wait(0); !isCode(err, CodeTimeout) {
			t.Errorf("Wait when it is back = %v", err)
		}
	}
}

func TestEvents_Types(t *testing.T) {
	n := testNode(t, "hgx-h100")
	set, err := n.EventSetCreate()
	must(t, err)
	if err := n.Device(0).RegisterEvents(1<<40, set); !errors.Is(err, gpu.ErrNotSupported) {
		t.Errorf("RegisterEvents of nothing known = %v", err)
	}
	must(t, n.Device(0).RegisterEvents(EventMIGConfigChange, set))
	if err := n.Hardware().RaiseXID(0, 79); err != nil { // not asked for
		t.Fatal(err)
	}
	intoMIG(t, n.Device(0))
	if e, err := set.Wait(0); e.Type != EventMIGConfigChange || err != nil {
		t.Errorf("Wait = %+v, %v", e, err)
	}
	must(t, n.Hardware().RaiseXID(0, 7))
	for range keptEvents { // many changes do not crowd out other events
		if _, err := n.Device(0).MIG().SetMIGMode(false); err != nil {
			t.Fatal(err)
		}
		intoMIG(t, n.Device(0))
	}
	must(t, n.Device(0).RegisterEvents(EventXID, set))
	if e, err := set.Wait(0); e.Data != 7 || err != nil {
		t.Errorf("Wait = %+v, %v", e, err)
	}
	for range keptEvents + 5 {
		must(t, n.Hardware().RaiseXID(0, 1))
	}
	if st, err := n.gpus[0].load(); len(st.Events) != keptEvents || err != nil {
		t.Errorf("kept %d events, %v", len(st.Events), err)
	}
}
