// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/driver/mps"
)

// Clients decide what is in the log of a daemon, and Events quote it.
func FuzzTail(f *testing.F) {
	f.Add([]byte("a\nb\n\n"))
	f.Add([]byte("\x1b[2Ja\r\nI0101 forged\xff\u202e\x00"))
	f.Add([]byte(strings.Repeat("é", tailBytes)))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		must(t, os.WriteFile(filepath.Join(dir, "control.log"), data, 0o600))
		text := tailOf(t.Context(), "gpu-0000-1b-00-0", dir)
		if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) ||
			utf8.RuneCountInString(text) > quoteRunes+len("; control.log ends: ") {
			t.Errorf("%q is quoted as %q", data, text)
		}
	})
}

// What a request names becomes directories, environments and commands of a daemon.
func FuzzRequest(f *testing.F) {
	f.Add("uid", "gpu-0000-1b-00-0", testUUID, "gpu.cleave.dev", int64(1<<30), 50, int64(1<<30))
	f.Add("../../etc", "gpu-0000-1b-00-0/..", "GPU-1;quit", "a b", int64(-1), 101, int64(1))
	f.Add("a\nb", "gpu-0000-1b-00-0-mig-19-6", "MIG-1", "", int64(1), 0, int64(0))
	f.Fuzz(func(t *testing.T, uid, device, uuid, owner string, shared int64, threads int, pinned int64) {
		pci, err := gpu.ParseDeviceName(device)
		if err != nil {
			return
		}
		r := mps.Request{Claim: types.UID(uid), Device: device, UUID: uuid, PCI: pci, Owner: owner,
			Settings: mps.Settings{SharedMemory: shared, ActiveThreadPercentage: threads, PinnedMemory: pinned}}
		if checkRequest(r) != nil {
			return
		}
		if filepath.Base(device) != device || strings.ContainsAny(uuid, " \n;/=,") || strings.ContainsAny(uid+owner, " \n") {
			t.Errorf("accepted %+v", r)
		}
		if shared <= 0 || threads < 0 || threads > 100 || pinned < 0 {
			t.Errorf("accepted %+v", r.Settings)
		}
	})
}
