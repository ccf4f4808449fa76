// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The wall clock of one process is shifted in its own copy of the vDSO, the code by which programs read clocks without a
// system call: the machine's clock, which others use, stays as it is, and no namespace can shift CLOCK_REALTIME. The kernel
// lets a debugger write to it, as for breakpoints, and copies the page for that process alone. The clock_gettime written there
// makes the system call and adds seconds to CLOCK_REALTIME; monotonic clocks go on as they do when an admin sets the time.

// shifted is that function. It ends where offset bytes of seconds follow, and the rest.
var (
	shiftedBefore = []byte{
		0xb8, 0xe4, 0, 0, 0, // mov eax, 228: clock_gettime
		0x0f, 0x05, //          syscall: rdi and rsi stay
		0x85, 0xc0, //          test eax, eax
		0x75, 0x11, //          jnz ret
		0x85, 0xff, //          test edi, edi: CLOCK_REALTIME is 0
		0x75, 0x0d, //          jnz ret
		0x48, 0xb9, //          mov rcx, seconds
	}
	shiftedAfter = []byte{
		0x48, 0x01, 0x0e, //    add [rsi], rcx
		0xc3, //                ret
	}
)

// function is the code of the shifted clock_gettime.
func function(by time.Duration) []byte {
	seconds := binary.LittleEndian.AppendUint64(nil, uint64(int64(by/time.Second)))
	return bytes.Join([][]byte{shiftedBefore, seconds, shiftedAfter}, nil)
}

// shiftClock shifts the wall clock of a process, from where the machine's is.
func shiftClock(pid int, by time.Duration) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("shift the clock of process %d: the code for it is for amd64, and this is %s", pid, runtime.GOARCH)
	}
	code := function(by)
	at, err := clockFunction(pid, len(code))
	if err != nil {
		return fmt.Errorf("shift the clock of process %d: %w", pid, err)
	}
	memory, err := os.OpenFile(procFile(pid, "mem"), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("shift the clock of process %d: %w", pid, err)
	}
	defer memory.Close()
	const tries = 100
	for range tries {
		done, err := whileStopped(pid, func() (bool, error) {
			if within, err := executes(pid, at, len(code)); within || err != nil {
				return false, err
			}
			_, err := memory.WriteAt(code, at)
			return err == nil, err
		})
		if done || err != nil {
			return err
		}
	}
	return fmt.Errorf("shift the clock of process %d: its threads read the clock each time they are looked at", pid)
}

// gone reports whether a process has ended.
func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func procFile(pid int, elem ...string) string {
	return filepath.Join(append([]string{"/proc", strconv.Itoa(pid)}, elem...)...)
}

// clockFunction is where a process has the function by which it reads clocks, of a size at least.
func clockFunction(pid, size int) (int64, error) {
	maps, err := os.ReadFile(procFile(pid, "maps"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(maps)) {
		from, rest, _ := strings.Cut(line, "-")
		to, _, _ := strings.Cut(rest, " ")
		if !strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			continue
		}
		start, err1 := strconv.ParseInt(from, 16, 64)
		end, err2 := strconv.ParseInt(to, 16, 64)
		if err := errors.Join(err1, err2); err != nil {
			return 0, err
		}
		image := make([]byte, end-start)
		memory, err := os.Open(procFile(pid, "mem"))
		if err != nil {
			return 0, err
		}
		_, err = memory.ReadAt(image, start)
		if err = errors.Join(err, memory.Close()); err != nil {
			return 0, err
		}
		offset, err := clockSymbol(image, size)
		return start + offset, err
	}
	return 0, errors.New("it has no vDSO")
}

// clockSymbol is the offset of the function in the image of a vDSO.
func clockSymbol(image []byte, size int) (int64, error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, fmt.Errorf("read the vDSO: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("read the vDSO: %w", err)
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" {
			if s.Size < uint64(size) {
				return 0, fmt.Errorf("clock_gettime of the vDSO has %d bytes, and %d are needed", s.Size, size)
			}
			return int64(s.Value), nil
		}
	}
	return 0, errors.New("the vDSO has no clock_gettime")
}

// whileStopped does something while all threads of a process are stopped.
func whileStopped(pid int, do func() (bool, error)) (done bool, err error) {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)) }()
	const tries = 1000
	for range tries {
		stopped, err := allStopped(pid)
		if err != nil {
			return false, err
		}
		if stopped {
			return do()
		}
		runtime.Gosched()
	}
	return false, nil
}

func allStopped(pid int) (bool, error) {
	threads, err := filepath.Glob(procFile(pid, "task", "*", "stat"))
	if err != nil || len(threads) == 0 {
		return false, fmt.Errorf("list the threads of process %d: there are %d, %w", pid, len(threads), err)
	}
	for _, path := range threads {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return false, err
		}
		if i := bytes.LastIndex(data, []byte(") ")); i < 0 || i+2 >= len(data) || data[i+2] != 'T' {
			return false, nil
		}
	}
	return true, nil
}

// executes reports whether a stopped thread is within some code.
func executes(pid int, at int64, size int) (bool, error) {
	threads, err := filepath.Glob(procFile(pid, "task", "*", "syscall"))
	if err != nil {
		return false, err
	}
	for _, path := range threads {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return false, err
		}
		fields := strings.Fields(string(data)) // the last is the program counter
		if len(fields) < 2 {
			return true, nil // it runs still
		}
		counter, err := strconv.ParseUint(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
		if err != nil {
			return false, err
		}
		if counter >= uint64(at) && counter < uint64(at)+uint64(size) {
			return true, nil
		}
	}
	return false, nil
}
