// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cleave-dra/cleave/pkg/domain/gpu"
	"github.com/cleave-dra/cleave/pkg/domain/records"
	"github.com/cleave-dra/cleave/pkg/domain/store"
	"github.com/cleave-dra/cleave/pkg/driver/driversession"
)

// A plugin that is uninstalled and installed again in one boot knows the partitions of its layouts for its own. Layouts without
// partitions leave nothing.
func TestRemoveFiles_Layouts(t *testing.T) {
	for name, places := range map[string][]gpu.Place{"partitions": {{ProfileID: 19, Placement: gpu.Placement{Start: 6, Size: 1}}}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			s := newService(*leavingConfig(t))
			open := func() string {
				if err := os.MkdirAll(s.config.nodeDir(), 0o700); err != nil {
					t.Fatal(err)
				}
				sessions, err := driversession.Open(store.Disk{}, filepath.Join(s.config.nodeDir(), sessionFile), "boot",
					os.DirFS(t.TempDir()), os.DirFS(t.TempDir()))
				if err == nil {
					err = sessions.Begin([]string{renamedGPU})
				}
				if err != nil {
					t.Fatal(err)
				}
				return sessions.Of(renamedGPU)
			}
			before := open()
			layouts, err := records.OpenLayouts(store.Disk{}, filepath.Join(s.config.nodeDir(), records.LayoutsDir))
			if err == nil {
				err = layouts.Write(&records.Layout{Format: records.LayoutFormat, BootID: "boot", Session: before, GPU: renamedGPU, UUID: "GPU-1",
					Places: places, Offered: []gpu.Place{{ProfileID: 19}}})
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := removeFiles(t.Context(), &s.config, true); err != nil {
				t.Fatal(err)
			}
			if kept := keepsLayouts(&s.config); kept != (places != nil) {
				t.Errorf("the record of the layout is kept: %t", kept)
			}
			if after := open(); (after == before) != (places != nil) {
				t.Errorf("the session was %s and is %s", before, after)
			}
		})
	}
}
