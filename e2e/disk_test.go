// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/google/go-cmp/cmp"

	"github.com/cleave-dra/cleave/e2e/node"
	"github.com/cleave-dra/cleave/e2e/workload"
	"github.com/cleave-dra/cleave/pkg/domain/gpu"
)

// A corrupt record is read from its copy; where that is corrupt, too, it is set aside and made again from the API server.
func TestRecord_Corrupt(t *testing.T) {
	for name, both := range map[string]bool{"record": false, "record and copy": true} {
		t.Run(name, func(t *testing.T) {
			ctx, s := newSpace(t)
			pod := s.pods.run(ctx, gpuPod("user", 2))
			claim, _ := s.pods.ownClaim(ctx, pod)
			before, err := readRecords(env.node)
			s.must(err)
			uid := claim.Uid
			record, aside := filepath.Join(env.node.Records(), uid+".json"), filepath.Join(env.node.Records(), "corrupt", uid+".json")
			t.Cleanup(func() { _ = os.Remove(aside) }) // it is there if the test passed

			s.must(env.node.Stop())
			intact, err := os.ReadFile(record)
			s.must(err)
			garbage, says := []byte(`{"format":1,"claim":{"uid":`), "its copy is used"
			s.must(os.WriteFile(record, garbage, 0o600))
			if both {
				says = aside
				s.must(os.WriteFile(filepath.Join(env.node.Records(), "copies", uid+".json"), garbage, 0o600))
			}
			s.plugin.start(ctx)
			s.eventually(ctx, "the record to be made again", func(context.Context) (bool, string, error) {
				now, err := readRecords(env.node)
				if err != nil || !cmp.Equal(before[uid], now[uid]) {
					return false, cmp.Diff(before[uid], now[uid]), err
				}
				written, err := os.ReadFile(record)
				return both || bytes.Equal(intact, written), "the record is " + string(written), err
			})
			if found, err := os.ReadFile(aside); both && (err != nil || !bytes.Equal(found, garbage)) {
				t.Errorf("the corrupt record is not kept aside as it was: %q, %v", found, err)
			}
			s.events.waitOnNode(ctx, env.cluster.NodeName(), corev1.EventTypeWarning, "CorruptClaimRecord", says)
			other := s.pods.run(ctx, gpuPod("other", 1))
			s.pods.checkUndisturbed(ctx, pod)
			s.pods.delete(ctx, "user")
			s.plugin.waitRecords(ctx, env.node, ownClaim(other))
		})
	}
}

func TestRecord_DiskFull(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.newPlainNode(ctx, nil)
	s.must(os.MkdirAll(n.Records(), 0o700))
	s.must(syscall.Mount("tmpfs", n.Records(), "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { s.must(errors.Join(n.Kill(), syscall.Unmount(n.Records(), 0))) })
	n.sim(ctx, "create", "--node", model)
	s.must(n.Start(ctx))
	n.waitOffered(ctx, gpus)
	names := n.deviceNames(ctx)
	early := s.allocate(ctx, "early", workload.OneGPU(n.name, names[0], false))
	n.prepared(ctx, early, 1)

	filler, err := node.Fill(n.Records())
	s.must(err)
	late := s.allocate(ctx, "late", workload.OneGPU(n.name, names[1], false))
	n.refused(ctx, late, "no space left on device", "free space on the file system of "+n.Records(), s.name+"/late")
	entries, err := os.ReadDir(n.Records())
	s.must(err)
	for _, e := range entries {
		if name := e.Name(); name != "corrupt" && name != "copies" && name != filepath.Base(filler) && name != early.Uid+".json" {
			t.Errorf("a full disk left %s in the directory of records", name)
		}
	}
	s.plugin.waitRecords(ctx, n.Node, "early")
	n.prepared(ctx, early, 1) // asks for no space
	s.must(n.Unprepare(ctx, early))
	s.plugin.waitRecords(ctx, n.Node)

	s.must(os.Remove(filler))
	n.prepared(ctx, late, 1)
	s.plugin.waitRecords(ctx, n.Node, "late")
}

// A script that cleans up deletes the CDI specs and the device metadata of claims that are prepared: a container of them could not restart.
func TestRecover_SpecDeleted(t *testing.T) {
	t.Parallel()
	ctx, s := newSpace(t)
	n := s.newPlainNode(ctx, nil)
	n.sim(ctx, "create", "--node", "l40s")
	s.must(n.Start(ctx))
	n.waitOffered(ctx, 4)
	names, dir := n.deviceNames(ctx), filepath.Join(filepath.Dir(n.Root()), "cdi")
	for name, devices := range map[string]resourceapi.DeviceAllocationResult{
		"share": workload.OneShare(n.name, names[0]+"-timeslice", map[string]int64{gpu.CapacityShares: 1}),
		"whole": workload.OneGPU(n.name, names[1], false),
	} {
		claim := s.allocate(ctx, name, devices)
		_, err := n.Prepare(ctx, claim)
		s.must(err)
		specs, err := filepath.Glob(filepath.Join(dir, "gpu.cleave.dev*"+claim.Uid+"*.json"))
		s.must(err)
		metadata, err := filepath.Glob(filepath.Join(dir, "gpu.cleave.dev-metadata", "*", "*", "metadata.json"))
		s.must(err)
		if len(specs) == 0 || len(metadata) != 1 {
			s.Fatalf("claim %s has the specs %v and the metadata %v", name, specs, metadata)
		}
		for _, path := range append(specs, filepath.Join(dir, "gpu.cleave.dev-metadata")) {
			s.must(os.RemoveAll(path))
		}
		s.eventually(ctx, "all files to be there again", func(context.Context) (bool, string, error) {
			var missing []error
			for _, path := range append(specs, metadata...) {
				_, err := os.Stat(path)
				missing = append(missing, err)
			}
			err := errors.Join(missing...)
			return err == nil, fmt.Sprint(err), nil
		})
		s.events.waitOnNode(ctx, n.name, corev1.EventTypeWarning, "CDISpecRestored", claim.Name)
		s.must(n.Unprepare(ctx, claim))
	}
}
