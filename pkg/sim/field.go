// SPDX-License-Identifier: Apache-2.0

package sim

// Fields that nvmlDeviceGetFieldValues answers (NVML_FI_DEV_*).
const (
	fieldNVLinkSpeedCommon   = 90
	fieldNVLinkCount         = 91
	fieldRemapFailure        = 145
	fieldNVSwitchLinks       = 147
	fieldNVLinkSpeed         = 164 // scope: link
	fieldNVLinkState         = 165 // scope: link
	fieldNVLinkVersion       = 166 // scope: link
	fieldC2CLinks            = 170
	fieldMIGQueryIndependent = 199
	fieldRecoveryAction      = 230
)

// BeginFieldValues begins a call of nvmlDeviceGetFieldValues; FieldValue then answers for each field.
func (d *Device) BeginFieldValues() error {
	return d.node.enter("nvmlDeviceGetFieldValues", d.index)
}

// FieldValue is the value of one field of nvmlDeviceGetFieldValues. nvml.h documents fields and their scopes; unsimulated fields
// return NOT_SUPPORTED.
func (d *Device) FieldValue(field, scope int) (uint64, error) {
	const call = "nvmlDeviceGetFieldValues"
	link := d.board.NVLink
	switch field {
	case fieldNVLinkCount:
		if link != nil {
			return uint64(link.Links), nil
		}
	case fieldNVLinkSpeedCommon:
		if d.linked() {
			return link.MegabytesPerSecond, nil
		}
	case fieldNVSwitchLinks:
		if d.linked() && d.node.spec.Links.Kind != "groups" {
			return uint64(link.Links), nil
		}
	case fieldNVLinkSpeed, fieldNVLinkState, fieldNVLinkVersion:
		return d.Links().linkField(field, scope)
	case fieldC2CLinks:
		if d.board.AddressingMode == 2 {
			return 1, nil
		}
	case fieldMIGQueryIndependent:
		if d.board.MIG != nil {
			return 1, nil
		}
		return 0, nil
	case fieldRemapFailure:
		return d.remapFailure()
	case fieldRecoveryAction:
		st, err := d.node.gpus[d.index].load()
		if err != nil {
			return 0, fail(call, CodeUnknown, "%v", err)
		}
		return uint64(st.Recovery), nil
	}
	return 0, fail(call, CodeNotSupported, "field %d", field)
}

// remapFailure is 1 if a row of memory could not be remapped (nvml.h, nvmlDeviceGetRemappedRows: "For Ampere or newer", NOT_SUPPORTED "if
// MIG is enabled").
func (d *Device) remapFailure() (uint64, error) {
	const call = "nvmlDeviceGetFieldValues"
	st, err := d.node.gpus[d.index].load()
	switch {
	case err != nil:
		return 0, fail(call, CodeUnknown, "%v", err)
	case d.board.ComputeCapability[0] < 8 || st.MIG:
		return 0, fail(call, CodeNotSupported, "%s is older than Ampere or in MIG mode", d)
	case st.RemapFailed:
		return 1, nil
	}
	return 0, nil
}

// linkField is the value of a field about one NVLink.
func (d Links) linkField(field, number int) (uint64, error) {
	const call = "nvmlDeviceGetFieldValues"
	link := d.board.NVLink
	switch {
	case link == nil:
		return 0, fail(call, CodeNotSupported, "%s has no NVLink", d.board.Product)
	case number < 0 || number >= link.Links:
		return 0, fail(call, CodeInvalidArgument, "link %d of %d", number, link.Links)
	case field == fieldNVLinkVersion:
		return uint64(link.Version), nil
	case !d.linked():
		return 0, nil
	case field == fieldNVLinkState:
		return 1, nil
	default:
		return link.MegabytesPerSecond, nil
	}
}
