// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// logFile writes lines as NVIDIA's programs do: "[2024-04-05 12:49:05.086 Control    61] NEW UI".
type logFile struct {
	w    io.Writer
	role string
}

// openLog opens a file of the log directory for adding to it.
func openLog(dir, name, role string) (*logFile, func() error, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as NVIDIA's programs do
		return nil, nil, fmt.Errorf("make log directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644) //nolint:gosec // logs hold no secrets
	if err != nil {
		return nil, nil, fmt.Errorf("open log: %w", err)
	}
	return &logFile{f, role}, f.Close, nil
}

// printf writes a line, in one write, so that processes can share a file. A log that cannot be written stops nothing.
func (l *logFile) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(l.w, "[%s %s %5d] %s\n", time.Now().Format("2006-01-02 15:04:05.000"), l.role, os.Getpid(),
		fmt.Sprintf(format, args...))
}
