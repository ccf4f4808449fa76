// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"path/filepath"

	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/claims"
	"github.com/cleave-dra/cleave/pkg/driver/claimstatus"
)

// statusDir is the directory of notes about claims with a status that the plugin wrote.
const statusDir = "status-notes"

// The reason of Events about claims whose status the API server rejects.
const reasonStatusRefused = "StatusRefused" // the API server rejects the status of the claim, which is prepared

// newStatus creates the writer of the status of a driver name's claims.
func (s *service) newStatus(named claims.Named) (*claimstatus.Writer, error) {
	notes, err := records.OpenStatusNotes(store.Disk{}, filepath.Join(s.config.PluginsDir, named.Driver(), statusDir))
	if err != nil {
		return nil, err
	}
	return claimstatus.NewWriter(claimstatus.Options{
		Client: s.client, Driver: named.Driver(), Node: s.config.NodeName, Notes: notes,
		Record: named.Record, Records: named.Records, Inventory: s.names.inventory, Seen: s.pods.Saw,
		Refused: func(claim records.Claim, err error) {
			s.events.WarnClaim(claim, reasonStatusRefused, fmt.Sprintf("The claim is prepared, but its status does not show its devices: %v. "+
				"Please report this with the plugin's log.", err))
		},
	}), nil
}
