// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"io/fs"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/policy"
	"github.com/cleave-dra/cleave/pkg/store"
)

// Names of pkg/policy.
type (
	InForce = policy.Active
	Store   = policy.ActiveStore
)

// File as policy.ActiveFile.
const File = policy.ActiveFile

// Decide as policy.SelectActive.
func Decide(was *InForce, set *policy.Set, loadErr error, label string, check func(*v1alpha1.NodePolicy) error) (*InForce, error) {
	return policy.SelectActive(was, set, loadErr, label, check)
}

// NewStore as policy.NewActiveStore.
func NewStore(disk store.FileSystem, path string) *Store { return policy.NewActiveStore(disk, path) }

// Same as the method Equal.
func Same(a, b *InForce) bool { return a.Equal(b) }

// Missing reports whether the error of Load means that none was ever stored.
func Missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// Watch as policy.Watch.
func Watch(ctx context.Context, path string, changed func()) error {
	return policy.Watch(ctx, path, changed)
}
