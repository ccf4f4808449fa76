// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// unknownUID is of no claim.
const unknownUID = "11111111-2222-4333-8444-555555555555"

var prepareCases = []Case{
	{
		Name:   "prepare/devices",
		Rule:   "The answer has an entry for the claim, with devices that are allocated to it, for requests that it has.",
		Source: "k8s.io/kubelet/pkg/apis/dra/v1 NodePrepareResourceResponse, Device",
		run:    prepareDevices,
	},
	{
		Name:   "prepare/cdi",
		Rule:   "The CDI devices of the answer are qualified names that a CDI spec has.",
		Source: "dra/v1 Device.cdi_device_ids; KEP-4009; the CDI specification",
		run:    prepareCDI,
	},
	{
		Name:   "prepare/idempotent",
		Rule:   "A claim that is prepared already is prepared again with the same answer.",
		Source: "kubeletplugin.DRAPlugin.PrepareResourceClaims: \"This call must be idempotent\"",
		run:    prepareIdempotent,
	},
	{
		Name:   "prepare/alternatives",
		Rule:   "A device of an alternative is for the main request, the only one that a container can name.",
		Source: "KEP-4816; kubelet ClaimInfo.cdiDevicesAsList",
		run:    prepareAlternatives,
	},
	{
		Name:   "prepare/other-driver",
		Rule:   "Devices and parameters of other drivers in a claim are ignored.",
		Source: "resource/v1 DeviceRequestAllocationResult.driver, OpaqueDeviceConfiguration.driver",
		run:    prepareOtherDriver,
	},
	{
		Name:   "prepare/in-use",
		Rule:   "An exclusive device that another claim has prepared is refused.",
		Source: "kubeletplugin.DRAPlugin.PrepareResourceClaims: \"A DRA driver should verify that all devices … are not already in use\"",
		run:    prepareInUse,
	},
	{
		Name:   "prepare/replaced",
		Rule:   "A claim that was replaced by another one of its name is refused.",
		Source: "dra/v1 Claim.uid; KEP-4381",
		run:    prepareReplaced,
	},
	{
		Name:   "prepare/parameters",
		Rule:   "Parameters of a kind that the driver does not know are refused.",
		Source: "resource/v1 OpaqueDeviceConfiguration.parameters: \"It is the responsibility of the driver developer to handle validation\"",
		run:    prepareParameters,
	},
}

func prepareDevices(ctx context.Context, b *bench) (string, error) {
	claim, devices, err := claimPrepared(ctx, b, "devices")
	if err != nil {
		return "", err
	}
	if err := b.checkDevices(claim, devices); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of %d allocated devices are in the answer", len(devices), len(b.resultsOf(claim))), nil
}

func prepareCDI(ctx context.Context, b *bench) (string, error) {
	if len(b.CDIDirs) == 0 {
		return "", skipf("the suite was given no directory of CDI specs")
	}
	_, devices, err := claimPrepared(ctx, b, "cdi")
	if err != nil {
		return "", err
	}
	ids := cdiIDs(devices)
	if len(ids) == 0 {
		return "", skipf("the driver's devices need no CDI device")
	}
	if err := b.resolve(devices); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d CDI devices", len(ids)), nil
}

func prepareIdempotent(ctx context.Context, b *bench) (string, error) {
	claim, first, err := claimPrepared(ctx, b, "idempotent")
	if err != nil {
		return "", err
	}
	for range 2 {
		next, err := b.prepared(ctx, claim)
		if err != nil {
			return "", fmt.Errorf("once more: %w", err)
		}
		if err := errors.Join(sameDevices(first, next), b.resolve(next)); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("three times %s", describeAll(first)), nil
}

func prepareAlternatives(ctx context.Context, b *bench) (string, error) {
	claim, err := b.claimOf(ctx, "alternatives", func(class string) resourceapi.ResourceClaimSpec {
		return requests(resourceapi.DeviceRequest{Name: request, FirstAvailable: []resourceapi.DeviceSubRequest{{
			Name: "only", DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1,
		}}})
	})
	if err != nil {
		return "", err
	}
	devices, err := b.prepared(ctx, claim)
	if err != nil {
		return "", err
	}
	if err := b.checkDevices(claim, devices); err != nil {
		return "", err
	}
	return fmt.Sprintf("allocated for %q, prepared as %s", claim.Status.Allocation.Devices.Results[0].Request, describeAll(devices)), nil
}

func prepareOtherDriver(ctx context.Context, b *bench) (string, error) {
	first, err := b.claim(ctx, "first")
	if err != nil {
		return "", err
	}
	const other = "other.dra-conformance.invalid"
	claim, err := b.again(ctx, "mixed", first, func(spec *resourceapi.ResourceClaimSpec, allocation *resourceapi.AllocationResult) {
		spec.Devices.Requests = append(spec.Devices.Requests, resourceapi.DeviceRequest{Name: "other", Exactly: exact(b.Classes[0])})
		allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "other", Driver: other, Pool: "pool", Device: "device",
		})
		allocation.Devices.Config = append(allocation.Devices.Config, parameters(other, "other"))
	})
	if err != nil {
		return "", err
	}
	devices, err := b.prepared(ctx, claim)
	if err != nil {
		return "", err
	}
	if err := b.checkDevices(claim, devices); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d of 2 drivers' devices", len(devices)), nil
}

// parameters are of a kind that no driver knows, for a request.
func parameters(driver, request string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{
		Source: resourceapi.AllocationConfigSourceClaim, Requests: []string{request},
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver:     driver,
			Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"dra-conformance.invalid/v1","kind":"Unknown","spec":{"value":1}}`)},
		}},
	}
}

// refused checks that a claim alone is not prepared, by the call or in its entry.
func (b *bench) refused(ctx context.Context, claim *drapb.Claim) (string, error) {
	answer, err := b.call(ctx, claim)
	if err != nil {
		return err.Error(), nil //nolint:nilerr // a call that fails refuses the claim
	}
	one, ok := answer[claim.Uid]
	if !ok {
		return "", fmt.Errorf("claim %s: neither the call fails nor has the answer an entry", claim.Name)
	}
	if one.GetError() == "" {
		return "", fmt.Errorf("claim %s was prepared: %s", claim.Name, describeAll(one.GetDevices()))
	}
	return one.GetError(), nil
}

func prepareInUse(ctx context.Context, b *bench) (string, error) {
	owner, first, err := claimPrepared(ctx, b, "owner", exclusive)
	if err != nil {
		return "", err
	}
	rival, err := b.again(ctx, "rival", owner, nil)
	if err != nil {
		return "", err
	}
	note, err := b.refused(ctx, reference(rival))
	if err != nil {
		return "", err
	}
	return note, admins{b}.still(ctx, owner, first, "another claim was refused")
}

func prepareReplaced(ctx context.Context, b *bench) (string, error) {
	claim, err := b.claim(ctx, "replaced")
	if err != nil {
		return "", err
	}
	old := reference(claim)
	old.Uid = unknownUID
	return b.refused(ctx, old)
}

func prepareParameters(ctx context.Context, b *bench) (string, error) {
	claim, err := b.badClaim(ctx)
	if err != nil {
		return "", err
	}
	return b.refused(ctx, reference(claim))
}

// badClaim has a device of its own and parameters that the driver cannot know.
func (b *bench) badClaim(ctx context.Context) (*resourceapi.ResourceClaim, error) {
	first, err := b.claim(ctx, "free", exclusive)
	if err != nil {
		return nil, err
	}
	return b.again(ctx, "bad", first, func(_ *resourceapi.ResourceClaimSpec, allocation *resourceapi.AllocationResult) {
		allocation.Devices.Config = append(allocation.Devices.Config, parameters(b.Driver, request))
	})
}
