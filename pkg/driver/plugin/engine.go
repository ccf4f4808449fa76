// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"time"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/policy"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/cluster"
	"github.com/cleave-dra/cleave/pkg/driver/controller"
)

// engine adapts the claims engine to the control loop.
type engine struct {
	*claims.Preparer
	driver      string
	allocations *allocations
	hw          *hardware
	api         cluster.Claims
	// lists is queried again, alongside the loop, until the API server has answered. listed is called when the answer is new.
	lists  *cluster.Lists
	listed func()
	// sweep cleans up after claims that were released without Unprepare.
	sweep func(ctx context.Context)
}

func (e engine) Allocations() []*records.Record       { return e.Ledger.Allocations() }
func (e engine) Unclaimed(g *gpu.GPU) []gpu.Place     { return e.Partitions.Unclaimed(g) }
func (e engine) Layout(g *gpu.GPU) []gpu.Place        { return e.Partitions.LayoutPlaces(g) }
func (e engine) Listing() (began, failed time.Time)   { return e.allocations.state() }
func (e engine) List(after time.Time)                 { e.allocations.want(after) }
func (e engine) Scan(ctx context.Context)             { e.Partitions.FindUnmanaged(ctx) }
func (e engine) EndSession(ctx context.Context) error { return e.Ledger.EndSession(ctx, e.hw) }

// Records returns the allocations under the plugin's own driver name.
func (e engine) Records() []*records.Record {
	return claims.Under(e.driver, e.Ledger.Allocations())
}

func (e engine) Occupied() []string               { return e.Partitions.Occupied() }
func (e engine) LeaveMIGMode(ctx context.Context) { e.Partitions.LeaveMIGMode(ctx) }

func (e engine) ModesLeft() map[string]bool { return e.Modes.Left() }

func (e engine) ChangeMode(order controller.ModeOrder) (run func(ctx context.Context) error) {
	if order.Reset != "" {
		return e.Modes.BeginReset(order.GPU, order.Reset)
	}
	return e.Modes.Begin(order.GPU, order.Enable)
}

func (e engine) ResetDone() string               { return e.Modes.Resets.Done() }
func (e engine) ForgetReset(ctx context.Context) { e.Modes.Resets.Forget(ctx) }

func (e engine) Existing() []controller.Existing {
	var all []controller.Existing
	for _, x := range e.Partitions.Existing() {
		all = append(all, controller.Existing(x))
	}
	return all
}

func (e engine) ApplyLayouts(ctx context.Context, offered *policy.Node) []controller.LayoutProblem {
	var all []controller.LayoutProblem
	for _, p := range e.Partitions.KeepLayouts(ctx, offered) {
		all = append(all, controller.LayoutProblem(p))
	}
	return all
}

func (e engine) Reconcile(ctx context.Context) {
	if e.lists.Ask(ctx) {
		e.listed()
	}
	e.Preparer.Reconcile(ctx, e.api)
	e.sweep(ctx)
}
