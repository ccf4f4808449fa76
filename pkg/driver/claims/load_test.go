// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestLoad_CorruptRecord(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("bad", 0))
	mustPrepare(t, b.Preparer, claimOn("good", 1))
	must(t, os.Truncate(recordPath(b.dir, "bad"), 40))
	must(t, os.Truncate(copyPath(b.dir, "bad"), 40))

	again := b.another().start()
	wantDisk(t, again, line("good", 1))
	if len(again.notes) != 1 || !strings.Contains(again.notes[0], "bad") || !strings.Contains(again.notes[0], "corrupt") {
		t.Errorf("got notes %q, want one that names the claim and where its record went", again.notes)
	}
	_, err := os.Stat(filepath.Join(b.dir, "claims", "corrupt", "bad.json"))
	must(t, err)
	mustPrepare(t, again.Preparer, claimOn("good", 1))
	mustPrepare(t, again.Preparer, claimOn("next", 2))
	mustUnprepare(t, again.Preparer, claimOn("bad", 0))
}

// One bad sector under one record must not take all GPUs of the node out of service.
func TestLoad_RecordCannotBeReadOrRemoved(t *testing.T) {
	for _, op := range []string{"ReadFile", "Remove"} {
		t.Run(op, func(t *testing.T) {
			b := newBed(t)
			mustPrepare(t, b.Preparer, claimOn("good", 1))
			boot := bootNow
			if op == "Remove" {
				boot = "boot-before" // what Load removes
			}
			other := openBed(t, b.dir, inBoot(boot))
			other.SetHardware(b.hardware, b.specs)
			mustPrepare(t, other.Preparer, claimOn("bad", 0))

			again := b.another()
			again.disk.fail = failAt(op, recordPath(b.dir, "bad"), syscall.EIO)
			again.start()
			equal(t, "GPUs of the good claim", []string{gpuName(1)}, again.Ledger.index.get("good").GPUs())
			mustUnprepare(t, again.Preparer, claimOn("good", 1))
			mustPrepare(t, again.Preparer, claimOn("next", 2))
			if op == "Remove" { // what had it has not outlived the reboot
				mustPrepare(t, again.Preparer, claimOn("same", 0))
			}
		})
	}
}

func TestLoad_DirectoryCannotBeListed(t *testing.T) {
	b := openBed(t, t.TempDir())
	b.disk.fail = failOp("ReadDir", syscall.EIO)
	if err := b.Load(t.Context(), nil); !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v, want %v", err, syscall.EIO)
	}
}
