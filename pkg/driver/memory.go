package driver

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
)

// releaseStartUp gives back the memory that only the start needed. Start-up leaves as much garbage as all that stays,
// and an idle process makes too little to collect it; and it touches most of the program, to set up packages, of which
// little is used again. What is used again comes back from the page cache by itself.
func releaseStartUp() error {
	debug.FreeOSMemory()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find the running program: %w", err)
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return fmt.Errorf("list the program's mappings: %w", err)
	}
	for _, m := range cleanMappings(smaps, self) {
		// Clean pages of a file: they can be dropped at any time, and are read again when touched (madvise(2)).
		if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, m.start, m.size, syscall.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("drop a mapping of the program: %w", errno)
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct {
	start uintptr
	size  uintptr
}

// cleanMappings finds in /proc/PID/smaps the read-only mappings of a file of which the process has no copies of its own. Pages
// that the loader has written to, such as relocated tables, are such copies: they exist nowhere else and must stay.
func cleanMappings(smaps []byte, file string) []mapping {
	var found []mapping
	var current *mapping
	lines := bufio.NewScanner(bytes.NewReader(smaps))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 6 && (fields[1] == "r--p" || fields[1] == "r-xp") && strings.Join(fields[5:], " ") == file:
			current = parseMapping(fields[0])
		case len(fields) >= 5 && strings.Contains(fields[0], "-"):
			current = nil // another mapping begins
		case len(fields) == 3 && fields[0] == "Anonymous:" && current != nil:
			if fields[1] == "0" {
				found = append(found, *current)
			}
			current = nil
		}
	}
	return found
}

// parseMapping reads "start-end" in hexadecimal; nil if it is not that.
func parseMapping(text string) *mapping {
	from, to, ok := strings.Cut(text, "-")
	start, err1 := strconv.ParseUint(from, 16, 64)
	end, err2 := strconv.ParseUint(to, 16, 64)
	if !ok || err1 != nil || err2 != nil || end <= start {
		return nil
	}
	return &mapping{start: uintptr(start), size: uintptr(end - start)}
}
