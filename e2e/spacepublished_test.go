// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/pkg/domain/nodeslices"
)

// published is what nodes publish: their ResourceSlices and the devices in them.
type published struct{ *space }

// waitTainted waits until all devices of the node have a taint.
func (s published) waitTainted(ctx context.Context, key string) {
	s.Helper()
	s.eventually(ctx, "all devices to have the taint "+key, func(ctx context.Context) (bool, string, error) {
		devices := s.devices(ctx, env.cluster.NodeName())
		for _, d := range devices {
			if !slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == key }) {
				return false, d.Name + " has none", nil
			}
		}
		return len(devices) > 0, "no devices", nil
	})
}

// unhealthy are the taints of devices of unhealthy GPUs, by device as "value:effect".
func (s published) unhealthy(ctx context.Context) map[string]string {
	s.Helper()
	found := map[string]string{}
	for _, d := range s.devices(ctx, env.cluster.NodeName()) {
		for _, t := range d.Taints {
			if t.Key == nodeslices.TaintUnhealthy {
				found[d.Name] += t.Value + ":" + string(t.Effect)
			}
		}
	}
	return found
}

// family are all devices of a GPU, which is given by the device that is the whole of it, with a taint.
func (s published) family(ctx context.Context, device, taint string) map[string]string {
	s.Helper()
	all := map[string]string{}
	for _, d := range s.devices(ctx, env.cluster.NodeName()) {
		if d.Name == device || strings.HasPrefix(d.Name, device+"-") {
			all[d.Name] = taint
		}
	}
	if len(all) != 28 {
		s.Errorf("GPU %s is %d devices, want itself, two ways to share it and 25 partitions", device, len(all))
	}
	return all
}

// waitUnhealthy waits until just these devices have these taints.
func (s published) waitUnhealthy(ctx context.Context, want map[string]string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("%d devices to have the taint of an unhealthy GPU", len(want)), func(ctx context.Context) (bool, string, error) {
		diff := cmp.Diff(want, s.unhealthy(ctx))
		return diff == "", diff, nil
	})
}

// other is a whole GPU that is none of these.
func (s published) other(ctx context.Context, but ...string) string {
	s.Helper()
	for _, d := range s.gpus(ctx) {
		if !slices.Contains(but, d.Name) {
			return d.Name
		}
	}
	s.Fatal("there is no other GPU")
	return ""
}

// taintAdded is since when a device has the taint of an unhealthy GPU.
func (s published) taintAdded(ctx context.Context, device string) string {
	s.Helper()
	d := find(s.devices(ctx, env.cluster.NodeName()), device)
	for _, t := range d.Taints {
		if t.Key == nodeslices.TaintUnhealthy && t.TimeAdded != nil {
			return t.TimeAdded.String()
		}
	}
	s.Fatalf("device %s has no taint with a time: %+v", device, d.Taints)
	return ""
}

// occupied are the devices of the cluster's node that are tainted as occupied, in order of publication.
func (s published) occupied(ctx context.Context) []string {
	s.Helper()
	var names []string
	for _, d := range s.devices(ctx, env.cluster.NodeName()) {
		if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == nodeslices.TaintOccupied }) {
			names = append(names, d.Name)
		}
	}
	return names
}

// offer are the devices that a node publishes, sorted: of each its type, with a ! if it is withdrawn and a # if another driver
// offers it, and how often that is there. "gpu=7 gpu!=1".
func (s published) offer(ctx context.Context, nodeName string) string {
	s.Helper()
	list := s.slices(ctx, nodeName)
	if len(list) == 0 || int64(len(list)) != list[0].Spec.Pool.ResourceSliceCount {
		return "not whole"
	}
	return offerOf(list)
}

// waitOffer waits until a node publishes just these devices.
func (s published) waitOffer(ctx context.Context, nodeName, want string) {
	s.Helper()
	s.eventually(ctx, fmt.Sprintf("node %s to offer %q", nodeName, want), func(ctx context.Context) (bool, string, error) {
		got := s.offer(ctx, nodeName)
		return got == want, got, nil
	})
}

// waitReplaced waits until the slices of the cluster's node are others than before: a kubelet that starts removes them,
// as it does not know yet whether their driver is there, and the plugin makes them again.
func (s published) waitReplaced(ctx context.Context, before []resourceapi.ResourceSlice) {
	s.Helper()
	old := map[types.UID]bool{}
	for _, slice := range before {
		old[slice.UID] = true
	}
	s.eventually(ctx, "the plugin to publish again", func(ctx context.Context) (bool, string, error) {
		now := s.slices(ctx, env.cluster.NodeName())
		kept := slices.ContainsFunc(now, func(slice resourceapi.ResourceSlice) bool { return old[slice.UID] })
		complete := len(now) > 0 && int64(len(now)) == now[0].Spec.Pool.ResourceSliceCount
		return !kept && complete && len(wholeGPUs(now)) == gpus, fmt.Sprintf("%d slices, old ones: %t", len(now), kept), nil
	})
}

// gpus are the whole GPUs of the cluster's node, in the order in which the scheduler tries them.
func (s published) gpus(ctx context.Context) []resourceapi.Device {
	s.Helper()
	return wholeGPUs(s.slices(ctx, env.cluster.NodeName()))
}

// waitOrder waits until the whole GPUs are published in an order, given as digits of their numbers.
func (s published) waitOrder(ctx context.Context, want string) []resourceapi.Device {
	s.Helper()
	var published []resourceapi.Device
	s.eventually(ctx, "the whole GPUs to be published in the order "+want, func(ctx context.Context) (bool, string, error) {
		published = s.gpus(ctx)
		names := deviceNames(published)
		numbers := slices.Sorted(slices.Values(names))
		got := ""
		for _, name := range names {
			got += strconv.Itoa(slices.Index(numbers, name))
		}
		return got == want, got, nil
	})
	return published
}

// slices are the ResourceSlices of a node, in order of their names.
func (s published) slices(ctx context.Context, nodeName string) []resourceapi.ResourceSlice {
	s.Helper()
	list, err := env.kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName})
	s.must(err)
	slices.SortFunc(list.Items, func(a, b resourceapi.ResourceSlice) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

// devices are the devices of a node, in order of publication.
func (s published) devices(ctx context.Context, nodeName string) []resourceapi.Device {
	s.Helper()
	return devicesOf(s.slices(ctx, nodeName))
}

// wholeGPUs are the devices that are no partitions.
func wholeGPUs(list []resourceapi.ResourceSlice) []resourceapi.Device {
	return slices.DeleteFunc(devicesOf(list), func(d resourceapi.Device) bool { return *d.Attributes["type"].StringValue != "gpu" })
}

func devicesOf(list []resourceapi.ResourceSlice) []resourceapi.Device {
	var devices []resourceapi.Device
	for _, s := range list {
		devices = append(devices, s.Spec.Devices...)
	}
	return devices
}

func find(devices []resourceapi.Device, name string) *resourceapi.Device {
	for i := range devices {
		if devices[i].Name == name {
			return &devices[i]
		}
	}
	return nil
}

// lastFirst is the order of the whole GPUs while all are free.
const lastFirst = "76543210"

// lastAllocated is that once a claim has taken the first of them.
const lastAllocated = "32107654"

func offerOf(list []resourceapi.ResourceSlice) string {
	counts := map[string]int{}
	for _, d := range devicesOf(list) {
		word := *d.Attributes["type"].StringValue
		for _, t := range d.Taints {
			word += map[string]string{nodeslices.TaintWithdrawn: "!", nodeslices.TaintConflict: "#"}[t.Key]
		}
		counts[word]++
	}
	var words []string
	for word, n := range counts {
		words = append(words, fmt.Sprintf("%s=%d", word, n))
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}
