package driver

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const smapsOfAProgram = `00401000-00412000 r--p 00000000 fe:00 1 /opt/my cleave
Size:                 68 kB
Private_Dirty:        68 kB
Anonymous:         0 kB
00412000-014c2000 r-xp 00011000 fe:00 1 /opt/my cleave
Anonymous:         0 kB
026be000-02700000 r--p 022bd000 fe:00 1 /opt/my cleave
Anonymous:         8 kB
02700000-0274d000 rw-p 022ff000 fe:00 1 /opt/my cleave
Anonymous:         0 kB
7f0000000000-7f0000001000 r-xp 00000000 fe:00 2 /lib/libc.so.6
Anonymous:         0 kB
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
Anonymous:         0 kB
`

func TestOnlyCleanReadOnlyMappingsOfTheProgramAreDropped(t *testing.T) {
	got := cleanMappings([]byte(smapsOfAProgram), "/opt/my cleave")
	want := []mapping{{0x401000, 0x11000}, {0x412000, 0x10b0000}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mapping{})); diff != "" {
		t.Errorf("mappings (-want +got):\n%s", diff)
	}
}

func TestAProgramRunsOnAfterItsStartWasReleased(t *testing.T) {
	if err := releaseStartUp(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if len(cleanMappings(data, self)) == 0 {
		t.Error("no mapping of the test program was found")
	}
}
