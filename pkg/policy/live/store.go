// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cleave-dra/cleave/api/v1alpha1"
)

// storeFormat is the version of the file; maxStored bounds it in bytes: a policy file has 1 MiB at most.
const (
	storeFormat = 1
	maxStored   = 4 << 20
)

// File is the file's name in the plugin's directory.
const File = "policy.json"

// stored is the file.
type stored struct {
	Format int             `json:"format"`
	Name   string          `json:"name"`
	Policy json.RawMessage `json:"policy"`
}

// Disk is the part of the file system that a Store needs.
type Disk interface {
	// ReadFile reads at most limit bytes; fs.ErrNotExist if there is no such file.
	ReadFile(path string, limit int64) ([]byte, error)
	// WriteFile writes a file whole or not at all.
	WriteFile(path string, data []byte) error
}

// Store keeps the policy in force, so that a restart goes on with it while another one is wrong.
type Store struct {
	disk Disk
	path string
	// written is what the file holds.
	written []byte
}

// NewStore keeps it in a file, whose folder must exist.
func NewStore(disk Disk, path string) *Store { return &Store{disk: disk, path: path} }

// Load returns the policy that was kept last, or nil with an error that says why there is none; fs.ErrNotExist where none
// was ever kept.
func (s *Store) Load() (*InForce, error) {
	data, err := s.disk.ReadFile(s.path, maxStored)
	if err != nil {
		return nil, fmt.Errorf("read the policy that was in force: %w", err)
	}
	var f stored
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("read the policy that was in force, %s: %w", s.path, err)
	}
	if f.Format != storeFormat {
		return nil, fmt.Errorf("read the policy that was in force: %s has format %d, and this release knows %d", s.path, f.Format, storeFormat)
	}
	p, err := v1alpha1.DecodeNodePolicy(f.Policy)
	if err != nil {
		return nil, fmt.Errorf("read the policy that was in force, %s: %w", s.path, err)
	}
	s.written = data
	return &InForce{Name: f.Name, Policy: p}, nil
}

// Keep writes the policy in force unless the file has it already.
func (s *Store) Keep(p *InForce) error {
	data, err := encode(p)
	if err != nil {
		return err
	}
	if bytes.Equal(data, s.written) {
		return nil
	}
	if err := s.disk.WriteFile(s.path, data); err != nil {
		return fmt.Errorf("keep the policy in force in %s: %w", s.path, err)
	}
	s.written = data
	return nil
}

// encode gives equal policies equal bytes.
func encode(p *InForce) ([]byte, error) {
	named := *p.Policy
	named.APIVersion, named.Kind = v1alpha1.APIVersion, v1alpha1.NodePolicyKind
	policy, err := json.Marshal(&named)
	if err != nil {
		return nil, fmt.Errorf("encode policy %q: %w", p.Name, err)
	}
	return json.Marshal(stored{Format: storeFormat, Name: p.Name, Policy: policy})
}

// Same tells whether two policies are one; nil is none.
func Same(a, b *InForce) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, errA := encode(a)
	y, errB := encode(b)
	return errors.Join(errA, errB) == nil && bytes.Equal(x, y)
}

// Missing tells whether the error of Load means that none was ever kept.
func Missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
