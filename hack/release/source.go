// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// snapshot is what is released: a commit, and its time, which all files of the release have.
type snapshot struct {
	repository, commit string
	time               time.Time
}

// snapshotOf takes the last commit of a repository. Changes that are not committed are an error, unless they are wanted.
func snapshotOf(ctx context.Context, repository string, dirty bool) (snapshot, error) {
	s := snapshot{repository: repository}
	changes, err := s.git(ctx, "status", "--porcelain")
	if err != nil {
		return s, err
	}
	if s.commit, err = s.git(ctx, "rev-parse", "HEAD"); err != nil {
		return s, err
	}
	if changes != "" {
		if !dirty {
			return s, fmt.Errorf("the working tree has changes that are not committed; commit them, or try a release of them with "+
				"DIRTY=1:\n%s", changes)
		}
		// A commit of tracked files, which no branch has.
		stash, err := s.git(ctx, "stash", "create")
		if err != nil {
			return s, err
		}
		if stash != "" {
			s.commit = stash
		}
	}
	seconds, err := s.git(ctx, "log", "-1", "--format=%ct", s.commit)
	if err != nil {
		return s, err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return s, fmt.Errorf("read the time of commit %s: %w", s.commit, err)
	}
	s.time = time.Unix(unix, 0).UTC()
	return s, nil
}

func (s snapshot) file(ctx context.Context, path string) (string, error) {
	return s.git(ctx, "show", s.commit+":"+path)
}

// export writes the files of the commit to a directory, which no git is in.
func (s snapshot) export(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	archive := filepath.Join(dir, "..", "source.tar")
	if _, err := s.git(ctx, "archive", "--output", archive, s.commit); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "tar", "-C", dir, "-xf", archive).CombinedOutput(); err != nil {
		return fmt.Errorf("unpack commit %s: %w: %s", s.commit, err, out)
	}
	return os.Remove(archive)
}

func (s snapshot) git(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, "git", append([]string{"-C", s.repository}, args...)...)
	var out, complaints bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaints
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, complaints.String())
	}
	return strings.TrimSpace(out.String()), nil
}
