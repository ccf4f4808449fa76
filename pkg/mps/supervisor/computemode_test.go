package supervisor

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleave-dra/cleave/pkg/gpu"
	"github.com/cleave-dra/cleave/pkg/mps"
)

// The last share goes without a driver; the mode comes back when the driver does.
func TestTheComputeModeComesBackWithTheDriver(t *testing.T) {
	tests := map[string]struct {
		before int // the mode before
		foreign,
		reloaded bool // what happens while the driver is away
		want int
	}{
		"as it was":              {before: 0, want: 0},
		"prohibited as it was":   {before: 2, want: 2},
		"exclusive as it was":    {before: 3, want: 3},
		"changed by an admin":    {before: 0, foreign: true, want: 2},
		"the driver was reset":   {before: 2, reloaded: true, want: 0},
		"exclusive, then reset":  {before: 3, reloaded: true, want: 0},
		"prohibited, then admin": {before: 2, foreign: true, want: 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, config := newFakeHost(), testConfig(t)
				s, stop := startFake(t, config, h)
				a := requestFor("a", 1)
				h.modes[a.PCI] = tt.before
				ensure(t, s, a)
				h.locked(func() { h.noDriver = gpu.ErrDriverNotLoaded })
				release(t, s, a)
				if len(h.processes)+len(h.mounts) > 0 {
					t.Error("the daemon or its memory is left")
				}
				if st := s.Status().GPUs; len(st) != 1 || st[0].State != mps.Stopping || !strings.Contains(st[0].Message, "not loaded") {
					t.Errorf("status %+v", st)
				}
				stop()
				s, stop = startFake(t, config, h) // also over a restart
				defer stop()
				go s.CleanUp()
				time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
				h.locked(func() {
					if tt.foreign {
						h.modes[a.PCI] = 2
					}
					if tt.reloaded {
						h.modes[a.PCI] = 0
					}
					h.noDriver = nil
				})
				time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
				mode := 0
				h.locked(func() { mode = h.modes[a.PCI] })
				if mode != tt.want {
					t.Errorf("mode %d, want %d", mode, tt.want)
				}
				if len(s.Status().GPUs) != 0 || len(foldersLeft(t, config)) != 0 {
					t.Errorf("left: %+v, %v", s.Status().GPUs, foldersLeft(t, config))
				}
				stop()
			})
		})
	}
}

func TestAClaimMeanwhileKeepsTheModeToGiveBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, config := newFakeHost(), testConfig(t)
		s, stop := startFake(t, config, h)
		defer stop()
		a := requestFor("a", 1)
		ensure(t, s, a)
		h.noDriver = gpu.ErrLibraryNotFound
		release(t, s, a)
		if _, err := s.Ensure(t.Context(), a); !errors.Is(err, gpu.ErrLibraryNotFound) {
			t.Errorf("got %v, want %v", err, gpu.ErrLibraryNotFound)
		}
		h.noDriver = nil
		ensure(t, s, a)
		release(t, s, a)
		if left := h.left(t, config); left != "" {
			t.Errorf("left behind: %s", left)
		}
	})
}

func TestKeepModeNeedsNoDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, config := newFakeHost(), testConfig(t)
		config.ComputeMode = KeepMode
		h.noDriver = gpu.ErrLibraryNotFound
		s, stop := startFake(t, config, h)
		defer stop()
		ensure(t, s, requestFor("a", 1))
		release(t, s, requestFor("a", 1))
		if left := h.left(t, config); left != "" {
			t.Errorf("left behind: %s", left)
		}
	})
}
