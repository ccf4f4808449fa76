// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// In NVIDIA-compatible mode the driver has the name of NVIDIA's own, and two of one name on a node would take each other's
// sockets, delete each other's slices and hand out the same GPUs. So nothing is served before the other one is gone.

// reasonNamesake is the reason of Events about another driver of the same name.
const reasonNamesake = "DriverNameTaken"

// ownHeader is in the answer of our plugins to GetInfo, and in that of no other: a kubelet passes over it.
const ownHeader = "cleave-plugin"

// namesakeTimeout bounds one question to a plugin.
const namesakeTimeout = 2 * time.Second

// withoutNamesake returns once no other driver of the same name is on the node; false if ctx ends before.
func (s *service) withoutNamesake(ctx context.Context) bool {
	if !s.config.compatible() {
		return true
	}
	tick := time.NewTicker(s.config.DriverRetry)
	defer tick.Stop()
	said := ""
	for {
		err := s.namesake(ctx)
		if ctx.Err() != nil {
			return false
		}
		s.ready.namesake(err)
		if err == nil {
			return true
		}
		if text := err.Error(); text != said {
			said = text
			klog.FromContext(ctx).Error(err, "Nothing is served yet", "driver", s.config.DriverName)
			s.events.warn(reasonNamesake, "Cleave serves nothing on this node: "+text)
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// namesakesFiles tells why the plugin's folder may have files of another driver of the same name, whose folder it is, too;
// nil if it has none.
func (s *service) namesakesFiles(ctx context.Context) error {
	switch {
	case !s.config.compatible():
		return nil
	case s.helper == nil:
		return fmt.Errorf("it never served: another driver named %s may have been there", s.config.DriverName)
	}
	return s.otherPlugin(ctx)
}

// namesake tells by what another driver of the same name is known to be on the node, or to have been a moment ago; nil if by
// nothing.
func (s *service) namesake(ctx context.Context) error {
	for _, look := range []func(context.Context) error{s.otherPlugin, s.otherSlices, s.otherClaims} {
		if err := look(ctx); err != nil {
			return err
		}
	}
	return nil
}

// otherPlugin looks for a plugin of the same name that is not ours and answers the kubelet. Rolling updates have ours beside
// each other, and old sockets of dead plugins may lie about.
func (s *service) otherPlugin(ctx context.Context) error {
	entries, err := os.ReadDir(s.config.RegistryDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the kubelet makes it
	}
	if err != nil {
		return fmt.Errorf("look for other plugins of driver %s: %w", s.config.DriverName, err)
	}
	for _, e := range entries {
		// The helper names sockets after the driver, or "dra-" and a hash where that would be too long.
		if name := e.Name(); !strings.HasSuffix(name, ".sock") || !strings.HasPrefix(name, s.config.DriverName) && !strings.HasPrefix(name, "dra-") {
			continue
		}
		path := filepath.Join(s.config.RegistryDir, e.Name())
		name, ours, err := askPlugin(ctx, path)
		switch {
		case err != nil && strings.HasPrefix(e.Name(), s.config.DriverName):
			return fmt.Errorf("somebody listens at %s, but does not say who it is: %w", path, err)
		case name == s.config.DriverName && !ours:
			return fmt.Errorf("another driver named %s serves the kubelet (it answers at %s): take NVIDIA's DRA driver off this node, for instance by the node selector of its DaemonSet, "+
				"or run Cleave by its own name, without --driver-name=%s", name, path, name)
		}
	}
	return nil
}

// askPlugin asks for the name of the plugin at a registration socket and whether it is ours; no name where nobody listens.
func askPlugin(ctx context.Context, socket string) (name string, ours bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, namesakeTimeout)
	defer cancel()
	if !isListening(ctx, socket) {
		return "", false, nil // a socket at which nobody listens is left of a plugin that is gone
	}
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", false, err
	}
	defer func() { _ = connection.Close() }()
	var header metadata.MD
	info, err := registerapi.NewRegistrationClient(connection).GetInfo(ctx, &registerapi.InfoRequest{}, grpc.Header(&header))
	if err != nil && !isListening(ctx, socket) {
		return "", false, nil // it ended between the two questions
	}
	if err != nil {
		return "", false, err
	}
	return info.Name, len(header.Get(ownHeader)) > 0, nil
}

// isListening reports whether anybody accepts connections at a socket.
func isListening(ctx context.Context, socket string) bool {
	probe, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	_ = probe.Close()
	return true
}

// ownDevice matches the names of our devices and counter sets, which begin with the GPU's PCI address (gpu.PCIAddress). Those
// of NVIDIA's driver have a minor number in its place.
var ownDevice = regexp.MustCompile(`^gpu-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7](-|$)`)

// otherSlices looks for slices of the same driver and node that are not ours.
func (s *service) otherSlices(ctx context.Context) error {
	selector := fields.Set{resourceapi.ResourceSliceSelectorNodeName: s.config.NodeName, resourceapi.ResourceSliceSelectorDriver: s.config.DriverName}
	list, err := s.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return fmt.Errorf("look for ResourceSlices of another driver named %s: %w", s.config.DriverName, err)
	}
	for i := range list.Items {
		if spec := &list.Items[i].Spec; spec.Driver != s.config.DriverName || spec.NodeName == nil || *spec.NodeName != s.config.NodeName {
			continue
		}
		if name := foreignName(&list.Items[i].Spec); name != "" {
			return fmt.Errorf("ResourceSlice %s of driver %s for this node has %s, which Cleave did not write: take NVIDIA's DRA driver off this node; "+
				"the kubelet removes its slices half a minute after its plugin is gone", list.Items[i].Name, s.config.DriverName, name)
		}
	}
	return nil
}

// foreignName is a device or counter set in a slice that is not ours; empty if there is none.
func foreignName(spec *resourceapi.ResourceSliceSpec) string {
	for i := range spec.Devices {
		if !ownDevice.MatchString(spec.Devices[i].Name) {
			return "device " + spec.Devices[i].Name
		}
	}
	for i := range spec.SharedCounters {
		if !ownDevice.MatchString(spec.SharedCounters[i].Name) {
			return "counter set " + spec.SharedCounters[i].Name
		}
	}
	return ""
}

// otherClaims looks for claims whose pods have devices of this node that another driver of the same name handed out: the
// scheduler knows nothing of them any more, and would give their GPUs to others.
func (s *service) otherClaims(ctx context.Context) error {
	var found []string
	opts := metav1.ListOptions{Limit: 500}
	for {
		page, err := s.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, opts)
		if err != nil {
			return fmt.Errorf("look for claims of another driver named %s: %w", s.config.DriverName, err)
		}
		for i := range page.Items {
			if device := s.foreignDevice(&page.Items[i]); device != "" {
				found = append(found, fmt.Sprintf("%s/%s (device %s)", page.Items[i].Namespace, page.Items[i].Name, device))
			}
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			break
		}
	}
	if len(found) == 0 {
		return nil
	}
	const most = 5
	if more := len(found) - most; more > 0 {
		found = append(found[:most], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("pods on this node have GPUs from another driver named %s, by claims %s: drain the node, or delete those pods", s.config.DriverName, strings.Join(found, ", "))
}

// foreignDevice is a device of this node that a claim with pods has and that is not ours; empty if there is none.
func (s *service) foreignDevice(claim *resourceapi.ResourceClaim) string {
	if claim.Status.Allocation == nil || len(claim.Status.ReservedFor) == 0 {
		return ""
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == s.config.DriverName && r.Pool == s.config.NodeName && !ownDevice.MatchString(r.Device) {
			return r.Device
		}
	}
	return ""
}
