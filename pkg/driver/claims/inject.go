// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// inject is the last step: it writes what container runtimes need, and that the claim is prepared. After an intent the record
// comes last, as it says that all is there. Without one it comes first: a spec that nothing knows of would stay for ever, and
// one that is missing is written again by intact.
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
