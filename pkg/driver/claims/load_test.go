// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/cleave-dra/cleave/pkg/domain/records"
)

func TestLoad_EarlierBoot(t *testing.T) {
	dir := t.TempDir()
	before := openBed(t, dir, inBoot("boot-before")).start()
	mustPrepare(t, before.Preparer, claimOn("old", 0))
	now := openBed(t, dir)
	now.SetHardware(now.hardware, now.specs)
	mustPrepare(t, now.Preparer, claimOn("new", 1))

	again := openBed(t, dir).start()
	equal(t, "claims in memory", []types.UID{"new"}, slices.Collect(allHolders(again)))
	wantDisk(t, again, line("new", 1))
	mustPrepare(t, again.Preparer, claimOn("next", 0))
}

func TestLoad_CorruptRecord(t *testing.T) {
	tests := map[string]func(t *testing.T, path string){
		"empty":     func(t *testing.T, path string) { truncate(t, path, 0) },
		"cut short": func(t *testing.T, path string) { truncate(t, path, 40) },
		"too large": func(t *testing.T, path string) { truncate(t, path, records.MaxSize+1) },
		"of another claim": func(t *testing.T, path string) {
			other, err := os.ReadFile(filepath.Join(filepath.Dir(path), "good.json"))
			if err == nil {
				err = os.WriteFile(path, other, 0o600)
			}
			must(t, err)
		},
		"format 2": func(t *testing.T, path string) {
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, []byte(strings.Replace(string(data), `"format":1`, `"format":2`, 1)), 0o600)
			}
			must(t, err)
		},
		"a directory": func(t *testing.T, path string) {
			must(t, os.Remove(path))
			must(t, os.Mkdir(path, 0o700))
		},
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			mustPrepare(t, b.Preparer, claimOn("bad", 0))
			mustPrepare(t, b.Preparer, claimOn("good", 1))
			damage(t, recordPath(b.dir, "bad"))
			damage(t, copyPath(b.dir, "bad"))

			again := b.another().start()
			wantDisk(t, again, line("good", 1))
			if len(again.notes) != 1 || !strings.Contains(again.notes[0], "bad") || !strings.Contains(again.notes[0], "corrupt") {
				t.Errorf("got notes %q, want one that names the claim and where its record went", again.notes)
			}
			if aside := filepath.Join(b.dir, "claims", "corrupt", "bad.json"); !exists(t, aside) {
				t.Errorf("%s is missing", aside)
			}
			mustPrepare(t, again.Preparer, claimOn("good", 1))
			mustPrepare(t, again.Preparer, claimOn("next", 2))
			mustUnprepare(t, again.Preparer, claimOn("bad", 0))
		})
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	must(t, os.Truncate(path, size))
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
			again.disk.fail = func(got, path string) error {
				if got == op && path == recordPath(b.dir, "bad") {
					return syscall.EIO
				}
				return nil
			}
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

func TestLoad_CorruptRecordCannotBeSetAside(t *testing.T) {
	b := newBed(t)
	mustPrepare(t, b.Preparer, claimOn("good", 1))
	spoil(t, b.dir, "bad")
	again := b.another()
	again.disk.fail = failOp("Rename", syscall.EROFS)
	again.start()
	mustPrepare(t, again.Preparer, claimOn("good", 1))
	mustPrepare(t, again.Preparer, claimOn("next", 2))
	again.disk.fail = nil
	mustUnprepare(t, again.Preparer, claimOn("bad", 0))
}

func TestLoad_DirectoryCannotBeListed(t *testing.T) {
	b := openBed(t, t.TempDir())
	b.disk.fail = failOp("ReadDir", syscall.EIO)
	if err := b.Load(t.Context(), nil); !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v, want %v", err, syscall.EIO)
	}
}
