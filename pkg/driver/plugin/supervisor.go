// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/cleave-dra/cleave/pkg/driver/controller"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// errMPSOff is why GPUs are not shared by MPS if no socket is configured.
var errMPSOff = errors.New("the plugin runs with an empty --mps-socket")

// errMPSKept is why what an earlier run shared is not released.
var errMPSKept = fmt.Errorf("%w: set mps.enabled=true until the claim is released", errMPSOff)

// supervisorTimeout bounds checking whether the MPS supervisor answers.
const supervisorTimeout = time.Second

// available returns why no MPS server can be started; nil if one can. client is nil without a socket.
func available(ctx context.Context, client *mps.Client) error {
	if client == nil {
		return errMPSOff
	}
	ctx, cancel := context.WithTimeout(ctx, supervisorTimeout)
	defer cancel()
	return client.Available(ctx)
}

// Reasons of Events about MPS servers.
const (
	reasonServerLost      = "MPSDaemonLost"      // an MPS server ended while claims used it: their programs have lost it
	reasonServerRestarted = "MPSDaemonRestarted" // another MPS server serves the claims: containers must restart their programs
	reasonServerFailed    = "MPSDaemonFailed"    // an MPS server could not be restarted
)

// remedies are the remedies for events of MPS servers.
var remedies = map[mps.EventKind]string{
	mps.DaemonLost:      "It restarts automatically; running clients must be restarted.",
	mps.DaemonRestarted: "Restart the containers whose processes used the previous server.",
	mps.DaemonFailed:    "Fix the cause, then restart the pods of the claim.",
}

// watchMPS reports events of MPS servers that claims use, until ctx ends.
func (s *service) watchMPS(ctx context.Context) {
	s.mps.Watch(ctx, func(e mps.Event) {
		s.metrics.mpsEvents.WithLabelValues(string(e.Kind)).Inc()
		reason := map[mps.EventKind]string{
			mps.DaemonLost: reasonServerLost, mps.DaemonRestarted: reasonServerRestarted, mps.DaemonFailed: reasonServerFailed,
		}[e.Kind]
		message := e.Message + ". " + remedies[e.Kind]
		var names []string
		for _, uid := range e.Claims {
			claim := s.engine.Ledger.Claim(uid)
			names = append(names, claim.String())
			if claim.Name != "" {
				s.claimEvents.warn(warning{claim: claim, reason: reason, message: mps.Subject(e.Device) + ": " + message})
			}
		}
		klog.FromContext(ctx).Error(errors.New(e.Message), "MPS server event", "event", e.Kind, "device", e.Device, "claims", names)
		s.events.Warn(reason, fmt.Sprintf("%s, claims %s: %s", mps.Subject(e.Device), strings.Join(names, ", "), message))
		s.loop.Mark(controller.Partitions)
	})
}

// noSupervisor is used if GPUs are not shared by MPS. It cannot release shares of an earlier run: the claims stay on
// record until a supervisor can be asked.
type noSupervisor struct{}

func (noSupervisor) Ensure(context.Context, mps.Request) (mps.Endpoint, error) {
	return mps.Endpoint{}, errMPSOff
}

func (noSupervisor) Release(context.Context, string, types.UID) error { return errMPSKept }

func (noSupervisor) Retain(_ context.Context, _, _ string, claims []types.UID) error {
	if len(claims) > 0 {
		return errMPSKept
	}
	return nil
}

func (noSupervisor) Status(context.Context) (*mps.Status, error) { return &mps.Status{}, nil }
