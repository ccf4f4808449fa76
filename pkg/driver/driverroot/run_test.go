// SPDX-License-Identifier: Apache-2.0

package driverroot

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// here is the root of this machine.
var here = Root{Host: "/", Here: "/"}

// script makes a small program and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return path
}

func TestRun_CleanEnvironment(t *testing.T) {
	t.Setenv("LD_PRELOAD_OF_THE_PLUGIN", "secret")
	output, err := here.Run(t.Context(), script(t, `env; echo "arguments $*"; pwd; echo trouble >&2`), "a", "b c")
	must(t, err)
	got := string(output)
	for _, want := range []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin\n", "LANG=C.UTF-8\n", "arguments a b c\n", "\n/\n", "trouble\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("output %q has no %q", got, want)
		}
	}
	if strings.Contains(got, "secret") {
		t.Errorf("output %q has the plugin's environment", got)
	}
}

func TestRun_FailingAndMissing(t *testing.T) {
	output, err := here.Run(t.Context(), script(t, "echo no such GPU >&2; exit 6"))
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 6 || string(output) != "no such GPU\n" {
		t.Errorf("got %q, %v, want exit status 6", output, err)
	}
	if _, err := here.Run(t.Context(), "/does/not/exist"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v", err, os.ErrNotExist)
	}
}

func TestRun_OutputLimit(t *testing.T) {
	output, err := here.Run(t.Context(), script(t, "head -c 1000000 /dev/zero | tr '\\0' x; echo the end"))
	must(t, err)
	if string(output) != strings.Repeat("x", maxOutput) {
		t.Errorf("got %d bytes, want the first %d", len(output), maxOutput)
	}
}

func TestRun_ContextCanceled(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// A pipe shows that the program runs: it is opened when the other side is.
	if output, err := exec.Command("mkfifo", started).CombinedOutput(); err != nil {
		t.Fatalf("mkfifo: %v: %s", err, output)
	}
	done := make(chan error, 1)
	go func() {
		_, err := here.Run(ctx, script(t, "echo running >"+started+"; exec cat "+started))
		done <- err
	}()
	if _, err := os.ReadFile(started); err != nil {
		t.Fatal(err)
	}
	cancel()
	err := <-done
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want an error that says why it ended: %v", err, context.Canceled)
	}
}

func TestRun_BelowTheRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may change the root directory")
	}
	// A root without a shell cannot run a script; that the program is looked for below it shows in the error.
	root := t.TempDir()
	if _, err := (Root{Host: root, Here: root}).Run(t.Context(), script(t, "true")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want %v: the program is not below the root", err, os.ErrNotExist)
	}
}
