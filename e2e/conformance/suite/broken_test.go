// SPDX-License-Identifier: Apache-2.0

package suite_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	fake "github.com/cleave-dra/cleave/e2e/conformance/fakedriver"
	"github.com/cleave-dra/cleave/e2e/conformance/suite"
)

// broken are drivers with one fault, each with a case that fails for it, and what the case says.
var broken = []struct {
	fault  fake.Fault
	fails  string
	reason string
}{
	{fake.RegistersOtherName, "registration/socket", "no registration socket"},
	{fake.RegistersOtherType, "registration/socket", "no registration socket"},
	{fake.RegistersUnserved, "registration/versions", "v1.DRAPlugin is registered and not served"},
	{fake.RegistersUnknown, "registration/versions", "a kubelet knows"},
	{fake.EndpointRelative, "registration/endpoint", "want an absolute path"},
	{fake.EndpointMissing, "registration/endpoint", "no such file"},
	{fake.EndpointFile, "registration/endpoint", "which is no socket"},
	{fake.RegistersDifferently, "registration/again", "GetInfo gave"},
	{fake.RefusesSecondRegister, "registration/again", "registered already"},

	{fake.PublishesNothing, "slices/complete", "no ResourceSlice of the driver"},
	{fake.CountsSlicesWrong, "slices/complete", "slice-0 says 4"},
	{fake.KeepsStaleSlice, "slices/complete", "older generations: slice-stale"},
	{fake.PublishesInvalid, "slices/accepted", "Not_A_Label"},
	{fake.PublishesNothing, "slices/accepted", "no ResourceSlice is published"},
	{fake.RepeatsDevice, "slices/names", "device device-0 twice"},
	{fake.RepeatsCounterSet, "slices/names", "counter set board twice"},
	{fake.ConsumesUnknownSet, "slices/counters", "of set no-such-set, which the pool lacks"},
	{fake.ConsumesMore, "slices/counters", "consumes 101 of counter memory of set board, which has 100"},
	{fake.CountersBelowAllocated, "slices/counters", "-40 are left"},
	{fake.ConsumesMore, "slices/allocatable", "device whole of pool node-1, one of 1, can never be allocated"},
	{fake.OnOtherNode, "slices/allocatable", "can never be allocated"},

	{fake.OmitsEntry, "prepare/devices", "no entry"},
	{fake.GivesOtherDevice, "prepare/devices", "which is not allocated to it"},
	{fake.GivesOtherRequest, "prepare/devices", `for request "other"`},
	{fake.GivesDeviceTwice, "prepare/devices", "twice"},
	{fake.WritesNoSpec, "prepare/cdi", "no CDI spec has it"},
	{fake.UnqualifiedCDI, "prepare/cdi", "parse CDI device"},
	{fake.FailsSecondPrepare, "prepare/idempotent", "prepared already"},
	{fake.ChangesAnswer, "prepare/idempotent", "the devices were"},
	{fake.NamesSubrequest, "prepare/alternatives", "containers name main requests"},
	{fake.PreparesOthers, "prepare/other-driver", "which is not allocated to it"},
	{fake.ReadsOthersConfig, "prepare/other-driver", "unknown kind"},
	{fake.AllowsDoubleUse, "prepare/in-use", "claim rival was prepared"},
	{fake.RefusedTakesOver, "prepare/in-use", "after another claim was refused"},
	{fake.IgnoresUID, "prepare/replaced", "was prepared"},
	{fake.AcceptsParameters, "prepare/parameters", "claim bad was prepared"},

	{fake.PreparesFirstOnly, "batch/several", "no entry"},
	{fake.FailsWholeCall, "batch/one-bad", "one claim of three is bad, and the call failed"},
	{fake.OneBadSpoilsAll, "batch/one-bad", "prepare claim claim-0: the parameters"},
	{fake.PreparesMissing, "batch/one-missing", "want an error in its entry"},
	{fake.MissingBlocks, "batch/one-missing", "a claim is missing"},

	{fake.FailsSecondUnprepare, "unprepare/idempotent", "time 2"},
	{fake.OmitsUnknown, "unprepare/idempotent", "no entry"},
	{fake.FailsUnknown, "unprepare/unknown", "is not prepared"},
	{fake.OmitsUnknown, "unprepare/unknown", "no entry"},
	{fake.ReadsDeletedClaim, "unprepare/deleted", "not found"},
	{fake.LeavesSpec, "unprepare/undone", "after the claim was unprepared"},
	{fake.LeavesRecord, "unprepare/reused", "is in use by"},

	{fake.RefusesConcurrent, "concurrent/claims", "another call runs"},
	{fake.RefusesConcurrent, "concurrent/same-claim", "another call runs"},

	{fake.LosesSpecs, "restart/prepared", "after a restart"},
	{fake.StaysAway, "restart/prepared", "the restarted driver to serve"},
	{fake.Forgets, "restart/unprepare", "after the claim was unprepared"},
	{fake.Forgets, "restart/in-use", "claim rival was prepared"},
	{fake.Withdraws, "restart/slices", "device device-0 is missing"},

	{fake.RefusesAdmin, "admin/in-use", "admin access is not served"},
	{fake.AdminReleasesDevice, "admin/in-use", "after a claim with admin access was unprepared"},
	{fake.RefusesAdmin, "admin/free", "admin access is not served"},
	{fake.AdminTakesDevice, "admin/free", "after a claim with admin access was prepared"},

	{fake.RefusesSecondShare, "shares/two-claims", "is in use by"},
	{fake.ReleasesAllShares, "shares/two-claims", "after the other share was unprepared"},
	{fake.WrongShareID, "shares/two-claims", "which is not allocated to it"},
	{fake.OneShareOnly, "shares/one-claim", "request second got none"},
	{fake.ShrinksCapacity, "shares/capacity", "consume 20 of memory, which has 5"},

	{fake.RepeatsTaint, "taints/published", "is there twice"},
	{fake.TaintsInFuture, "taints/published", "is to be added at"},
	{fake.RefusesTolerations, "taints/tolerated", "tolerations are not served"},
	{fake.NoTaint, "taints/damaged", "change its taints"},
	{fake.TaintsInFuture, "taints/damaged", "is to be added at"},
	{fake.TaintStays, "taints/damaged", "change its taints"},
	{fake.Unpublishes, "taints/damaged", "no longer published"},

	{fake.HealthSilent, "health/report", "DeadlineExceeded"},
	{fake.HealthOther, "health/report", "reported and not published"},
	{fake.HealthTwice, "health/report", "is reported twice"},
	{fake.HealthFuture, "health/report", "was determined at"},
	{fake.HealthValue, "health/report", "its health is 7"},
	{fake.HealthLong, "health/report", "1025 characters"},
	{fake.HealthPartial, "health/complete", "1 of 15 devices are not in the report, node-1/device-0"},
	{fake.HealthOnce, "health/again", "connected already"},
	{fake.HealthUnserved, "health/again", "v1alpha1.DRAResourceHealth"},
	{fake.HealthConstant, "health/damaged", "to be UNHEALTHY, last seen HEALTHY"},
	{fake.HealthNeverBack, "health/damaged", "to be HEALTHY, last seen UNHEALTHY"},

	{fake.StatusOther, "status/devices", "which the claim does not"},
	{fake.StatusPartial, "status/devices", "status.devices lacks"},
	{fake.NotReady, "status/conditions", "condition Ready of device-0, which is prepared, is False"},
	{fake.ConditionIncomplete, "status/conditions", "is incomplete"},

	{fake.MetadataElsewhere, "metadata/files", "nothing is mounted at"},
	{fake.MetadataOther, "metadata/files", "is of claim dra-conformance/other"},
	{fake.MetadataBroken, "metadata/files", "decode"},
	{fake.MetadataEmpty, "metadata/files", "lacks device device-0"},
	{fake.MetadataStays, "metadata/removed", "is left"},
}

func TestRun_BrokenDriver(t *testing.T) {
	for _, c := range broken {
		t.Run(string(c.fault)+" "+c.fails, func(t *testing.T) {
			t.Parallel()
			var without []fake.Feature
			if c.fault == fake.RegistersUnserved {
				without = []fake.Feature{fake.V1}
			}
			b := start(t, []fake.Fault{c.fault}, without)
			if c.fault == fake.CountersBelowAllocated {
				allocate(t, b.client, "half-0", "half-1")
			}
			// No condition of these comes true, however long one waits.
			switch c.fault {
			case fake.StaysAway:
				b.config.Timeout = 10 * time.Second
			case fake.PublishesNothing, fake.CountsSlicesWrong, fake.KeepsStaleSlice, fake.Withdraws, fake.NoTaint, fake.TaintStays, fake.HealthSilent:
				b.config.SettleTimeout = 500 * time.Millisecond
			case fake.HealthConstant, fake.HealthNeverBack: // a report has to come first, to be the last that was seen
				b.config.SettleTimeout = 3 * time.Second
			}
			b.config.Only = regexp.MustCompile("^" + c.fails + "$")
			report := b.run()
			if len(report.Cases) != 1 || report.Failed != 1 || !strings.Contains(report.Cases[0].Reason, c.reason) {
				t.Errorf("got %+v, want a failure that says %q", report.Cases, c.reason)
			}
		})
	}
}

// No case can only pass: each one fails for some fault, and each fault fails a case.
func TestCases_EachCaught(t *testing.T) {
	for _, c := range suite.Cases() {
		caught := false
		for _, b := range broken {
			caught = caught || b.fails == c.Name
		}
		if !caught {
			t.Errorf("no broken driver fails %s", c.Name)
		}
	}
	seen := map[string]bool{}
	for _, c := range suite.Cases() {
		if seen[c.Name] || c.Rule == "" || c.Source == "" || !strings.HasSuffix(c.Rule, ".") {
			t.Errorf("%s is there twice, or does not say what it is about", c.Name)
		}
		seen[c.Name] = true
	}
}
