// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

func TestFaults(t *testing.T) {
	var slept []time.Duration
	n := testNode(t, "hgx-h100", WithSleep(func(d time.Duration) { slept = append(slept, d) }))
	d := n.Device(3)
	uuid := func() error {
		_, err := d.UUID()
		return err
	}
	failing := func(calls int) []int {
		var got []int
		for i := range calls {
			if err := uuid(); isCode(err, CodeTimeout) {
				got = append(got, i+1)
			} else if err != nil {
				t.Fatal(err)
			}
		}
		return got
	}
	tests := []struct {
		name  string
		fault Fault
		want  []int // of five calls
	}{
		{"always", Fault{GPU: -1, Call: "nvmlDeviceGetUUID", Code: CodeTimeout}, []int{1, 2, 3, 4, 5}},
		{"short name", Fault{GPU: 3, Call: "DeviceGetUUID", Code: CodeTimeout}, []int{1, 2, 3, 4, 5}},
		{"all calls", Fault{GPU: -1, Call: "*", Code: CodeTimeout}, []int{1, 2, 3, 4, 5}},
		{"another GPU", Fault{GPU: 2, Call: "nvmlDeviceGetUUID", Code: CodeTimeout}, nil},
		{"another call", Fault{GPU: -1, Call: "nvmlDeviceGetName", Code: CodeTimeout}, nil},
		{"third", Fault{GPU: -1, Call: "nvmlDeviceGetUUID", Code: CodeTimeout, Skip: 2, Times: 1}, []int{3}},
		{"from the third", Fault{GPU: -1, Call: "nvmlDeviceGetUUID", Code: CodeTimeout, Skip: 2}, []int{3, 4, 5}},
		{"twice", Fault{GPU: -1, Call: "nvmlDeviceGetUUID", Code: CodeTimeout, Times: 2}, []int{1, 2}},
	}
	for _, tt := range tests {
		if _, err := n.Faults().Inject(tt.fault); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, failing(5)); diff != "" {
			t.Errorf("%s: failed calls (-want +got):\n%s", tt.name, diff)
		}
		must(t, n.Faults().Clear(-1))
		if err := uuid(); err != nil {
			t.Errorf("%s: after clearing: %v", tt.name, err)
		}
	}
	if _, err := n.Faults().Inject(Fault{GPU: -1, Call: "nvmlDeviceGetUUID", Delay: 2 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if err := uuid(); err != nil || !slices.Equal(slept, []time.Duration{2 * time.Second}) {
		t.Errorf("slow call: %v, slept %v", err, slept)
	}
}

func TestFaults_Invalid(t *testing.T) {
	n := testNode(t, "t4")
	for _, f := range []Fault{
		{Call: "nvmlDeviceGetUuid", Code: 1},
		{Call: "nvmlDeviceGetUUID"},
		{Call: "nvmlDeviceGetUUID", Code: 1, GPU: 1},
		{Call: "nvmlDeviceGetUUID", Delay: -1},
	} {
		if _, err := n.Faults().Inject(f); err == nil {
			t.Errorf("%+v was taken", f)
		}
	}
	_, err := ResolveCall("migmode")
	if err == nil || !strings.Contains(err.Error(), "nvmlDeviceGetMigMode, nvmlDeviceSetMigMode") {
		t.Errorf("ResolveCall of a near miss = %v", err)
	}
}

func TestFaults_Lost(t *testing.T) {
	n := testNode(t, "hgx-h100")
	must(t, n.Hardware().Lose(1))
	_, uuidErr := n.Device(1).UUID()
	_, handleErr := n.DeviceByIndex(1)
	_, _, modeErr := n.Device(1).MIG().MIGMode()
	_, setErr := n.Device(1).MIG().SetMIGMode(true)
	for _, err := range []error{uuidErr, handleErr, modeErr, setErr, n.Hardware().Reset(1)} {
		if !errors.Is(err, gpu.ErrLost) {
			t.Errorf("a call on the lost GPU = %v", err)
		}
	}
	if _, err := n.DeviceByIndex(0); err != nil {
		t.Errorf("another GPU: %v", err)
	}
	if count, err := n.DeviceCount(); count != 8 || err != nil {
		t.Errorf("DeviceCount = %d, %v", count, err)
	}
	if err := n.Hardware().Lose(8); err == nil {
		t.Error("GPU 8 of 8 was lost")
	}
	must(t, n.Faults().Clear(1))
	if _, err := n.Device(1).UUID(); err != nil {
		t.Errorf("after clearing: %v", err)
	}
}

func TestFaults_RecoveryActionsCleared(t *testing.T) {
	n := testNode(t, "hgx-h100")
	set := watch(t, n)
	for i := range 3 {
		must(t, n.Hardware().SetRecoveryAction(i, i))
	}
	for _, action := range []int{-1, 8} {
		if err := n.Hardware().SetRecoveryAction(0, action); err == nil {
			t.Errorf("recovery action %d was taken", action)
		}
	}
	actions := func() []int {
		st, err := n.Status()
		must(t, err)
		return []int{st.GPUs[0].Recovery, st.GPUs[1].Recovery, st.GPUs[2].Recovery}
	}
	for _, tt := range []struct {
		clear int
		want  []int
	}{{0, []int{0, 1, 2}}, {1, []int{0, 0, 2}}, {-1, []int{0, 0, 0}}} {
		must(t, n.Faults().Clear(tt.clear))
		if got := actions(); !slices.Equal(got, tt.want) {
			t.Errorf("after clearing %d: recovery actions %v, want %v", tt.clear, got, tt.want)
		}
	}
	// Who watches hears of each change, and of no others.
	for _, want := range []int{0, 1, 1, 2, 2} {
		if e, err := set.Wait(0); err != nil || e.Type != EventGPURecoveryAction || e.Device != n.Device(want) {
			t.Errorf("event %+v, %v, want a change of GPU %d", e, err, want)
		}
	}
	if e, err := set.Wait(0); !isCode(err, CodeTimeout) {
		t.Errorf("event %+v, %v, want no more", e, err)
	}
}

func TestCallNames(t *testing.T) {
	if !slices.IsSorted(callNames) {
		t.Error("callNames is not sorted")
	}
	for _, name := range callNames {
		if got, err := ResolveCall(strings.TrimPrefix(name, "nvml")); err != nil || !strings.HasPrefix(got, strings.TrimSuffix(name, "_v2")) {
			t.Errorf("ResolveCall(%s) = %s, %v", name, got, err)
		}
	}
}

func TestCodes(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int
	}{{"IN_USE", 19}, {"in_use", 19}, {"NVML_ERROR_IN_USE", 19}, {"19", 19}, {"UNKNOWN", 999}} {
		if got, err := ParseCode(tt.in); got != tt.want || err != nil {
			t.Errorf("ParseCode(%s) = %d, %v", tt.in, got, err)
		}
	}
	if _, err := ParseCode("NOPE"); err == nil {
		t.Error("ParseCode(NOPE) was taken")
	}
	err := error(fail("nvmlDeviceSetMigMode", CodeInUse, "GPU %d is held", 3))
	if want := "nvmlDeviceSetMigMode: In use by another client (NVML_ERROR_IN_USE): GPU 3 is held"; err.Error() != want {
		t.Errorf("text = %q, want %q", err, want)
	}
	if !errors.Is(err, gpu.ErrInUse) || errors.Is(err, gpu.ErrLost) {
		t.Error("the error is not what its code says")
	}
}
