// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"fmt"
	"slices"
)

// change is the fourth step: it does to the hardware what the devices need. Clients of a GPU are waited for until patience
// ends.
func (a *preparation) change(ctx context.Context) error {
	patience, cancel := context.WithDeadline(ctx, a.patience)
	defer cancel()
	for i := range a.devices {
		d := &a.devices[i]
		if err := a.Partitions.create(patience, a.backend, d, a.view.others[d.gpu]); err != nil {
			return fmt.Errorf("request %q: %w", d.request, err)
		}
	}
	if !slices.ContainsFunc(a.devices, func(d device) bool { return d.share != nil }) {
		return nil
	}
	return a.Shares.start(ctx, a.backend, a.toRecord(), a.view.others)
}
