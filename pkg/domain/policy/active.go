// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cleave-dra/cleave/api/v1alpha1"
	"github.com/cleave-dra/cleave/pkg/domain/store"
)

// Active is the active policy of a node, which determines how its GPUs are offered.
type Active struct {
	// Name that the node's label selects, or BuiltIn.
	Name   string
	Policy *v1alpha1.NodePolicy
}

// SelectActive selects the new active policy: the one that the label names, or was if that one is unusable; the error then says
// why. It is pure.
//
// set and loadErr are the answer of Load; both may be set, as an invalid file does not affect a node whose policy is in another.
// was is nil if none was active; the result is then nil until a policy is usable.
func SelectActive(was *Active, set *Set, loadErr error, label string, check func(*v1alpha1.NodePolicy) error) (*Active, error) {
	if set == nil {
		return was, loadErr
	}
	name, p, err := set.Select(label)
	if err != nil {
		return was, err
	}
	if err := check(p); err != nil {
		return was, fmt.Errorf("policy %q does not fit this node: %w", name, err)
	}
	return &Active{Name: name, Policy: p}, nil
}

// Equal reports whether two policies are equal; nil stands for none.
func (a *Active) Equal(b *Active) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, errA := a.document()
	y, errB := b.document()
	return errors.Join(errA, errB) == nil && x.Name == y.Name && bytes.Equal(x.Policy, y.Policy)
}

// document encodes equal policies as equal bytes.
func (a *Active) document() (*activeDocument, error) {
	named := *a.Policy
	named.APIVersion, named.Kind = v1alpha1.APIVersion, v1alpha1.NodePolicyKind
	policy, err := json.Marshal(&named)
	if err != nil {
		return nil, fmt.Errorf("encode policy %q: %w", a.Name, err)
	}
	return &activeDocument{Format: activeFormat.Version, Name: a.Name, Policy: policy}, nil
}

// ActiveFile is the name of an ActiveStore's file in the plugin's directory.
const ActiveFile = "policy.json"

// activeDocument is the file's content.
type activeDocument struct {
	Format int             `json:"format"`
	Name   string          `json:"name"`
	Policy json.RawMessage `json:"policy"`
}

// activeFormat is durable: the active policy survives a reboot. A policy file has 1 MiB at most.
var activeFormat = &store.Format[activeDocument]{
	Kind: "active policy", Limit: 4 << 20, Version: 1, Durable: true,
	VersionOf: func(d *activeDocument) (version, readableFrom int) { return d.Format, 0 },
}

// ActiveStore stores the active policy, so that a restarted plugin continues with it while another one is invalid.
type ActiveStore struct {
	file *store.File[activeDocument]
}

// NewActiveStore returns a store with a file, whose directory must exist.
func NewActiveStore(disk store.FileSystem, path string) *ActiveStore {
	return &ActiveStore{file: store.NewFile(disk, path, activeFormat)}
}

// Load returns the last stored policy, or nil with an error; fs.ErrNotExist if none was ever stored.
func (s *ActiveStore) Load() (*Active, error) {
	d, err := s.file.Read()
	if err != nil {
		return nil, err
	}
	if d == nil {
		return nil, fmt.Errorf("read the active policy %s: %w", s.file.Path(), fs.ErrNotExist)
	}
	p, err := v1alpha1.DecodeNodePolicy(d.Policy)
	if err != nil {
		return nil, fmt.Errorf("read the active policy %s: %w", s.file.Path(), err)
	}
	return &Active{Name: d.Name, Policy: p}, nil
}

// Keep writes the active policy.
func (s *ActiveStore) Keep(p *Active) error {
	d, err := p.document()
	if err != nil {
		return err
	}
	return s.file.Write(d)
}
