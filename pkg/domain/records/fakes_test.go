// SPDX-License-Identifier: Apache-2.0

package records

import (
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/store"
)

const uidA = types.UID("0d5a1c5e-0001-4a8e-9a57-6b1b0a7a5a01")

// sample is a valid record.
func sample(uid types.UID) *Record {
	return &Record{
		Format: 1,
		BootID: "8f3f2f4e-5f3f-4d58-a0ab-5e3a0a1a7d11", Driver: "gpu.cleave.dev",
		Claim: Claim{Namespace: "team-a", Name: "train-gpus", UID: uid},
		Devices: []Device{
			{
				Request: "main/whole", Pool: "node-1", Device: "gpu-0000-18-00-0", GPU: "gpu-0000-18-00-0",
				UUID:         "GPU-6b1b0a7a-5a01-4a8e-9a57-0d5a1c5e0001",
				CDIDeviceIDs: []string{"gpu.cleave.dev/gpu=gpu-0000-18-00-0"},
			},
			{
				Request: "watch", Pool: "node-1", Device: "gpu-0000-2a-00-0", AdminAccess: true, GPU: "gpu-0000-2a-00-0",
				UUID:         "GPU-6b1b0a7a-5a01-4a8e-9a57-0d5a1c5e0002",
				CDIDeviceIDs: []string{"gpu.cleave.dev/gpu=gpu-0000-2a-00-0"},
			},
		},
	}
}

// openStore opens a store in a new directory of the real disk.
func openStore(t *testing.T) *Store {
	t.Helper()
	return openStoreIn(t, filepath.Join(t.TempDir(), "claims"))
}

func openStoreIn(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := OpenStore(store.Disk{}, dir)
	if err != nil {
		t.Fatalf("OpenStore: %v", err)
	}
	return s
}
