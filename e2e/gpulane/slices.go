// SPDX-License-Identifier: Apache-2.0

package gpulane

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// attribute is one of a device's, as ResourceSlices have it.
type attribute struct {
	String  string `json:"string"`
	Int     int    `json:"int"`
	Version string `json:"version"`
}

// device is what the lane reads of a published device.
type device struct {
	Name       string               `json:"name"`
	Attributes map[string]attribute `json:"attributes"`
	Capacity   map[string]struct {
		Value string `json:"value"`
	} `json:"capacity"`
}

func (d *device) text(name string) string { return d.Attributes[name].String }

// memory in bytes, 0 where the device has none.
func (d *device) memory() (int64, error) {
	c, ok := d.Capacity["memory"]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(c.Value)
	if err != nil {
		return 0, fmt.Errorf("read the memory of %s, %q: %w", d.Name, c.Value, err)
	}
	return q.Value(), nil
}

// parseSlices reads the devices of `cleave slices -o json`.
func parseSlices(output []byte) ([]device, error) {
	var list struct {
		Items []struct {
			Spec struct {
				Devices []device `json:"devices"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal(output, &list); err != nil {
		return nil, fmt.Errorf("read what cleave slices printed: %w", err)
	}
	var devices []device
	for _, item := range list.Items {
		devices = append(devices, item.Spec.Devices...)
	}
	return devices, nil
}

// inspected is what the lane reads of `cleave inspect -o json`.
type inspected struct {
	DriverVersion string `json:"driverVersion"`
	GPUs          []struct {
		Device string `json:"device"`
		UUID   string `json:"uuid"`
		MIG    string `json:"mig"`
	} `json:"gpus"`
	Problems []string `json:"problems"`
}

// reservedVaries is by how many MiB what a driver reserves may differ between two looks.
const reservedVaries = 16

// compareSlices lists what NVML reports of its GPUs and Cleave does not publish so.
func compareSlices(devices []device, boards []board) ([]string, error) {
	var list []string
	for i := range boards {
		b := &boards[i]
		found := false
		for _, d := range devices {
			if d.text("uuid") != b.uuid && d.text("parentUUID") != b.uuid {
				continue
			}
			found = true
			if pci := d.text("resource.kubernetes.io/pciBusID"); pci != b.pci.String() && d.text("type") != "mig" {
				list = append(list, fmt.Sprintf("%s is published at %s, and is at %s", d.Name, pci, b.pci))
			}
			if !strings.HasPrefix(d.Name, b.pci.DeviceName()) {
				list = append(list, fmt.Sprintf("%s is named after another GPU than the one at %s", d.Name, b.pci))
			}
			if d.text("type") != "gpu" {
				continue
			}
			memory, err := d.memory()
			if err != nil {
				return nil, err
			}
			if b.total > 0 && !near(memory>>20, b.usable()>>20, reservedVaries) {
				list = append(list, fmt.Sprintf("%s is published with %d MiB, and has %d MiB besides what the driver reserves", d.Name,
					memory>>20, b.usable()>>20))
			}
		}
		if !found {
			list = append(list, fmt.Sprintf("nothing is published of %s at %s", b.uuid, b.pci))
		}
	}
	return list, nil
}

// comparePlacements lists where NVML would make a partition and Cleave publishes none, and the reverse. A GPU of which
// no partition is published is passed over: by its mode it is offered whole.
func comparePlacements(devices []device, boards []board) (published int, list []string) {
	for i := range boards {
		b := &boards[i]
		want, have := map[string]bool{}, map[string]bool{}
		for id, places := range b.profiles {
			for _, p := range places {
				want[placementName(id, p)] = true
			}
		}
		for _, d := range devices {
			if id, start, ok := gpu.ParsePartitionName(d.Name); ok && d.text("parentUUID") == b.uuid {
				have[placementName(id, gpu.Placement{Start: start, Size: d.Attributes["placementSize"].Int})] = true
			}
		}
		published += len(have)
		if len(have) == 0 {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if !have[name] {
				list = append(list, fmt.Sprintf("GPU %d: %s is not published", b.index, name))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(have)) {
			if !want[name] {
				list = append(list, fmt.Sprintf("GPU %d: %s is published, and NVML does not know it", b.index, name))
			}
		}
	}
	return published, list
}

func placementName(profile int, p gpu.Placement) string {
	return fmt.Sprintf("profile %d at %d:%d", profile, p.Start, p.Size)
}

// shapes describes what of a GPU's devices does not depend on the machine it is in: what a model of it should say, too.
func shapes(devices []device, uuid string) map[string]string {
	found := map[string]string{}
	for _, d := range devices {
		kind := d.text("type")
		if d.text("uuid") != uuid && d.text("parentUUID") != uuid || kind != "gpu" && kind != "mig" {
			continue
		}
		name := kind
		if kind == "mig" {
			id, start, _ := gpu.ParsePartitionName(d.Name)
			name = placementName(id, gpu.Placement{Start: start, Size: d.Attributes["placementSize"].Int})
		}
		words := []string{d.text("profile"), d.Attributes["cudaComputeCapability"].Version, d.text("architecture"),
			d.text("brand"), d.text("addressingMode")}
		for _, c := range slices.Sorted(maps.Keys(d.Capacity)) {
			words = append(words, c+"="+d.Capacity[c].Value)
		}
		found[name] = strings.TrimSpace(strings.Join(words, " "))
	}
	return found
}

// compareShapes lists in what a real GPU differs from the model of it.
func compareShapes(real, model map[string]string) []string {
	var list []string
	names := maps.Clone(real)
	maps.Copy(names, model)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if real[name] != model[name] {
			list = append(list, fmt.Sprintf("%s: real %q, model %q", name, real[name], model[name]))
		}
	}
	return list
}
