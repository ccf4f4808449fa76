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
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
)

// The reason of Events about another driver of the same name.
const reasonNameConflict = "DriverNameTaken" // another driver has the name of Cleave's on the node: Cleave serves nothing there

// ownHeader is set in the answers of Cleave's plugins to GetInfo only: a kubelet ignores it.
const ownHeader = "cleave-plugin"

// registrationTimeout bounds one query to a plugin.
const registrationTimeout = 2 * time.Second

// nameConflict finds another driver that uses the plugin's name on its node.
type nameConflict struct {
	driver, node, registryDir string
	client                    kubernetes.Interface
	// claims are the claims of the other driver that the last listing found and that still exist.
	claims []types.NamespacedName
}

// nameConflict returns the check for the plugin's driver name.
func (s *service) nameConflict() *nameConflict {
	return &nameConflict{driver: s.config.DriverName, node: s.config.NodeName, registryDir: s.config.RegistryDir, client: s.client}
}

// awaitName returns once no other driver of the same name is on the node; false if ctx ends first.
func (s *service) awaitName(ctx context.Context) bool {
	if !s.config.compatible() {
		return true
	}
	conflict, backoff, reported := s.nameConflict(), wait.Backoff{}, ""
	for {
		err := conflict.find(ctx)
		if ctx.Err() != nil {
			return false
		}
		s.ready.set(nameTaken, err)
		if err == nil {
			return true
		}
		if text := err.Error(); text != reported {
			reported = text
			// A state that changes may end soon; one that does not may last for hours, on every node of the cluster.
			backoff = wait.Backoff{Duration: s.config.DriverRetry, Factor: 1.5, Jitter: 0.5, Steps: 6} // 23 s with the default
			klog.FromContext(ctx).Error(err, "Nothing is served yet", "driver", s.config.DriverName)
			s.events.Warn(reasonNameConflict, "Cleave serves nothing on this node: "+text)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(backoff.Step()):
		}
	}
}

// find returns the evidence that another driver of the same name is on the node, or was a moment ago; nil if there is
// none.
func (c *nameConflict) find(ctx context.Context) error {
	for _, look := range []func(context.Context) error{c.findPlugin, c.findSlice, c.findClaims} {
		if err := look(ctx); err != nil {
			return err
		}
	}
	return nil
}

// findPlugin looks for a plugin of the same name that is not Cleave's and answers the kubelet. Rolling updates run two of
// Cleave's plugins at once, and sockets of dead plugins may be left.
func (c *nameConflict) findPlugin(ctx context.Context) error {
	entries, err := os.ReadDir(c.registryDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the kubelet creates it
	}
	if err != nil {
		return fmt.Errorf("look for other plugins of driver %s: %w", c.driver, err)
	}
	for _, e := range entries {
		// The helper names sockets after the driver, or "dra-" and a hash if that would be too long.
		own := strings.HasPrefix(e.Name(), c.driver)
		if name := e.Name(); !strings.HasSuffix(name, ".sock") || !own && !strings.HasPrefix(name, "dra-") {
			continue
		}
		r := controller.Registration{Socket: filepath.Join(c.registryDir, e.Name()), DriverSocket: own}
		r.Name, r.Ours, r.Err = askPlugin(ctx, r.Socket)
		if err := controller.PluginConflict(c.driver, r); err != nil {
			return err
		}
	}
	return nil
}

// askPlugin queries the name of the plugin at a registration socket and whether it is Cleave's; no name if the socket is not served.
func askPlugin(ctx context.Context, socket string) (name string, ours bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, registrationTimeout)
	defer cancel()
	if !isListening(ctx, socket) {
		return "", false, nil // the socket of a plugin that is gone
	}
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", false, err
	}
	defer func() { _ = connection.Close() }()
	var header metadata.MD
	info, err := registerapi.NewRegistrationClient(connection).GetInfo(ctx, &registerapi.InfoRequest{}, grpc.Header(&header))
	if err != nil && !isListening(ctx, socket) {
		return "", false, nil // it ended between the two queries
	}
	if err != nil {
		return "", false, err
	}
	return info.Name, len(header.Get(ownHeader)) > 0, nil
}

// isListening reports whether a process accepts connections at a socket.
func isListening(ctx context.Context, socket string) bool {
	probe, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		// A plugin that hangs shows as a timeout, of the context or the socket, or as a full queue (EAGAIN, connect(2)).
		timeout := net.Error(nil)
		return errors.As(err, &timeout) && timeout.Timeout()
	}
	_ = probe.Close()
	return true
}

// findSlice looks for slices with the same driver and node that Cleave did not write.
func (c *nameConflict) findSlice(ctx context.Context) error {
	selector := fields.Set{resourceapi.ResourceSliceSelectorNodeName: c.node, resourceapi.ResourceSliceSelectorDriver: c.driver}
	list, err := c.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return fmt.Errorf("look for ResourceSlices of another driver named %s: %w", c.driver, err)
	}
	for i := range list.Items {
		if err := controller.SliceConflict(c.driver, c.node, &list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// findClaims looks for claims whose pods have devices of this node from another driver of the same name. It lists the claims of the
// cluster only while it knows none of this node: a thousand nodes may wait for the pods of a migration to end.
func (c *nameConflict) findClaims(ctx context.Context) error {
	found, err := c.followClaims(ctx)
	if err == nil && len(found) == 0 {
		found, err = c.listClaims(ctx)
	}
	if err != nil {
		return fmt.Errorf("look for claims of another driver named %s: %w", c.driver, err)
	}
	return controller.ClaimConflict(c.driver, found)
}

// followClaims reads the known claims.
func (c *nameConflict) followClaims(ctx context.Context) (found []string, err error) {
	known := c.claims
	c.claims = nil
	for _, name := range known {
		claim, err := cluster.Claims{Client: c.client}.Claim(ctx, name.Namespace, name.Name)
		if err != nil {
			c.claims = known
			return nil, err
		}
		if claim != nil {
			found = c.note(found, claim)
		}
	}
	return found, nil
}

func (c *nameConflict) listClaims(ctx context.Context) (found []string, err error) {
	c.claims = nil
	err = cluster.Claims{Client: c.client}.Each(ctx, func(claim *resourceapi.ResourceClaim) bool {
		found = c.note(found, claim)
		return true
	})
	return found, err
}

// note adds a claim if it has a device of another driver.
func (c *nameConflict) note(found []string, claim *resourceapi.ResourceClaim) []string {
	device := controller.UnmanagedDevice(c.driver, c.node, claim)
	if device == "" {
		return found
	}
	c.claims = append(c.claims, types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
	return append(found, fmt.Sprintf("%s/%s (device %s)", claim.Namespace, claim.Name, device))
}
