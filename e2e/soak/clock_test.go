// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// printClocks is set where the test's program is to print its clocks, once per line that it reads.
const printClocks = "CLEAVE_SOAK_PRINT_CLOCKS"

func init() {
	if os.Getenv(printClocks) == "" {
		return
	}
	start := time.Now()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Fprintln(os.Stdout, time.Now().Unix(), int(time.Since(start).Seconds()))
	}
	os.Exit(0)
}

func TestShiftClock(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it writes to the memory of another process, as root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), printClocks+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, by := range []time.Duration{0, time.Hour, -2 * time.Hour, 0} {
		if by != 0 || lines.Text() != "" {
			if err := shiftClock(cmd.Process.Pid, by); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Fprintln(in)
		if !lines.Scan() {
			t.Fatalf("the process ended: %v", lines.Err())
		}
		wall, monotonic, _ := strings.Cut(lines.Text(), " ")
		got, err := strconv.ParseInt(wall, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if off := time.Until(time.Unix(got, 0)) - by; off.Abs() > time.Minute {
			t.Errorf("shifted by %s the wall clock is %s off", by, off)
		}
		if n, err := strconv.Atoi(monotonic); err != nil || n > 60 {
			t.Errorf("shifted by %s the monotonic clock is at %s s", by, monotonic)
		}
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
