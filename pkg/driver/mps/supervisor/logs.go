// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"k8s.io/klog/v2"
)

const (
	// outputFile receives the daemon's standard output and error; a pipe would break when the supervisor exits.
	outputFile = "daemon.log"
	// tailBytes and tailLines bound the part of a log that is logged, quoteRunes the part that an error quotes: errors become
	// Events.
	tailBytes  = 2048
	tailLines  = 8
	quoteRunes = 256
)

// tailOf quotes the last line of each of the daemon's own logs, to be appended to an error; empty if there are none. The lines
// before are logged.
func tailOf(ctx context.Context, device, dir string) string {
	var b strings.Builder
	for _, name := range []string{"control.log", serverLog, outputFile} {
		lines := tail(filepath.Join(dir, name))
		if len(lines) == 0 {
			continue
		}
		klog.FromContext(ctx).Info("Log of an MPS control daemon ends", "gpu", device, "file", name, "lines", lines)
		last := []rune(lines[len(lines)-1])
		if len(last) > quoteRunes {
			last = append(last[:quoteRunes-1], '…')
		}
		b.WriteString("; " + name + " ends: " + string(last))
	}
	return b.String()
}

// tail returns the last lines of a file, without terminal control characters.
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
