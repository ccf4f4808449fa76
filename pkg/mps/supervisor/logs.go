// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

const (
	// outputFile takes what the daemon writes to standard output and error; a pipe would break when the supervisor ends.
	outputFile = "daemon.log"
	// tailBytes and tailLines bound what an error quotes of a log.
	tailBytes = 2048
	tailLines = 8
)

// tailOf quotes the last lines of the daemon's own logs, to be appended to an error; empty if there are none.
func tailOf(dir string) string {
	var b strings.Builder
	for _, name := range []string{"control.log", "server.log", outputFile} {
		if lines := tail(filepath.Join(dir, name)); len(lines) > 0 {
			b.WriteString("; " + name + " ends: " + strings.Join(lines, " | "))
		}
	}
	return b.String()
}

// tail gives the last lines of a file, without anything that a terminal would act on.
func tail(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	} else if _, err := f.Seek(max(0, info.Size()-tailBytes), io.SeekStart); err != nil {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(f, tailBytes))
	if err != nil {
		return nil
	}
	clean := strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(data), ""))
	var lines []string
	for line := range strings.SplitSeq(clean, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-tailLines):]
}
