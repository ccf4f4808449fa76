// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceac "k8s.io/client-go/applyconfigurations/resource/v1"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// conditionReady and reasonPrepared are the condition of each prepared device.
const (
	conditionReady = "Ready"
	reasonPrepared = "Prepared"
)

// normal normalises data to this process's encoding, as an API server may reorder fields. It is empty for data of another release.
func normal(raw []byte) string {
	var d v1alpha1.DeviceStatus
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		return ""
	}
	text, err := json.Marshal(d)
	if err != nil {
		return ""
	}
	return string(text)
}

// devices of a record in the form of the status, and the same as text without times.
func (w *Writer) devices(record *records.Record) (devices []*resourceac.AllocatedDeviceStatusApplyConfiguration, text string, err error) {
	inventory := w.Inventory()
	for i := range record.Devices {
		d := &record.Devices[i]
		data, err := json.Marshal(Describe(d, inventory))
		if err != nil {
			return nil, "", fmt.Errorf("encode the status of device %s: %w", d.Device, err)
		}
		text += string(data) + "\n"
		status := resourceac.AllocatedDeviceStatus().WithDriver(w.Driver).WithPool(d.Pool).WithDevice(d.Device).
			WithConditions(metaac.Condition().WithType(conditionReady).WithStatus(metav1.ConditionTrue).WithReason(reasonPrepared).
				WithMessage("The device is prepared on the node").WithLastTransitionTime(metav1.NewTime(w.now()))).
			WithData(runtime.RawExtension{Raw: data})
		if id := d.AllocatedShareID(); id != "" {
			status = status.WithShareID(id)
		}
		devices = append(devices, status)
	}
	return devices, text, nil
}
