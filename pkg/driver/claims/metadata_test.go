// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

// fakeMetadata is the metadata of claims: all have theirs, but for the lost.
type fakeMetadata struct {
	lost, removed []types.UID
	fails         map[types.UID]error
	// looked is called by Has, after it has looked; nil for nothing.
	looked func()
}

func (m *fakeMetadata) Has(r *records.Record) bool {
	has := !slices.Contains(m.lost, r.Claim.UID)
	if m.looked != nil {
		m.looked()
	}
	return has
}

func (m *fakeMetadata) Restore(_ context.Context, r *records.Record) error {
	if err := m.fails[r.Claim.UID]; err != nil {
		return err
	}
	m.lost = slices.DeleteFunc(m.lost, func(uid types.UID) bool { return uid == r.Claim.UID })
	return nil
}

func (m *fakeMetadata) Remove(_ string, uid types.UID) error {
	m.removed = append(m.removed, uid)
	return nil
}

// with gives a plugin the metadata, and notes the claims of which something was restored.
func (m *fakeMetadata) with(restored *[]types.UID) func(*Options) {
	return func(o *Options) {
		o.Metadata = m
		o.OnSpecRestored = func(_ context.Context, claim records.Claim) { *restored = append(*restored, claim.UID) }
	}
}

// Whole GPUs need no spec of their own, but have metadata.
func TestRecover_MetadataDeleted(t *testing.T) {
	m, restored := &fakeMetadata{}, []types.UID{}
	b := newBed(t, m.with(&restored))
	want := func(step string, lacks bool, uids ...types.UID) {
		t.Helper()
		if got := LackSpecs(b.Preparer); got != lacks {
			t.Errorf("%s: metadata is missed: %t, want %t", step, got, lacks)
		}
		equal(t, step+": restored", uids, restored, cmpopts.EquateEmpty())
	}
	mustPrepare(t, b.Preparer, claimOn("a", 0))
	mustPrepare(t, b.Preparer, claimOn("b", 1))
	b.Recover(t.Context())
	want("nothing is lost", false)
	m.lost, m.fails = []types.UID{"a", "b"}, map[types.UID]error{"a": errors.New("the API server does not know it")}
	want("all is lost", true)
	b.Recover(t.Context())
	want("one fails", true, "b")
	m.fails = nil
	b.Recover(t.Context())
	want("none fails", false, "b", "a")
	m.lost = []types.UID{"a"}
	mustUnprepare(t, b.Preparer, claimOn("a", 0))
	b.Recover(t.Context())
	want("the claim has ended", false, "b", "a")
}

// A claim that ends between two looks has no metadata that would have to be removed again.
func TestRecover_MetadataOfClaimThatEnds(t *testing.T) {
	m, restored := &fakeMetadata{}, []types.UID{}
	b := newBed(t, m.with(&restored))
	mustPrepare(t, b.Preparer, claimOn("a", 0))
	m.lost, m.looked = []types.UID{"a"}, func() { mustUnprepare(t, b.Preparer, claimOn("a", 0)) }
	b.Recover(t.Context())
	equal(t, "restored", []types.UID{}, restored)
}

// The metadata of a claim whose record is lost stays until the API server has been asked.
func TestReconcile_MetadataOfLostRecord(t *testing.T) {
	claim := claimOn("a", 0)
	for name, tt := range map[string]struct {
		api     *fakeAPI
		removed []types.UID
	}{
		"claim exists":           {&fakeAPI{claims: claimList(claim)}, nil},
		"claim is gone":          {&fakeAPI{}, []types.UID{"a"}},
		"API server unreachable": {&fakeAPI{claims: claimList(claim), err: errors.New("connection refused")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, restored := &fakeMetadata{}, []types.UID{}
			b := newBed(t, m.with(&restored))
			mustPrepare(t, b.Preparer, claim)
			spoil(t, b.dir, "a")
			b.die()
			again := openBed(t, b.dir, m.with(&restored)).start()
			again.Reconcile(t.Context(), tt.api)
			equal(t, "removed", tt.removed, m.removed)
		})
	}
}
