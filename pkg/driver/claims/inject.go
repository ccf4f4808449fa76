// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// inject is the last step: it writes the CDI spec, and the record of the prepared claim. After an intent the record
// is written last, because it states that everything exists. Without an intent it is written first: a spec without a record would stay
// forever, while a missing one is written again by intact.
func (a *preparation) inject(ctx context.Context) ([]records.Device, error) {
	done := a.toRecord()
	if !a.intent {
		if err := a.Ledger.write(done); err != nil {
			return nil, err
		}
	}
	if len(done.WithEdits()) > 0 {
		if err := a.cdi.WriteClaim(ctx, done); err != nil {
			return nil, err
		}
	}
	if a.intent {
		if err := a.Ledger.write(done); err != nil {
			return nil, err
		}
	}
	return done.Devices, nil
}
