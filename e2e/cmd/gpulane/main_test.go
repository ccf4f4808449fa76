// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--help"}, exitOK, "-driver-root"},
		{[]string{"--typo"}, exitUsage, "typo"},
		{[]string{"argument"}, exitUsage, `unexpected argument "argument"`},
		{[]string{"--timeout", "soon"}, exitUsage, "soon"},
		{[]string{"--out", t.TempDir()}, exitFailed, "cleave.gz"}, // this test's directory holds no programs
	} {
		var stdout, stderr bytes.Buffer
		if code := run(c.args, &stdout, &stderr); code != c.code || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%v: exit code %d and %q, want %d and %q", c.args, code, stderr.String(), c.code, c.says)
		}
	}
}
